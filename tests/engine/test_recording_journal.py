"""The journal of a recording: what it holds while rounds come in, and what is left when a run breaks off."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from recordings import requests_of

from dflash.cli.main import run
from dflash.draftfile.errors import OpenError
from dflash.draftfile.journal import Journal, journal_path
from dflash.draftfile.journal_reader import read_journal
from dflash.draftfile.recover import recover
from dflash.target.model import TrunkModel


@pytest.fixture
def record_words(tiny_folder, in_folder, capfd):
    """record_words(*words) -> (exit code, stderr) of `dflash record -o run.parquet` with the tiny target."""

    def call(*words):
        code = run(["record", "--target", str(tiny_folder), "-o", "run.parquet", *map(str, words)])
        return code, capfd.readouterr().err

    return call


@pytest.mark.parametrize("sync_seconds", [1e-9, 1e9])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_however_often_it_is_synced_it_holds_the_whole_file(
    tiny, record, tmp_path, monkeypatch, sync_seconds, dense, lanes
):
    monkeypatch.setattr(Journal, "delete", Journal.close)
    path = tmp_path / "run.parquet"
    settings = {"dense": dense, "lanes": lanes, "sync_seconds": sync_seconds, "max_new_tokens": 12}
    record(tiny, ["one", "two", "three"], path=path, **settings)
    found = recover(journal_path(path).rename(tmp_path / "other.journal"))
    assert (found.closed, found.interrupted, found.lost) == (3, (), False)
    assert requests_of(found.path) == requests_of(path)


def test_a_finished_recording_leaves_no_journal(record_words, in_folder):
    assert record_words("hello", "--max-new-tokens", 3)[0] == 0
    assert [path.name for path in in_folder.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_other_sync_seconds_are_refused(record_words, seconds):
    code, err = record_words("hello", "--sync-seconds", seconds)
    assert code == 2
    assert "finite number > 0" in err


def broken_after(monkeypatch, calls, error):
    """Makes the target fail when it has scored `calls` trees."""
    left, score = [calls], TrunkModel.score

    def failing(self, *arguments):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return score(self, *arguments)

    monkeypatch.setattr(TrunkModel, "score", failing)


FAILURES = [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("odd")]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_run_that_breaks_off_keeps_its_journal_and_says_how_to_go_on(
    record_words, in_folder, monkeypatch, error
):
    (in_folder / "p.txt").write_text("one\ntwo\nthree\n")
    words = ["--prompts", "p.txt", "--max-new-tokens", 12, "--drafter", "none"]
    with monkeypatch.context() as patch:
        broken_after(patch, 15, error)
        code, err = record_words(*words)
    assert code == 2
    assert "`dflash recover run.journal`" in err
    assert "--resume" in err
    assert not (in_folder / "run.parquet").exists()
    code, err = record_words(*words)
    assert code == 2
    assert all(told in err for told in ("`dflash recover run.journal`", "--resume", "--overwrite"))
    assert run(["recover", "run.journal"]) == 0
    saved = requests_of(in_folder / "run.parquet")
    assert run(["doctor", "--deep", "run.parquet"]) == 0
    assert record_words(*words, "--overwrite")[0] == 0
    whole = requests_of(in_folder / "run.parquet")
    assert list(saved) == ["0", "1"]
    assert saved["0"] == whole["0"]
    *before, last = saved["1"]
    assert last["truncated_by"] == "interrupted"
    assert [*before, {**last, "truncated_by": "none"}] == whole["1"][: len(saved["1"])]
    # the target's self-test scores one tree, the first request eleven
    assert len(saved["1"]) == 1 + 15 - 1 - 11


def test_a_run_that_breaks_off_at_once_leaves_nothing(record_words, in_folder, monkeypatch):
    def failing(self, *arguments):
        raise MemoryError

    monkeypatch.setattr("dflash.engine.loop.Engine._prefill", failing)
    code, err = record_words("hello")
    assert code == 2
    assert "recover" not in err
    assert not list(in_folder.iterdir())


def test_overwrite_throws_a_journal_away(record_words, in_folder):
    (in_folder / "run.journal").write_text("an older one")
    assert record_words("hello", "--max-new-tokens", 3)[0] == 2
    assert record_words("hello", "--max-new-tokens", 3, "--overwrite")[0] == 0
    assert [path.name for path in in_folder.iterdir()] == ["run.parquet"]


def test_a_full_disk_ends_the_run_and_what_was_written_before_is_saved(record_words, in_folder, monkeypatch):
    write = Journal._write

    def failing(self, *given):
        if self.batches == 5:
            self._file.write(b"\xff\xff\xff\xff torn")
            self._broken = True
        write(self, *given)

    (in_folder / "p.txt").write_text("one\ntwo\nthree\nfour\n")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", failing)
        code, err = record_words("--prompts", "p.txt", "--max-new-tokens", 3)
    assert code == 2
    assert "run.journal failed" in err
    assert "`dflash recover run.journal`" in err
    assert run(["recover", "run.journal"]) == 3
    assert list(requests_of(in_folder / "run.parquet")) == ["0", "1", "2"]


def test_a_request_is_on_disk_while_the_next_prompt_is_awaited(record_words, in_folder, monkeypatch):
    source, sink = os.pipe()
    synced: list[float] = []
    sync = Journal.sync
    monkeypatch.setattr(Journal, "sync", lambda journal: (sync(journal), synced.append(time.monotonic()))[0])
    found = []

    def person():
        with os.fdopen(sink, "w") as typing:
            for line in ("first", "second"):
                before = len(synced)
                print(line, file=typing, flush=True)
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and not (
                    len(synced) > before and found_closed() > len(found)
                ):
                    time.sleep(0.05)
                found.append(found_closed())

    def found_closed():
        try:
            return len(read_journal(in_folder / "run.journal").closed)
        except OpenError:
            return 0

    writer = threading.Thread(target=person)
    with os.fdopen(source, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        writer.start()
        code, _ = record_words("--prompts", "-", "--max-new-tokens", 3, "--sync-seconds", 1e6)
        writer.join()
    assert code == 0
    assert found == [1, 2]
