"""Row groups that threads of their own encode: the same file, and no failure lost."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_drafts import PADDED, header, tables, write

from dflash.draftfile import aside
from dflash.draftfile.aside import Aside
from dflash.draftfile.columns import arrow_schema
from dflash.draftfile.errors import WriteFailed
from dflash.draftfile.joined import Joined
from dflash.draftfile.violations import TokenRange
from dflash.draftfile.writer import ENCODERS, DraftFileWriter

INT8 = header(features={"mode": "all", "encoding": "int8"})


def test_the_file_is_the_same_whoever_encodes_its_row_groups(tmp_path: Path) -> None:
    parts = tables(5, 9, rounds=6, features=True)
    head = header(features={"mode": "all", "encoding": "int8"})
    found = [
        write(tmp_path / str(apart), parts, head, apart=apart, row_group_rows=10) for apart in (False, True)
    ]
    assert found[0].content_digest == found[1].content_digest
    files = [pq.ParquetFile(one.path) for one in found]
    assert files[0].num_row_groups == files[1].num_row_groups > 2
    assert files[0].read().equals(files[1].read())
    assert found[0].path.read_bytes() == found[1].path.read_bytes()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_requests_without_rows_leave_nothing(tmp_path: Path, before: bool, apart: bool) -> None:
    (table,) = tables(5, 1, rounds=6)
    empty = [table.slice(0, 0)]
    found = write(
        tmp_path / "run.parquet", [*empty, table, *empty] if before else empty, apart=apart, row_group_rows=1
    )
    file = pq.ParquetFile(found.path)
    assert (found.rows, file.num_row_groups) == ((table.num_rows, 1) if before else (0, 0))
    assert file.read().num_rows == found.rows


def refuse(self: Joined, data: bytes) -> int:
    """What a full disk says."""
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("at", ["a later row group", "the end"])
def test_what_a_thread_could_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr(Joined, "_put", refuse)
    with DraftFileWriter(
        tmp_path / "run.parquet", header(), run_id="run", apart=True, row_group_rows=1
    ) as writer:
        first, *others = tables(5, 2 + ENCODERS, rounds=6)
        writer.write_request(first)
        for _ in range(2):
            # and told again whenever it is asked for
            with pytest.raises(WriteFailed, match="No space"):
                writer.finish() if at == "the end" else [writer.write_request(other) for other in others]
    assert list(tmp_path.iterdir()) == []


def wrong(table: pa.Table) -> pa.Table:
    """The rows with an anchor outside the vocabulary."""
    place = table.schema.get_field_index("anchor_token")
    tokens = np.full(table.num_rows, PADDED, np.int32)
    return table.set_column(place, table.schema.field(place), pa.array(tokens))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_wrong_rows_are_told_before_what_they_led_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool, full: bool
) -> None:
    """Rows may be checked while they are written: no file comes of them, whatever becomes of the writing."""
    if full:
        monkeypatch.setattr(Joined, "_put", refuse)
    right, second = tables(5, 2, rounds=6)
    with DraftFileWriter(tmp_path / "run.parquet", header(), run_id="run", apart=apart) as writer:
        writer.write_request(right)
        writer.write_request(wrong(second))
        with pytest.raises(TokenRange):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


def states(parts: int) -> list[pa.Table]:
    """Requests with hidden states in eight bits, 130 rows each, which are in so many parts."""
    rng, found = np.random.default_rng(1), []
    for table in tables(7, 8, rounds=129, features=True):
        codes = np.clip(rng.normal(0, 40, (table.num_rows, 1728)), -128, 127).astype(np.int8)
        place = table.schema.get_field_index("feature_values")
        column = pa.array([code.tobytes() for code in codes], pa.binary())
        table = table.set_column(place, table.schema.field(place), column)
        step = -(-table.num_rows // parts)
        found.append(pa.concat_tables(table.slice(start, step) for start in range(0, table.num_rows, step)))
    return found


@pytest.mark.parametrize("apart", [False, True])
def test_requests_that_came_in_parts_make_the_same_file_of_about_the_same_size(
    tmp_path: Path, apart: bool
) -> None:
    found = [write(tmp_path / str(parts), states(parts), INT8, apart=apart) for parts in (1, 2, 9, 130)]
    whole = pq.read_table(found[0].path)
    for one in found[1:]:
        assert one.content_digest == found[0].content_digest
        assert pq.read_table(one.path).equals(whole)
        assert one.bytes <= found[0].bytes * 1.02
    codes = sum(len(value) for value in whole["feature_values"].to_pylist())
    assert found[0].bytes > codes / 2


def test_hidden_states_reach_the_encoder_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each other column in one piece, so that its pages are those of a table that came whole."""
    seen: list[pa.Table] = []
    write_table = pq.ParquetWriter.write_table

    def look(self: pq.ParquetWriter, table: pa.Table, **more: int) -> None:
        seen.append(table)
        write_table(self, table, **more)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", look)
    parts = states(3)
    with DraftFileWriter(tmp_path / "run.parquet", INT8, run_id="run", row_group_rows=10**6) as writer:
        for table in parts:
            writer.write_request(table)
        writer._flush()
    (group,) = seen
    assert group.schema.names == arrow_schema(features=True).names
    for name in group.column_names:
        lie = [chunk.buffers()[-1].address for part in parts for chunk in part[name].chunks]
        if name == "feature_values":
            assert [chunk.buffers()[-1].address for chunk in group[name].chunks] == lie
        else:
            assert group[name].num_chunks == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 50), st.integers(1, 3))
def test_a_thread_writes_all_bytes_in_order(parts: list[bytes], piece: int, most: int) -> None:
    """Those too whose memory is written over right after."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setattr(aside, "PIECE", piece)
        patch.setattr(aside, "MOST", most)
        file = io.BytesIO()
        writer = Aside(file, thread)
        for part in parts:
            lent = bytearray(part)
            assert writer.write(lent) == len(part)
            lent[:] = bytes(len(part))
        writer.flush()
        assert file.getvalue() == b"".join(parts)


class Disk(io.BytesIO):
    """A disk that is full after so many bytes."""

    room = 0

    def write(self, data: bytes) -> int:
        """Refuse what does not fit."""
        if self.tell() + len(data) > self.room:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.999])
def test_a_disk_that_is_full_is_told_wherever_that_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    whole = write(tmp_path / "whole", states(1), INT8, apart=True, row_group_rows=200)
    monkeypatch.setattr(Disk, "room", int(share * whole.bytes))
    monkeypatch.setattr(aside, "PIECE", 1 << 14)
    made = Aside.__init__
    monkeypatch.setattr(
        Aside, "__init__", lambda self, file, thread, *others: made(self, Disk(), thread, *others)
    )
    with pytest.raises(WriteFailed, match="No space"):
        write(tmp_path / "full", states(1), INT8, apart=True, row_group_rows=200)
    assert list(tmp_path.iterdir()) == [tmp_path / "whole"]
