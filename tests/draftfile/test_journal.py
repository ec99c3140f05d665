"""The journal: nothing that reached it is lost, whatever happens to the process or to the last bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_drafts import header, request, tables, write

from dflash.draftfile import errors
from dflash.draftfile.journal import Journal, journal_path, refuse_journal
from dflash.draftfile.journal_reader import JournalReader, open_journal, read_journal
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.recover import mark_interrupted, recover
from dflash.draftfile.resume import find_earlier
from dflash.draftfile.writer import DraftFileWriter

ANY_FOLDER = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def keep(path: Path, parts: list[pa.Table], closed: int, **options: object) -> list[int]:
    """Journals the requests row by row, interleaved; returns the size after every row."""
    sizes = []
    with Journal(path, header(), run_id="run", **options) as journal:
        for row in range(max(table.num_rows for table in parts)):
            for number, table in enumerate(parts):
                if row < table.num_rows:
                    journal.append(f"request-{number}", table.slice(row, 1))
                    sizes.append(path.stat().st_size)
        for number in range(closed):
            journal.close_request(f"request-{number}")
    return sizes


@ANY_FOLDER
@given(st.integers(0, 99), st.integers(1, 3), st.integers(0, 3))
def test_everything_comes_back(tmp_path: Path, seed: int, requests: int, closed: int) -> None:
    path = tmp_path / "run.journal"
    path.unlink(missing_ok=True)
    parts = tables(seed, requests, dense=1)
    keep(path, parts, min(closed, requests))
    found = read_journal(path)
    every = found.closed | found.open
    assert len(found.closed) == min(closed, requests)
    assert found.torn_bytes == 0
    assert found.header.raw == header()
    for number, table in enumerate(parts):
        assert every[f"request-{number}"].equals(table)


@ANY_FOLDER
@given(st.integers(0, 99), st.floats(0, 1))
def test_a_torn_tail_costs_no_whole_round(tmp_path: Path, seed: int, share: float) -> None:
    path = tmp_path / "run.journal"
    path.unlink(missing_ok=True)
    sizes = keep(path, tables(seed, 2), 0)
    data = path.read_bytes()
    first = path.stat().st_size if not sizes else sizes[0]
    cut = first + int(share * (len(data) - first))
    path.write_bytes(data[:cut])
    found = read_journal(path)
    assert sum(table.num_rows for table in found.open.values()) == sum(size <= cut for size in sizes)
    whole = max(size for size in sizes if size <= cut)
    assert found.torn_bytes in (cut - whole, 0 if cut == len(data) else cut - whole)


def test_every_flipped_bit_ends_the_journal_there(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    parts = tables(1, 1)
    sizes = keep(path, parts, 1)
    data = path.read_bytes()
    for place in range(sizes[0], sizes[-1], 31):
        broken = bytearray(data)
        broken[place] ^= 1 << (place % 8)
        path.write_bytes(broken)
        found = read_journal(path)
        rows = (found.closed | found.open)["request-0"]
        whole = sum(size <= place for size in sizes)
        assert rows.equals(parts[0].slice(0, rows.num_rows)), place
        assert rows.num_rows in (whole, parts[0].num_rows), place
        assert found.torn_bytes > 0 or rows.equals(parts[0])


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    (table,) = tables(2, 1, dense=2)
    with Journal(tmp_path / "run.journal", header(), run_id="run") as journal:
        for row in (0, 4, 1, 5, 2, 3):
            journal.append("request-0", table.slice(row, 1))
    assert read_journal(tmp_path / "run.journal").open["request-0"].equals(table)


def test_it_is_synced_on_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, synced = [0.0], []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(now[0]))
    (table,) = tables(3, 1, rounds=12)
    with Journal(tmp_path / "a.journal", header(), 5.0, run_id="run", clock=lambda: now[0]) as journal:
        for row in range(table.num_rows):
            journal.append("request-0", table.slice(row, 1))
            now[0] += 1.0
    assert synced == [0.0, 0.0, 5.0, 10.0, 13.0]


def test_an_existing_journal_is_refused(tmp_path: Path) -> None:
    keep(tmp_path / "run.journal", tables(4, 1), 0)
    with pytest.raises(errors.OutputExists):
        Journal(tmp_path / "run.journal", header(), run_id="run")
    with pytest.raises(errors.FolderNotWritable):
        Journal(tmp_path / "missing" / "run.journal", header(), run_id="run")


def test_other_columns_are_refused(tmp_path: Path) -> None:
    (table,) = tables(4, 1)
    with (
        Journal(tmp_path / "run.journal", header(), run_id="run") as journal,
        pytest.raises(errors.SchemaRefused, match="x_mine"),
    ):
        journal.append("a", table.append_column("x_mine", pa.array([1] * table.num_rows)))


def test_an_empty_append_closes_nothing(tmp_path: Path) -> None:
    (table,) = tables(4, 1)
    with Journal(tmp_path / "run.journal", header(), run_id="run") as journal:
        journal.append("request-0", table.slice(0, 1))
        journal.append("request-0", table.slice(0, 0))
    assert list(read_journal(tmp_path / "run.journal").open) == ["request-0"]


def test_a_journal_goes_when_the_file_is_there(tmp_path: Path) -> None:
    output = tmp_path / "run.parquet"
    assert journal_path(output) == tmp_path / "run.journal"
    journal = Journal(journal_path(output), header(), run_id="run")
    with DraftFileWriter(output, header(), run_id="run") as writer:
        writer.write_request(tables(4, 1)[0])
        writer.finish(journal=journal)
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_recover_writes_what_was_closed_and_what_was_open(tmp_path: Path) -> None:
    parts = tables(5, 2)
    keep(tmp_path / "run.journal", parts, 1)
    found = recover(tmp_path / "run.parquet")
    assert (found.closed, found.interrupted, found.lost) == (1, ("request-1",), False)
    file = open_draft_file(tmp_path / "run.parquet")
    assert (file.run_status, file.run_id, file.lost) == ("recovered", "run", None)
    (table,) = file.tables()
    assert table.equals(pa.concat_tables([parts[0], mark_interrupted(parts[1])]).combine_chunks())
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize("dense", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("closed", [0, 1])
def test_a_request_that_was_cut_off_has_all_its_dense_rows_or_none(
    tmp_path: Path, dense: int, closed: int
) -> None:
    (table,) = tables(8, 1, dense=dense)
    keep(tmp_path / "run.journal", [table], closed)
    found = recover(tmp_path / "run.parquet")
    tokens = sum(emitted or 0 for emitted in table["emitted"].to_pylist())
    assert tokens == 7
    partial = not closed and dense not in (0, tokens - 1)
    assert found.dense_left_out == (("request-0",) if partial else ())
    (kept,) = open_draft_file(tmp_path / "run.parquet").tables()
    assert kept["kind"].to_pylist().count(1) == (0 if partial else dense)
    assert len(kept) == len(table) - (dense if partial else 0)


def test_the_last_round_of_an_open_request_is_marked() -> None:
    table = request(np.random.default_rng(8), "a", rounds=3, dense=2).table()
    reasons = ["none", "none", "none", "none", None, None]
    plain = table.set_column(table.column_names.index("truncated_by"), "truncated_by", pa.array(reasons))
    assert mark_interrupted(plain)["truncated_by"].to_pylist() == [*reasons[:3], "interrupted", None, None]


def test_recover_says_what_was_lost_and_keeps_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    sizes = keep(path, tables(5, 2), 0)
    path.write_bytes(path.read_bytes()[: sizes[-1] - 100])
    found = recover(path)
    assert found.lost
    assert found.torn_bytes == sizes[-1] - 100 - sizes[-2]
    assert open_draft_file(tmp_path / "run.parquet").lost == {"dropped": {}, "torn_bytes": found.torn_bytes}
    assert path.exists()


def test_the_valid_file_of_the_same_run_wins(tmp_path: Path) -> None:
    keep(tmp_path / "run.journal", tables(6, 1), 1)
    first = write(tmp_path / "run.parquet", tables(7, 2))
    found = recover(tmp_path / "run.journal")
    assert (found.already_complete, found.lost, found.content_digest) == (True, False, first.content_digest)
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_the_file_of_another_run_is_not_replaced(tmp_path: Path) -> None:
    keep(tmp_path / "run.journal", tables(6, 1), 1)
    first = write(tmp_path / "run.parquet", tables(7, 2), run_id="older")
    with pytest.raises(errors.OutputExists):
        recover(tmp_path / "run.journal")
    found = recover(tmp_path / "run.journal", tmp_path / "saved.parquet")
    assert open_draft_file(tmp_path / "run.parquet").content_digest == first.content_digest
    assert found.path == tmp_path / "saved.parquet"
    assert (tmp_path / "run.journal").exists()


@pytest.mark.parametrize(
    "output", [None, "run.parquet", "sub/../run.parquet", "saved.parquet", "sub/run.parquet"]
)
@pytest.mark.parametrize("torn", [0, 100])
@pytest.mark.parametrize("closed", [0, 1])
def test_a_journal_goes_only_when_all_of_it_is_in_its_own_output(
    tmp_path: Path, output: str | None, torn: int, closed: int
) -> None:
    path, own = tmp_path / "run.journal", tmp_path / "run.parquet"
    (tmp_path / "sub").mkdir()
    keep(path, tables(5, 2), closed)
    before = path.read_bytes()[: -torn or None]
    path.write_bytes(before)
    found = recover(path, output and tmp_path / output)
    assert found.lost == bool(torn)
    kept = bool(torn) or not own.exists()
    assert found.journal == (path if kept else None)
    assert path.exists() == kept
    assert not kept or path.read_bytes() == before
    assert find_earlier(own) is not None


def test_what_was_recovered_elsewhere_may_be_recovered_again(tmp_path: Path) -> None:
    keep(tmp_path / "run.journal", tables(5, 2), 1)
    saved = recover(tmp_path / "run.journal", tmp_path / "saved.parquet")
    assert recover(tmp_path / "run.journal").content_digest == saved.content_digest
    assert not (tmp_path / "run.journal").exists()


@pytest.mark.parametrize("output", [None, "saved.parquet"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_running_recording_is_left_alone(tmp_path: Path, output: str | None, begun: bool) -> None:
    keep(tmp_path / "run.journal", tables(6, 1), 0)
    if not begun:
        (tmp_path / "run.journal").write_bytes(b"")
    with (
        DraftFileWriter(tmp_path / "run.parquet", header(), run_id="run"),
        pytest.raises(errors.OutputBusy),
    ):
        recover(tmp_path / "run.journal", output and tmp_path / output)
    assert (tmp_path / "run.journal").exists()


@pytest.mark.parametrize("output", [None, "saved.parquet"])
def test_a_journal_is_read_only_once_nobody_can_write_it(
    tmp_path: Path, output: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rounds that its recording adds meanwhile would pass for a torn end."""
    keep(tmp_path / "run.journal", tables(5, 2), 1)
    refused: list[bool] = []

    def opened(path: Path) -> JournalReader:
        with pytest.raises(errors.OutputBusy):
            DraftFileWriter(tmp_path / "run.parquet", header(), run_id="run")
        refused.append(True)
        return open_journal(path)

    monkeypatch.setattr("dflash.draftfile.recover.open_journal", opened)
    recover(tmp_path / "run.journal", output and tmp_path / output)
    assert refused


