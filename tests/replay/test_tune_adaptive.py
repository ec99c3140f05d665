"""A run whose nature changes half-way: no length suits both halves, and a control that notices wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timed import clocked, machine
from tiny_recorder import VOCAB, Recorder

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.replay.cost import CostModel
from dflash.replay.sweep import expand
from dflash.replay.tune import tune
from dflash.replay.tuned import Tuned

LONGEST, HALF = 7, 6
LAW = CostModel(machine(), "law", 1.0, (), (), 0)
SWEEP = f"match:length=0..{LONGEST}", f"match:length={LONGEST},control=window|ema,control.scope=stream"


class Turning(Recorder):
    """The drafter knows the target in the first `turn` requests, and nothing of it from then on."""

    turn = HALF

    def request(self, index: int) -> list[dict[str, Any]]:
        random = np.random.default_rng(9)
        blind = random.normal(0.0, 3.0, (VOCAB, VOCAB)).astype(np.float32)
        self.drafter = self.target if index < self.turn else blind
        return super().request(index)


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"length": LONGEST, "requests": 2 * HALF, "max_new_tokens": 32, "dense": True}
    recorder = Turning(proposal=Proposal.SHARED, edit=clocked(), **shape)
    return recorder.write(tmp_path_factory.mktemp("turned") / "run.parquet")


def search(path: Path) -> Tuned:
    policies = [policy for text in SWEEP for policy in expand(text)]
    return tune(open_run([path]).files, policies, LAW)


def test_an_adaptive_policy_beats_every_static_one_where_the_run_turns(turned: Path) -> None:
    found = search(turned)
    best = found.candidates[found.best]
    assert best.policy.control.adaptive
    assert found.contest is not None
    assert found.contest.adaptive == str(best.policy)
    assert found.contest.interval is not None
    assert 0 < found.contest.interval.low < found.contest.difference < found.contest.interval.high
    static = next(item for item in found.candidates if not item.policy.control.adaptive)
    assert found.contest.static == str(static.policy)
    gain = best.speed.speed_up - static.speed.speed_up
    assert found.contest.difference == pytest.approx(gain)


def test_each_half_alone_has_a_static_best_of_its_own(tmp_path: Path) -> None:
    best = []
    for name, turn in (("easy", HALF), ("hard", 0)):
        recorder = Turning(proposal=Proposal.SHARED, length=LONGEST, requests=4, dense=True)
        recorder.turn = turn
        found = search(recorder.write(tmp_path / f"{name}.parquet"))
        best.append(next(item for item in found.candidates if not item.policy.control.adaptive))
    easy, hard = best
    assert (easy.policy.shape.length or 0) >= 5
    assert (hard.policy.shape.length or 0) <= 1


def test_the_contest_is_printed(turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(machine().to_dict()), encoding="utf-8")
    window = f"match:length={LONGEST},control=window,control.scope=stream"
    words = ["--sweep", "match:length=0..2", "--sweep", window, "--cost", str(profile)]
    assert run(["tune", str(turned), *words]) == 0
    assert f"adaptive against static: {window} minus match:length=" in capsys.readouterr().out
