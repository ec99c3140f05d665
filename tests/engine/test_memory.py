"""Memory: estimated before the run, refused or shrunk to, and nothing recorded is lost when it runs out."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import device_runs
import draft_runs
import pytest
import torch
from recordings import requests_of

from dflash.cli import record_run
from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file
from dflash.engine import free_memory, memory
from dflash.engine.dense.dense_pass import DensePass
from dflash.engine.loop import Engine
from dflash.engine.memory import Free, MemoryEstimate, Part, TooLittleMemory
from dflash.engine.recorder.recorder import Recorder
from dflash.target.model import TrunkModel
from dflash.target.native_layers import Way

PARTS = (
    Part("weights", "device", 1000, 0, 1000),
    Part("cache", "device", 0, 100),
    Part("scratch", "device", 50, 10),
    Part("noise", "host", 0, 7),
)
APART = MemoryEstimate(PARTS, 8, 64, shared=False)
SHARED = replace(APART, shared=True)


@pytest.fixture
def dflash(tiny_folder, in_folder, capfd):
    """dflash(*words) -> (exit code, stdout, stderr) of `record` on three prompts."""
    (in_folder / "p.txt").write_text("one\ntwo two two\nthree\n")

    def call(*words):
        base = ["record", "--target", str(tiny_folder), "--prompts", "p.txt", "--max-new-tokens", "12"]
        code = run([*base, *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def committed(path):
    """Tokens by request; logits may move with the size of the batch."""
    names = ("node_token", "accepted_nodes", "bonus_token", "emitted", "truncated_by", "kind")
    found = requests_of(path)
    return {name: [[row[column] for column in names] for row in rows] for name, rows in found.items()}


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("estimate", [APART, SHARED], ids=["apart", "shared"])
def test_as_many_lanes_as_fit_and_one_byte_less_is_a_lane_less(estimate, lanes):
    needed = (50 + lanes * (117 if estimate.shared else 110)) / (1 - memory.SPARE)
    assert estimate.lanes_that_fit(Free(int(needed) + 2, None)) == lanes
    if lanes == 1:
        with pytest.raises(TooLittleMemory, match=r"cache.*scratch.*found"):
            estimate.lanes_that_fit(Free(int(needed) - 2, None))
    else:
        assert estimate.lanes_that_fit(Free(int(needed) - 2, None)) == lanes - 1


def test_the_scarcer_place_decides_and_the_unknown_one_does_not():
    assert APART.lanes_that_fit(Free(10_000, 16)) == 2
    assert APART.lanes_that_fit(Free(None, 16)) == 2
    assert APART.lanes_that_fit(Free(None, None)) == 8
    with pytest.raises(TooLittleMemory, match="noise"):
        APART.lanes_that_fit(Free(10_000, 7))


def test_what_is_allocated_already_is_told_and_not_asked_for_again():
    assert APART.total("device") == 1000 + 50 + 8 * 110
    assert "weights" not in str(TooLittleMemory(PARTS[:3], 10, 64))
    assert "weights 1 kB" in APART.text()


def test_the_estimate_of_keys_and_values_is_what_the_cache_takes(tiny, record, monkeypatch):
    made = []
    init = TrunkModel.__init__
    monkeypatch.setattr(
        TrunkModel, "__init__", lambda self, *given: (init(self, *given), made.append(self))[0]
    )
    record(tiny, lanes=2)
    found = memory.token_bytes(tiny.model.config, 4)
    assert made[-1].cache.nbytes() == 2 * found * made[-1].cache.capacity


def test_it_is_told_under_v_in_the_json_and_in_the_header(dflash, in_folder):
    code, out, err = dflash("-v", "--json", "-o", "run.parquet", "--lanes", 2)
    assert code == 0
    told = json.loads(out)["memory"]
    assert told["lanes"] == 2
    assert told["host"] == sum(part["bytes"] for part in told["parts"])
    assert "memory for 2 lanes of" in err
    assert "free: host " in err
    ring = json.loads(dflash("--json", "-o", "apart.parquet", "--recorder", "process")[1])["memory"]
    assert {part["name"] for part in ring["parts"]} - {part["name"] for part in told["parts"]} == {
        "recorder ring"
    }
    assert open_draft_file(in_folder / "run.parquet").header.raw["memory"] == told


def inject(monkeypatch, free):
    monkeypatch.setattr(record_run, "free_memory", lambda device: Free(free, free))


def test_fewer_lanes_are_taken_and_said_in_one_line(dflash, in_folder, monkeypatch):
    whole = json.loads(dflash("--json", "-o", "whole.parquet", "--lanes", 3)[1])["memory"]
    lane = (whole["host"] - memory.ROW_GROUPS) // 3
    inject(monkeypatch, int((memory.ROW_GROUPS + 2.5 * lane) / (1 - memory.SPARE)))
    code, _, err = dflash("-q", "-o", "run.parquet", "--lanes", 3)
    assert code == 0
    assert [line for line in err.splitlines() if "3 lanes do not fit" in line] == err.splitlines()
    assert open_draft_file(in_folder / "run.parquet").header.lanes == 2
    assert committed(in_folder / "run.parquet") == committed(in_folder / "whole.parquet")


def test_what_can_not_fit_is_refused_before_anything_is_written(dflash, in_folder, monkeypatch):
    inject(monkeypatch, 1_000_000)
    code, _, err = dflash("-o", "run.parquet", "--lanes", 3)
    assert code == 2
    assert all(told in err for told in ("trunk K/V", "recorder", "--max-new-tokens", "found 1.0 MB"))
    assert [path.name for path in in_folder.iterdir()] == ["p.txt"]


def test_weights_that_do_not_fit_are_told(dflash, monkeypatch):
    def failing(*given, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("dflash.cli.record_options.load_target", failing)
    code, _, err = dflash("-o", "run.parquet")
    assert (code, "weights" in err, "Traceback" in err) == (2, True, False)


PLACES = {
    "scoring": (TrunkModel, "score", 9),
    "prefill": (Engine, "_prefill", 2),
    "settling": (Engine, "_settle", 9),
    "dense pass": (DensePass, "_chunk", 1),
}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError()])
@pytest.mark.parametrize("place", PLACES)
def test_memory_that_runs_out_costs_no_round_and_fewer_lanes_go_on(
    dflash, in_folder, monkeypatch, place, error
):
    words = ["--dense", "-o", "run.parquet"]
    owner, name, calls = PLACES[place]
    method, left, recorded = getattr(owner, name), [calls], []

    def failing(self, *given):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return method(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        row = Recorder.row
        patch.setattr(
            "dflash.engine.recorder.recorder.Recorder.row",
            lambda self, lane, found: (row(self, lane, found), recorded.append(found["kind"]))[0],
        )
        code, _, err = dflash(*words, "--lanes", 2)
    assert code == 2
    assert "Memory ran out with 2 lanes" in err
    assert "--lanes 1 --resume" in err
    assert "a fault in dflash" not in err
    assert run(["recover", "run.journal", "-o", "saved.parquet"]) == 0
    saved = requests_of(in_folder / "saved.parquet")
    assert sum(len(rows) for rows in saved.values()) == len(recorded) > 0
    assert dflash(*words, "--lanes", 1, "--resume")[0] == 0
    assert dflash("--dense", "-o", "whole.parquet", "--lanes", 2)[0] == 0
    assert committed(in_folder / "run.parquet") == committed(in_folder / "whole.parquet")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"memory.max": "max", "memory.current": "5"}, None),
        ({"memory.max": "100", "memory.current": "70", "memory.stat": "anon 3\ninactive_file 20\n"}, 50),
        ({"memory.max": "100", "memory.current": "120"}, 0),
    ],
)
def test_a_containers_limit_counts(tmp_path, monkeypatch, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       4 kB\n")
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    assert free_memory.host_free() == min(4096, 4096 if expected is None else expected)
    assert free_memory.free_memory(torch.device("cpu")) == Free(*[free_memory.host_free()] * 2)


@pytest.mark.parametrize("control", ["", ":control=window"])
def test_the_estimate_of_device_rounds_is_near_what_they_hold(tiny, tmp_path, monkeypatch, control):
    """Tensors that the rounds hold, named or not, are below it, and it is no more than thrice that."""
    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))
    target = device_runs.native_target(tiny)
    drafter = device_runs.write_drafter(target, tmp_path, "dspark")
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter=drafter, draft_impl="native", target_impl="native",
        length=3, branches=1, lanes=2, rounds="device", policy=f"match{control}",
    )  # fmt: skip
    before = {id(tensor) for tensor in tensors()}
    run.engine.warm_up(100)
    made = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors() if id(tensor) not in before}
    caches = {store.data_ptr() for pair in run.trunk.stores() for store in pair}
    caches |= {store.data_ptr() for pair in run.drafter.cache.whole(1) for store in pair}
    held = sum(tensor.untyped_storage().nbytes() for place, tensor in made.items() if place not in caches)
    estimate = run.fit(100, Free(None, None))
    told = next(part for part in estimate.parts if part.name == "device rounds").bytes(2)
    assert held <= told <= 3 * held


def tensors():
    gc.collect()
    # asking an object what it is may wake a module that loads late
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
