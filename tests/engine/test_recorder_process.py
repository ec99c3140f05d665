"""A recorder in a process of its own: the same file, the same errors, and nothing lost if either one ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from recordings import requests_of

from dflash.bench.handover_rows import prefill_row
from dflash.bench.replay_files import Made, header
from dflash.cli import record_run
from dflash.cli.main import run
from dflash.draftfile.rows import Ragged
from dflash.engine.lane import Lane
from dflash.engine.metrics import Metrics
from dflash.engine.output import Part, RecorderPlan
from dflash.engine.recorder import process
from dflash.engine.recorder.child import PATIENCE
from dflash.engine.recorder.process import ProcessRecorder
from dflash.engine.recorder.ring import RingWriter
from dflash.engine.recorder.unmade import Unmade
from dflash.engine.request import Request
from dflash.target.sampling import Sampling

LINES = [
    {"prompt": "one two one two"},
    {"turns": ["two", "and then?"]},
    {"prompt": "four", "temperature": 0.7},
    {"prompt": "five"},
]


@pytest.fixture
def dflash(tiny_folder, in_folder, capfd):
    """dflash(*words) -> (exit code, JSON document or None, stderr) of `record` on the lines."""
    (in_folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))

    def call(*words):
        base = ["--target", str(tiny_folder), "--max-new-tokens", "12", "--prompts", "p.jsonl", "--json"]
        code = run(["record", *base, *map(str, words)])
        out, err = capfd.readouterr()
        return code, json.loads(out) if out else None, err

    return call


@pytest.mark.parametrize(
    "words",
    [
        ["--lanes", "2", "--temperature", "0.8", "--drafter", "self"],
        ["--dense", "--features", "all", "--no-text", "--sync-seconds", "0.001"],
    ],
    ids=["lanes", "dense"],
)
def test_the_file_is_the_one_of_a_recorder_in_the_same_process(dflash, in_folder, monkeypatch, words):
    """And the child needs no torch for it, with which it would start late and large."""
    monkeypatch.setattr(process, "capacity_for", lambda *_: 50_000)
    light = "; import sys; sys.exit('torch' in sys.modules)"
    monkeypatch.setattr(process, "PROGRAM", process.PROGRAM + light)
    codes, close = [], ProcessRecorder.close
    monkeypatch.setattr(
        ProcessRecorder, "close", lambda self: (close(self), codes.append(self._process.returncode))
    )
    documents = []
    for place in ("inline", "process"):
        code, document, _ = dflash("-o", f"{place}.parquet", "--recorder", place, *words)
        assert code == 0
        documents.append(document)
    for name in documents[0].keys() - {
        "file",
        "seconds",
        "tokens_per_second",
        "blocked_seconds",
        "bytes",
        "memory",
    }:
        assert documents[0][name] == documents[1][name], name
    assert codes == [0]
    assert {path.suffix for path in in_folder.iterdir()} == {".parquet", ".jsonl"}


def test_a_recorder_that_falls_behind_holds_decoding_up_and_this_is_said(dflash, in_folder, monkeypatch):
    monkeypatch.setattr(process, "capacity_for", lambda *_: 20_000)
    start = ProcessRecorder.await_start

    def stopped(self):
        start(self)
        os.kill(self._process.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (self._process.pid, signal.SIGCONT)).start()

    monkeypatch.setattr(ProcessRecorder, "await_start", stopped)
    code, document, err = dflash("-o", "run.parquet", "--recorder", "process")
    assert (code, document["requests"]) == (0, 5)
    waited = f"decoding waited {document['blocked_seconds']:.2f} s for the recorder, which fell behind"
    assert document["blocked_seconds"] > 0.1
    assert waited in err
    assert (record_run._waited(document), record_run._waited({"blocked_seconds": 0.0})) == (waited, "")


def test_what_was_said_to_a_recorder_that_had_not_started_outlives_who_said_it(in_folder, monkeypatch):
    patient = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    monkeypatch.setattr(process, "PROGRAM", patient + process.PROGRAM)
    facts = header(Made(1, dense=True, length=3)) | {"store_topk": 16, "dense": False}
    facts["features"] = {"mode": "fingerprint", "hidden": 4, "taps": []}
    plan = RecorderPlan(Path("run.parquet"), facts, Part("made", 0, 1), 5.0, False, False, True, True)
    recorder = ProcessRecorder(plan)
    recorder.begin()
    for order in range(3):
        request = Request(str(order), [5, 6], "hi", Sampling(0.0), 0, 1, order=order)
        lane = Lane.start(0, request, frozenset(), None, None)
        recorder.opened(lane)
        recorder.row(lane, {**prefill_row(request), "truncated_by": "length"})
        recorder.closed(lane)
    # as the system does when a process is killed
    recorder._ring.close()
    os.close(recorder._replies)
    (in_folder / "go").touch()
    assert recorder._process.wait(60) == 0
    assert run(["recover", "run.journal"]) == 0
    assert list(requests_of(in_folder / "run.parquet")) == ["0", "1", "2"]


@pytest.mark.parametrize("before", [0, 1], ids=["unread", "half-read"])
@pytest.mark.parametrize("call", ["finish", "take_kept", "begin", "await_start"])
def test_a_reply_that_is_not_waited_for_any_more_is_none_to_a_later_call(
    in_folder, monkeypatch, call, before
):
    """Ctrl-C may end any wait; the journal is left, or the file is there."""
    facts = header(Made(1, dense=True, length=3)) | {"store_topk": 16, "dense": False}
    facts["features"] = {"mode": "fingerprint", "hidden": 4, "taps": []}
    resume = call == "begin"
    plan = RecorderPlan(Path("run.parquet"), facts, Part("made", 0, 1), 5.0, False, resume, True, True)
    recorder, read, left = ProcessRecorder(plan), os.read, [before]

    def broken_off(descriptor, size):
        if descriptor == recorder._replies:
            left[0] -= 1
            if left[0] < 0:
                monkeypatch.setattr(os, "read", read)
                raise KeyboardInterrupt
        return read(descriptor, size)

    request = Request("one", [5, 6], "hi", Sampling(0.0), 0, 1)
    calls = {
        "begin": recorder.begin,
        "await_start": recorder.await_start,
        "finish": recorder.finish,
        "take_kept": partial(recorder.take_kept, request),
    }
    if call != "begin":
        recorder.begin()
    if call not in ("begin", "await_start"):
        recorder.await_start()
        lane = Lane.start(0, request, frozenset(), None, None)
        recorder.opened(lane)
        recorder.row(lane, {**prefill_row(request), "truncated_by": "length"})
        recorder.closed(lane)
        recorder.ended(0)
    monkeypatch.setattr(os, "read", broken_off)
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    found = recorder.leave()
    recorder.close()
    assert found == (Path("run.journal") if call == "take_kept" else None)
    assert recorder._process.returncode == 0
    assert Path("run.parquet").exists() == (call == "finish")
    assert Path("run.journal").exists() == (call == "take_kept")


def test_while_it_decodes_a_process_opens_no_file_and_says_each_thing_once(dflash, monkeypatch):
    """Identities, journal and file are the recorder's, or were known before."""
    monkeypatch.setattr(ProcessRecorder, "sync", lambda self: None)
    opened, finish, put = ProcessRecorder.opened, ProcessRecorder.finish, RingWriter.put
    events, watching, said = [], [], []

    def watch(event, given):
        if watching and event in ("open", "import", "subprocess.Popen"):
            events.append((event, given))

    def begun(self, lane):
        watching.append(True)
        opened(self, lane)

    def over(self, *given):
        watching.clear()
        return finish(self, *given)

    sys.addaudithook(watch)
    words = ("--recorder", "process", "--drafter", "suffix")
    assert dflash("-o", "before.parquet", *words)[0] == 0
    for name, call in (("opened", begun), ("finish", over)):
        monkeypatch.setattr(ProcessRecorder, name, call)
    monkeypatch.setattr(
        RingWriter, "put", lambda self, *parts, **more: (said.append(1), put(self, *parts, **more))
    )
    code, document, _ = dflash("-o", "run.parquet", *words)
    assert (code, events) == (0, [])
    # first rows and rounds, the start and end of every request, the end of every prompt, open and finish
    rounds, requests = document["rounds"], document["requests"]
    assert len(said) == rounds + 3 * requests + len(LINES) + 2


