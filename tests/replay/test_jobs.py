from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.replay.details import Wanted
from dflash.replay.run import replay

# every file of a run comes from an engine of its own, and so do the states of a control
STEERED = (
    "match:control=heuristic,control.after=1",
    "match:control=window,control.scope=stream,control.after=1",
    "match:control=ema,control.lag=0",
)


def parts(folder, **given):
    recorder = Recorder("match", Proposal.INDEPENDENT, 0.8, requests=3, **given)
    for part in range(3):
        recorder.write(folder / f"{part}.parquet", part=part, parts=3)
    return open_run([folder]).files


@pytest.mark.parametrize("dense", [False, True])
def test_jobs_change_nothing_but_where_files_are_counted(tmp_path, dense):
    """A dense run is walked under `match` and lossy rules, and in law under `speculative`."""
    files = parts(tmp_path, dense=dense)
    texts = ("match", "speculative", "threshold:t=0.3,length=2", *STEERED)
    policies = [parse_policy(text) for text in texts]
    steps: list[int] = []
    alone, shared = (
        replay(files, policies, wanted=Wanted(calibration=True), jobs=jobs, progress=lambda: steps.append(1))
        for jobs in (1, 2)
    )
    assert shared.to_dict() == alone.to_dict()
    assert sum(row.rounds for row in alone.rows) > 0
    assert len(steps) == 2 * len(files)


def test_a_check_follows_the_files_in_order_beside_jobs(tmp_path, capsys):
    """A token that ends a request of the first file may not stand inside one of the last."""
    files = parts(tmp_path)
    alone, shared = (replay(files, check=True, jobs=jobs) for jobs in (1, 2))
    assert shared.to_dict() == alone.to_dict()
    assert shared.check.passed
    assert run(["replay", str(tmp_path), "--jobs", "2", "--check", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert found["check"]["rounds"] == found["policies"][0]["rounds"] > 0


@pytest.mark.parametrize("dense", [False, True])
def test_jobs_write_the_decisions_that_one_process_writes(tmp_path, dense, capsys):
    """Walks and re-judging of one run, in the order of the files."""
    (tmp_path / "run").mkdir()
    parts(tmp_path / "run", dense=dense)
    words = ["replay", str(tmp_path / "run"), "-q"]
    for policy in ("match", "threshold:t=0.3,length=2", "vllm-v1"):
        words += ["--policy", policy]
    for jobs in ("1", "2"):
        assert run([*words, "--jobs", jobs, "-o", str(tmp_path / f"{jobs}.parquet")]) == 0
    capsys.readouterr()
    one, two = (pq.ParquetFile(tmp_path / f"{jobs}.parquet") for jobs in ("1", "2"))
    assert two.read().equals(one.read())
    assert two.metadata.metadata == one.metadata.metadata
    assert one.metadata.num_rows > 0
