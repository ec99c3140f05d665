"""The journal of many lanes: rows of many requests in one batch, written and synced in threads."""

from __future__ import annotations

import os
import threading
import zlib
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_drafts import header, tables

from dflash.draftfile import errors
from dflash.draftfile.journal import Journal, _Checks
from dflash.draftfile.journal_reader import read_journal

ANY_FOLDER = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def keep_together(path: Path, parts: list[pa.Table], closed: int, apart: bool = False) -> list[int]:
    """Journals two rows of every request in a batch; returns the size after every batch."""
    sizes = []
    with Journal(path, header(), run_id="run", apart=apart) as journal:
        for row in range(0, max(table.num_rows for table in parts), 2):
            journal.append_all(pa.concat_tables([table.slice(row, 2) for table in parts]))
            journal.flush()
            sizes.append(path.stat().st_size)
        journal.close_requests([f"request-{number}" for number in range(closed)])
    return sizes


@ANY_FOLDER
@given(st.integers(0, 99), st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_rows_of_many_requests_come_back(
    tmp_path: Path, seed: int, requests: int, closed: int, apart: bool
) -> None:
    path = tmp_path / "run.journal"
    path.unlink(missing_ok=True)
    parts = tables(seed, requests, dense=1)
    keep_together(path, parts, min(closed, requests), apart)
    found = read_journal(path)
    assert (len(found.closed), found.torn_bytes) == (min(closed, requests), 0)
    every = found.closed | found.open
    assert [every[f"request-{number}"].to_pylist() for number in range(requests)] == [
        table.to_pylist() for table in parts
    ]


@pytest.mark.parametrize("step", [997, 1009])
def test_damage_costs_no_batch_before_it(tmp_path: Path, step: int) -> None:
    """Torn or flipped: of what comes after, nothing is believed."""
    path, parts = tmp_path / "run.journal", tables(1, 3)
    sizes = keep_together(path, parts, 2)
    data = path.read_bytes()
    for place in range(sizes[0], len(data) - 8, step):
        flipped = bytes([data[place] ^ 1 << (place % 8)])
        for broken in (data[:place], data[:place] + flipped + data[place + 1 :]):
            path.write_bytes(broken)
            found = read_journal(path)
            whole = 2 * sum(size <= place for size in sizes)
            for number, table in enumerate(parts):
                rows = (found.closed | found.open)[f"request-{number}"]
                assert rows.to_pylist() == table.slice(0, rows.num_rows).to_pylist()
                least = min(whole, table.num_rows)
                # a flip may lie in what pads
                assert rows.num_rows == least or (len(broken) == len(data) and rows.num_rows > least)


def refuse(*given: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("refused", ["write", "fsync"])
@pytest.mark.parametrize("call", ["flush", "append", "close"])
def test_what_a_thread_could_not_write_is_told_by_a_later_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, call: str
) -> None:
    (table,) = tables(3, 1)
    journal = Journal(tmp_path / "run.journal", header(), run_id="run", apart=True)
    target = (os, "fsync") if refused == "fsync" else (Journal, "_put")
    monkeypatch.setattr(*target, refuse)
    journal.append_all(table)
    journal.sync()

    def called() -> None:
        while call != "close":
            journal.sync()
            journal.flush() if call == "flush" else journal.append_all(table)
        journal.close()

    with pytest.raises(errors.WriteFailed, match="No space left"):
        called()
    with suppress(errors.WriteFailed):
        journal.close()
    journal.delete()
    assert not list(tmp_path.iterdir())


def test_nothing_is_taken_for_synced_that_came_while_a_sync_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = tables(3, 1)
    sizes, begun, go, fsync = [], threading.Event(), threading.Event(), os.fsync
    path = tmp_path / "run.journal"
    journal = Journal(path, header(), run_id="run", apart=True)

    def slow(descriptor: int) -> None:
        sizes.append(path.stat().st_size)
        begun.set()
        go.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    journal.append_all(table)
    journal.sync()
    # the thread that syncs may come to it later than the next rows to theirs
    assert begun.wait(60)
    journal.append_all(table)
    journal.flush()
    whole = path.stat().st_size
    go.set()
    journal.close()
    assert sizes[0] < whole <= sizes[-1]


@pytest.mark.parametrize("end", ["delete", "close", "broken"])
@pytest.mark.parametrize("seconds", [0.0, 1e9, float("inf")])
def test_a_journal_that_goes_soon_is_not_synced_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, seconds: float
) -> None:
    """A sync in time is one that is due; nobody waits for it once the journal is deleted or closed."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), fsync(descriptor))[1])
    journal = Journal(tmp_path / "run.journal", header(), seconds, run_id="run", apart=True)
    journal.append_all(tables(3, 1)[0])
    journal.flush()
    before = len(synced)
    journal.sync_in_time()
    journal.flush()
    journal._broken = end == "broken"
    journal.delete() if end == "delete" else journal.close()
    assert len(synced) - before == (end == "close") or seconds == 0


def test_a_sync_that_was_put_off_comes_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    journal = Journal(tmp_path / "run.journal", header(), 0.3, run_id="run", apart=True, clock=lambda: 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.set())
    journal.append_all(tables(3, 1)[0])
    journal.sync_in_time()
    assert synced.wait(60)
    journal.close()


def test_without_a_thread_to_wait_it_is_synced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with Journal(tmp_path / "run.journal", header(), 1e9, run_id="run") as journal:
        monkeypatch.setattr(os, "fsync", synced.append)
        journal.append_all(tables(3, 1)[0])
        journal.sync_in_time()
        assert len(synced) == 1


@pytest.mark.parametrize("end", ["delete", "close", "broken"])
@pytest.mark.parametrize("asked", [1, 2])
def test_no_end_waits_for_a_sync_that_was_put_off(tmp_path: Path, end: str, asked: int) -> None:
    """Nor for one that is about to be, nor for one of several."""
    journal = Journal(tmp_path / "run.journal", header(), 1e9, run_id="run", apart=True)
    journal.append_all(tables(3, 1)[0])
    journal.flush()
    held = threading.Event()
    assert journal._thread is not None
    journal._thread.submit(held.wait, 60)
    for _ in range(asked):
        journal.sync_in_time()
    journal._broken = end == "broken"
    ending = threading.Thread(target=journal.delete if end == "delete" else journal.close, daemon=True)
    ending.start()
    held.set()
    ending.join(120)
    assert not ending.is_alive()


@pytest.mark.parametrize("apart", [False, True])
def test_a_path_may_be_of_any_bytes(tmp_path: Path, apart: bool) -> None:
    path = tmp_path / os.fsdecode(b"r\xff.journal")
    table = tables(3, 1)[0]
    with Journal(path, header(), run_id="run", apart=apart) as journal:
        journal.append_all(table)
    assert read_journal(path).open["request-0"].to_pylist() == table.to_pylist()


def test_a_journal_that_cannot_be_opened_twice_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pa, "OSFile", fail)
    with pytest.raises(errors.FolderNotWritable, match="Too many open files"):
        Journal(tmp_path / "run.journal", header(), run_id="run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("features", [False, True])
def test_checksums_are_those_of_batches_as_the_stream_holds_them(features: bool) -> None:
    table = pa.concat_tables(tables(3, 4, dense=2, features=features)).combine_chunks()
    (batch,) = table.to_batches()
    checks = _Checks(batch.slice(0, 0))
    for start, count in [(0, batch.num_rows), (0, 0), (3, 5), (7, 1), (1, batch.num_rows - 1)]:
        part = batch.slice(start, count)
        found = checks.of(b"request", part)
        assert found == f"{zlib.crc32(b'request' + part.serialize().to_pybytes()):08x}".encode()