class Lately:
    """What an engine that hands over rows unmade would pickle: it gives columns for arrays."""

    def columns(self, parts, order=None):
        rows = [row for part in parts for row in part]
        rows = rows if order is None else [rows[place] for place in order]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: self.column([row.get(name) for row in rows]) for name in names}

    def column(self, values):
        if all(type(value) is np.ndarray for value in values):
            return Ragged(np.concatenate(values), np.array([len(value) for value in values]))
        return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]

    def counted(self, rows):
        names = ("kind", "emitted", "draft_length", "branches", "step", "draft_us", "verify_us")
        found = {name: np.array([row[name] for row in rows]) for name in names}
        lengths = {"nodes": "node_token", "accepted": "accepted_nodes"}
        return found | {
            name: np.array([len(row[column]) for row in rows]) for name, column in lengths.items()
        }


@pytest.mark.parametrize("words", [(), ("--lanes", "2"), ("--dense",)], ids=["lane", "lanes", "dense"])
@pytest.mark.parametrize("place", ["inline", "process"])
def test_rows_that_are_made_where_they_are_recorded_are_the_same(
    dflash, in_folder, monkeypatch, place, words
):
    """The engine hands over live rows, some together and some alone, as what they are made of."""
    assert dflash("-o", "whole.parquet", "--metrics", "whole.prom", *words)[0] == 0
    row, maker = Metrics.row, Lately()

    def unmade(self, lane, found):
        if found["kind"] != 0 or found["round"] % 3 == 2:
            return row(self, lane, found)
        self.unmade({lane.index: lane}, Unmade.now(np.array([lane.index]), maker, (found,), 100))

    monkeypatch.setattr(Metrics, "row", unmade)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert dflash("-o", "run.parquet", "--recorder", place, "--metrics", "run.prom", *words)[0] == 0
    assert requests_of(in_folder / "run.parquet") == requests_of(in_folder / "whole.parquet")
    counted = [
        [
            line
            for line in (in_folder / name).read_text().splitlines()
            if re.search("nodes|rounds|tokens", line)
        ]
        for name in ("run.prom", "whole.prom")
    ]
    assert counted[0] == counted[1]