def test_a_request_with_damaged_rows_is_left_out_by_name(tmp_path: Path) -> None:
    good, bad = tables(9, 2, rounds=3)
    with Journal(tmp_path / "run.journal", header(), run_id="run") as journal:
        journal.append("request-0", good)
        journal.append("request-1", pa.concat_tables([bad.slice(0, 1), bad.slice(2)]))
    found = recover(tmp_path / "run.journal")
    assert found.lost
    assert list(found.dropped) == ["request-1"]
    assert found.requests == 1


def test_rows_under_another_name_are_left_out(tmp_path: Path) -> None:
    first, second = tables(9, 2)
    with Journal(tmp_path / "run.journal", header(), run_id="run") as journal:
        journal.append("request-0", first)
        journal.append("request-7", second)
    found = recover(tmp_path / "run.journal")
    assert (found.interrupted, list(found.dropped)) == (("request-0",), ["request-7"])


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, errors.FileMissing), (b"", errors.JournalEmpty), (b"hello, world" * 9, errors.JournalUnreadable)],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes | None, error: type[Exception]) -> None:
    if content is not None:
        (tmp_path / "run.journal").write_bytes(content)
    for output in (None, tmp_path / "saved.parquet"):
        with pytest.raises(error, match="journal"):
            recover(tmp_path / "run.journal", output)
    assert not list(tmp_path.glob("*.lock"))


