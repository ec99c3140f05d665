"""Sums of a file as it is written: those that reading it would find, whatever the pieces."""

from __future__ import annotations

import hashlib
import zlib
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_drafts import header, tables, write

from dflash.draftfile import metadata
from dflash.draftfile.aside import Aside
from dflash.draftfile.doctor import examine
from dflash.draftfile.sums import Sums

INT8 = header(features={"mode": "all", "encoding": "int8"})
PIECES = st.lists(st.binary(max_size=300), min_size=1, max_size=40)


def summed(pieces: list[bytes], held: int) -> Sums:
    """Sums that held the pieces from so many on."""
    sums = Sums()
    sums.add(pieces[:held])
    sums.hold()
    sums.add(pieces[held:])
    return sums


@given(PIECES, st.data())
def test_checksums_of_what_lies_between_pieces(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    bounds = sorted(data.draw(st.sets(st.sampled_from([0, *accumulate(map(len, pieces))]))))
    extents = [(start, end - start) for start, end in pairwise(bounds)]
    wanted = [zlib.crc32(whole[start : start + size]) for start, size in extents]
    assert summed(pieces, data.draw(st.integers(0, len(pieces)))).checksums(extents) == (wanted or None)


@given(PIECES, st.data())
def test_what_is_not_between_pieces_is_not_told(pieces: list[bytes], data: st.DataObject) -> None:
    bounds = [0, *accumulate(map(len, pieces))]
    inside = sorted(set(range(bounds[-1])) - set(bounds))
    if inside:
        cut = data.draw(st.sampled_from(inside))
        assert summed(pieces, 0).checksums([(0, cut)]) is None
        assert summed(pieces, 0).checksums([(cut, bounds[-1] - cut)]) is None
    if len(set(bounds)) > 3:
        first, second, third, last = sorted(set(bounds))[:4]
        assert summed(pieces, 0).checksums([(first, second - first), (third, last - third)]) is None


@given(PIECES, st.data())
def test_the_body_ends_anywhere_in_what_was_held(pieces: list[bytes], data: st.DataObject) -> None:
    whole, held = b"".join(pieces), data.draw(st.integers(0, len(pieces)))
    end = data.draw(st.integers(len(b"".join(pieces[:held])), len(whole)))
    assert summed(pieces, held).body(end) == hashlib.sha256(whole[:end]).hexdigest()


def test_a_file_that_threads_write_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> str:
        raise AssertionError("the file is read again")

    with monkeypatch.context() as patch:
        patch.setattr(metadata, "checksum", refuse)
        patch.setattr(metadata, "body_digest", refuse)
        made = write(
            tmp_path / "run.parquet",
            tables(5, 9, rounds=6, features=True),
            INT8,
            apart=True,
            row_group_rows=10,
        )
    assert examine(made.path, deep=True) == []


@pytest.mark.parametrize("size", [1, 1000, 1 << 30])
def test_a_file_is_right_however_its_writer_parts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """As another version of the Parquet library may."""
    given = Aside.write
    held = bytearray()

    def joined(self: Aside, data: bytes) -> int:
        held.extend(data)
        while len(held) >= size:
            given(self, bytes(held[:size]))
            del held[:size]
        return len(data)

    def flush(self: Aside, flush: object = Aside.flush) -> None:
        given(self, bytes(held))
        held.clear()
        flush(self)  # type: ignore[operator]

    with monkeypatch.context() as patch:
        patch.setattr(Aside, "write", joined)
        patch.setattr(Aside, "flush", flush)
        made = write(tmp_path / "run.parquet", tables(5, 3, rounds=3, features=True), INT8, apart=True)
    assert examine(made.path, deep=True) == []