def at_row(monkeypatch, number, act):
    """Calls act(recorder) in the decoding process before it hands over a certain row."""
    left, row = [number], ProcessRecorder.row

    def counted(self, lane, found):
        left[0] -= 1
        if left[0] == 0:
            act(self)
        row(self, lane, found)

    monkeypatch.setattr(ProcessRecorder, "row", counted)


def interrupt(recorder):
    raise KeyboardInterrupt


def out_of_memory(recorder):
    raise MemoryError


def kill(recorder):
    """Once it has taken all, and has had time to write it."""
    while recorder.pressure.rows:
        time.sleep(0.01)
    time.sleep(2 * PATIENCE)
    os.kill(recorder._process.pid, signal.SIGKILL)
    recorder._process.wait()


# a request at a time, the first of which fits
SMALL_DISK = (
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); "
    "import dflash.engine.recorder.child as c; c.PATIENCE = 0.0; "
)
FAULT = "import dflash.engine.recorder.recorder as r; r.Recorder.closed = lambda self, lane: 1 / 0; "
ENDS = {
    "interrupted": (interrupt, None, 130, "interrupted"),
    "out of memory": (out_of_memory, None, 2, "Memory ran out with 1 lane"),
    "recorder killed": (kill, None, 2, "was killed by signal 9"),
    "disk full": (None, SMALL_DISK, 2, "run.journal failed: File too large"),
    "fault": (None, FAULT, 2, "ZeroDivisionError in the process that records"),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_recording_is_told_and_what_it_had_is_gone_on_with(
    dflash, in_folder, monkeypatch, end
):
    act, program, expected, told = ENDS[end]
    words = ("-o", "run.parquet", "--recorder", "process")
    with monkeypatch.context() as patch:
        if act is not None:
            at_row(patch, 40, act)
        if program is not None:
            patch.setattr(process, "PROGRAM", program + process.PROGRAM)
        code, document, err = dflash(*words)
    assert code == expected
    if code == 130:
        assert document["run_status"] == "interrupted"
    else:
        assert told in err
        assert "`dflash recover run.journal`" in err
    code, document, _ = dflash(*words, "--resume")
    assert code == 0
    assert document["kept"] >= (end not in ("fault", "disk full"))
    assert dflash("-o", "whole.parquet")[0] == 0
    assert requests_of(in_folder / "run.parquet") == requests_of(in_folder / "whole.parquet")


def test_what_cannot_be_written_is_refused_as_ever(dflash, in_folder, monkeypatch):
    """Though the output appears after the first look at it."""
    monkeypatch.setattr("dflash.cli.record_run.check_output", lambda *given, **more: False)
    (in_folder / "run.parquet").write_text("mine")
    code, _, err = dflash("-o", "run.parquet", "--recorder", "process")
    assert (code, "run.parquet exists already" in err, "recover" in err) == (2, True, False)
    assert (in_folder / "run.parquet").read_text() == "mine"
    assert sorted(path.name for path in in_folder.iterdir()) == ["p.jsonl", "run.parquet"]