def test_what_was_recovered_already_is_said_to_be(tmp_path: Path) -> None:
    keep(tmp_path / "run.journal", tables(4, 2), 0)
    recover(tmp_path / "run.journal")
    for path in (tmp_path / "run.journal", tmp_path / "run.parquet"):
        with pytest.raises(errors.JournalGone, match=r"run.parquet does: .* recovered already"):
            recover(path)
    (tmp_path / "run.parquet").write_text("no draft file")
    with pytest.raises(errors.FileMissing, match="expected the journal"):
        recover(tmp_path / "run.parquet")


def test_nobody_is_sent_to_recover_what_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.touch()
    for refuse in (refuse_journal, lambda path: Journal(path, header(), run_id="run")):
        with pytest.raises(errors.EmptyJournalExists, match="nothing to recover") as told:
            refuse(path)
        assert "dflash recover" not in str(told.value)
    keep(tmp_path / "full.journal", tables(4, 1), 0)
    with pytest.raises(errors.JournalExists, match="`dflash recover"):
        refuse_journal(tmp_path / "full.journal")
    refuse_journal(tmp_path / "none.journal")


def test_a_flipped_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    keep(path, tables(1, 1), 1)
    path.write_bytes(path.read_bytes().replace(b'"lanes":1', b'"lanes":2'))
    with pytest.raises(errors.SealBroken):
        open_journal(path)


