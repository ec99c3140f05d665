"""A recorder in a process of its own has nothing left to start once decoding begins, or says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recordings import requests_of

from dflash.bench.handover import measure
from dflash.bench.handover_rows import Case
from dflash.cli.main import run
from dflash.engine.loop import Engine
from dflash.engine.recorder import process
from dflash.engine.recorder.process import ProcessRecorder

LINES = [{"prompt": "one two one two"}, {"prompt": "four", "temperature": 0.7}]


@pytest.fixture
def dflash(tiny_folder, in_folder, capfd):
    """dflash(*words) -> (exit code, JSON document or None, stderr) of `record` on the lines."""
    (in_folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))

    def call(*words):
        base = ["--target", str(tiny_folder), "--max-new-tokens", "12", "--prompts", "p.jsonl", "--json"]
        code = run(["record", *base, *words])
        out, err = capfd.readouterr()
        return code, json.loads(out) if out else None, err

    return call


# tells a file of every module that is loaded once it has said that it is ready
LOADS = """
import os, sys
import dflash.engine.recorder.child as child
reply, ready = child.RecorderChild.reply, []
def told(self, kind, *words):
    ready.append(kind)
    reply(self, kind, *words)
def hook(event, given):
    if ready and event == "import" and given[0] not in sys.modules:
        os.write(2, f"late import of {given[0]}\\n".encode())
child.RecorderChild.reply = told
sys.addaudithook(hook)
"""


@pytest.mark.parametrize(
    "words", [(), ("--features", "all"), ("--dense", "--drafter", "self")], ids=["chain", "features", "dense"]
)
def test_decoding_begins_once_the_recorder_has_nothing_left_to_start(dflash, in_folder, monkeypatch, words):
    """Files are open, the ring's pages made, and the child loads nothing more, whatever is recorded."""
    monkeypatch.setattr(process, "PROGRAM", LOADS + process.PROGRAM)
    opened, states = ProcessRecorder.opened, []

    def begun(self, lane):
        making = self._ring._making
        states.append((Path("run.journal").exists(), making is None or not making._thread.is_alive()))
        opened(self, lane)

    monkeypatch.setattr(ProcessRecorder, "opened", begun)
    code, _, err = dflash("-o", "run.parquet", "--recorder", "process", *words)
    assert code == 0
    assert set(states) == {(True, True)}
    assert "late import" not in err
    assert dflash("-o", "whole.parquet", "--recorder", "inline", *words)[0] == 0
    assert requests_of(in_folder / "run.parquet") == requests_of(in_folder / "whole.parquet")


def test_rows_of_device_rounds_find_what_makes_them_loaded(in_folder, monkeypatch, capfd):
    monkeypatch.setattr(process, "PROGRAM", LOADS + process.PROGRAM)
    assert measure(Case(2, 2, 7, 4, 8, "int8")).rows > 0
    assert "late import" not in capfd.readouterr().err


OPENING = "import dflash.engine.recorder.child as c; "
STARTS = {
    "not at all": ("raise SystemExit(3)\n", "ended with 3; it had not started"),
    "killed": ("import os; os.kill(os.getpid(), 9)\n", "killed by signal 9; it had not started"),
    "killed opening": (
        OPENING + "import os; c.open_here = lambda *given, **more: os._exit(4)\n",
        "ended with 4; it had not started",
    ),
    "fault opening": (
        OPENING + "c.open_here = lambda *given, **more: 1 / 0\n",
        "ZeroDivisionError in the process that records",
    ),
    "fault loading": (
        OPENING + "c.rehearse = lambda: 1 / 0\n",
        "ZeroDivisionError in the process that records",
    ),
    "refused": (
        OPENING + "from pathlib import Path; Path('run.parquet').write_text('')\n",
        "run.parquet exists already",
    ),
}


# there, it is gone on with what would be refused
@pytest.mark.parametrize(
    ("start", "resume"),
    [(start, resume) for start in STARTS for resume in (False, True) if (start, resume) != ("refused", True)],
)
def test_a_recorder_that_does_not_start_says_so_before_anything_is_decoded(
    dflash, in_folder, monkeypatch, start, resume
):
    program, told = STARTS[start]
    monkeypatch.setattr(process, "PROGRAM", program + process.PROGRAM)
    decoded, run_engine = [], Engine.run

    def running(self, *given, **more):
        decoded.append(1)
        return run_engine(self, *given, **more)

    monkeypatch.setattr(Engine, "run", running)
    words = ("-o", "run.parquet", "--recorder", "process", *(["--resume"] if resume else []))
    code, document, err = dflash(*words)
    assert (code, document, decoded) == (2, None, [])
    assert told in err
    assert "recover" not in err
    assert {path.name for path in in_folder.iterdir()} <= {"p.jsonl", "run.parquet"}
