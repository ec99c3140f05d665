"""A recorder that is killed at any moment: what it had closed comes back bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recordings import requests_of

from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file

# loads once, then forks a recorder for every line of words on stdin; its log has a line for each request that
# it has closed, and one for each open request whose rounds it has synced
NURSERY = """
import json, os, sys, torch, transformers
from pathlib import Path
torch.set_num_threads(1)
import dflash.cli.record_run
from dflash.cli.main import run
from dflash.engine.recorder.recorder import Recorder
from dflash.engine.recorder.process import ProcessRecorder
from dflash.target.load import load_target
target = load_target(sys.argv[1])
dflash.cli.record_run._load = lambda options: target
sync = Recorder.sync

for line in sys.stdin:
    folder, words = json.loads(line)
    child = os.fork()
    if child:
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def logging(closed):
        def logged(self, lane):
            closed(self, lane)
            os.write(log, f"closed {lane.request.request_id} 0\\n".encode())

        return logged

    def synced(self):
        sync(self)
        for request in self._open.values():
            os.write(log, f"synced {request.request_id} {request.journaled}\\n".encode())

    for kind in (Recorder, ProcessRecorder):
        kind.closed = logging(kind.closed)
    Recorder.sync = synced
    os.dup2(os.open("talk", os.O_WRONLY | os.O_CREAT), 2)
    os._exit(run(words))
"""
PROMPTS = "".join(
    json.dumps(
        {"prompt": f"Tell me about number {number % 40}.", "max_new_tokens": 40 if number % 9 == 0 else 5}
    )
    + "\n"
    for number in range(150)
)


class Nursery:
    """Records in processes that can be killed."""

    def __init__(self, process: subprocess.Popen[str], words: list[str]) -> None:
        self.process, self.words = process, words

    def start(self, folder: Path, *words: str) -> int:
        """Starts a recorder in a folder; returns its process id."""
        folder.mkdir(exist_ok=True)
        (folder / "p.jsonl").write_text(PROMPTS)
        print(json.dumps([str(folder), [*self.words, *words]]), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def end(self) -> int:
        """Waits for it; returns its wait status."""
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def nursery(tiny_folder):
    words = ["record", "--target", str(tiny_folder), "--prompts", "p.jsonl", "-o", "run.parquet"]
    words += ["--sync-seconds", "0.2", "--length", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(tiny_folder)], env=environment, **pipes
    ) as process:
        yield Nursery(process, words)
        process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(nursery, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    nursery.start(folder)
    assert nursery.end() == 0
    return folder / "run.parquet"


def kill_sometime(nursery, folder, chance, after, *words, most=40):
    """Kills a recorder some time after the log says `after`; returns the lines of the log."""
    child = nursery.start(folder, *words)
    log, wanted = folder / "log", chance.randrange(1, 3 if after == "synced" else most)
    log.touch()
    deadline = time.monotonic() + 60
    while log.read_text().count(after) < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(chance.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    assert nursery.end() == signal.SIGKILL
    return [line.split() for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_ten_kills_lose_nothing_that_was_closed_or_synced(nursery, undisturbed, tmp_path, monkeypatch, capfd):
    whole, chance = requests_of(undisturbed), random.Random(11)
    for number in range(10):
        folder = tmp_path / str(number)
        said = kill_sometime(nursery, folder, chance, ("closed", "closed", "synced")[number % 3])
        monkeypatch.chdir(folder)
        capfd.readouterr()
        code = run(["recover", "run.journal", "--json"])
        told = json.loads(capfd.readouterr().out)
        assert code == (3 if told["torn_bytes"] else 0)
        assert not told["dropped"]
        assert (folder / "run.journal").exists() == bool(told["torn_bytes"])
        saved, still_open = requests_of(folder / "run.parquet"), set(told["interrupted"])
        assert len(saved) == told["closed"] + len(still_open)
        for kind, name, rows in said:
            assert len(saved[name]) >= int(rows)
            assert kind == "synced" or name not in still_open
        for name, rows in saved.items():
            if name in still_open:
                # its last round may have been synced a moment before it was closed
                live = whole[name][len(rows) - 1]["truncated_by"]
                assert rows[-1]["truncated_by"] == ("interrupted" if live == "none" else live)
                rows[-1]["truncated_by"] = live
            assert rows == whole[name][: len(rows)]
            assert name in still_open or len(rows) == len(whole[name])
        assert open_draft_file(folder / "run.parquet").run_status == "recovered"
        assert run(["doctor", "--deep", "run.parquet"]) == 0


@pytest.mark.slow
def test_what_was_handed_to_a_recording_process_outlives_the_one_that_decodes(
    nursery, undisturbed, tmp_path, monkeypatch, capfd
):
    whole, chance = requests_of(undisturbed), random.Random(3)
    for number in range(3):
        folder = tmp_path / str(number)
        said = kill_sometime(nursery, folder, chance, "closed", "--recorder", "process")
        monkeypatch.chdir(folder)
        code, told, deadline = 1, "being written", time.monotonic() + 60
        # the recording process takes a moment to start, and to write what it was handed
        while "being written" in told or "does not exist" in told:
            assert time.monotonic() < deadline
            code = run(["recover", "run.journal"])
            told = capfd.readouterr().err
        assert code == 0, told
        saved = requests_of(folder / "run.parquet")
        closed = {name for _, name, _ in said}
        assert {name: saved[name] for name in closed} == {name: whole[name] for name in closed}
        for name, rows in saved.items():
            assert rows[:-1] == whole[name][: len(rows) - 1]
        assert not list(folder.glob("*.partial"))


@pytest.mark.slow
def test_kills_and_resumes_end_in_the_file_of_an_undisturbed_run(nursery, undisturbed, tmp_path):
    chance = random.Random(5)
    for wanted in ("closed", "synced", "closed"):
        (tmp_path / "log").unlink(missing_ok=True)
        kill_sometime(nursery, tmp_path, chance, wanted, "--resume", most=12)
    nursery.start(tmp_path, "--resume")
    assert nursery.end() == 0
    found, whole = open_draft_file(tmp_path / "run.parquet"), open_draft_file(undisturbed)
    assert found.content_digest == whole.content_digest
    assert found.run_status == "finished"
    assert list(requests_of(found.path)) == list(requests_of(whole.path))
    assert not list(tmp_path.glob("*.journal*"))