RECORDER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from sample_drafts import header, tables
from dflash.draftfile.journal import Journal
journal = Journal(Path(sys.argv[2]), header(), run_id="run")
for number, table in enumerate(tables(0, 20)):
    for row in range(table.num_rows):
        journal.append(f"request-{number}", table.slice(row, 1))
        print(number, row, flush=True)
    journal.close_request(f"request-{number}")
"""


def test_ten_kills_lose_nothing_that_was_written(tmp_path: Path) -> None:
    for rounds in range(1, 11):
        path = tmp_path / f"{rounds}.journal"
        words = [sys.executable, "-c", RECORDER, str(Path(__file__).parent), str(path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(rounds * 3)]
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
        number, row = map(int, [line for line in said if line.endswith("\n")][-1].split())
        wanted = sum(table.num_rows for table in tables(0, number)) + row + 1
        found = recover(path)
        assert found.rows in (wanted, wanted + 1)
        assert found.lost == (found.torn_bytes > 0)


def test_features_are_journaled_too(tmp_path: Path) -> None:
    (table,) = tables(3, 1, features=True)
    head = header(features={"mode": "all", "encoding": "bf16"})
    with Journal(tmp_path / "run.journal", head, run_id="run") as journal:
        journal.append("request-0", table)
        journal.close_request("request-0")
    recover(tmp_path / "run.journal")
    file = open_draft_file(tmp_path / "run.parquet")
    assert file.capabilities == ("features",)
    assert next(file.tables()).equals(table)
