"""Adaptive control of rounds on a GPU: graphs of several shapes, cuts and kept taps against PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest
import torch

from dflash.cli.main import run as run_command
from dflash.engine.device.adaptive import AdaptiveEngine
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.kernels.round_cut import RoundLimits, cut_nodes
from dflash.kernels.round_inputs import RoundStart
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.round_taps import TapRing, keep_taps
from dflash.target.native_layers import Way

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONTROLS = {
    "window": "match:control=window,control.every=2,control.after=2,control.window=5,control.low=0.4",
    "ema": "match:control=ema,control.candidates=0/1/3,control.after=2,control.every=1,control.down=0.3",
    "schedule": "match:control=schedule,control.table=1:4/2:1/3:0",
}


@pytest.fixture(autouse=True, scope="module")
def _exact_products() -> Iterator[None]:
    with device_runs.exact_products():
        yield


@pytest.fixture(scope="module")
def targets(tiny_folder: Path) -> dict[str, Any]:
    return device_runs.cuda_targets(tiny_folder)


@pytest.fixture(scope="module")
def drafter(targets: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return device_runs.write_cuda_drafter(targets["float32"], tmp_path_factory.mktemp("drafter"))


def recorded(target: Any, output: Path, drafter: str, *, eager: bool = False, **given: Any) -> Any:
    """The rows of one recording, and the engine that made it."""
    chosen = {"target_impl": "native", "draft_impl": "native", "lanes": 3, "max_new_tokens": 40}
    settings = chosen | {"drafter": drafter, "length": 4, "branches": 2, "draft_temperature": 4.0} | given
    run = draft_runs.session(target, output, **settings)
    for rounds in [rounds for rung in run.engine.ladder.rungs for rounds in rung[:2]] if eager else ():
        rounds.plan = replace(rounds.plan, eager=True)
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(7))
    run.record(run.conversations(entries, check=True))
    return draft_runs.rows(output), run.engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("control", ["window", "ema"])
def test_fp32_rows_and_states_are_those_of_the_host(
    targets: dict[str, Any], drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str,
    temperature: float,
) -> None:  # fmt: skip
    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))
    found = []
    for rounds in ("host", "device"):
        given = {"rounds": rounds, "temperature": temperature, "policy": CONTROLS[control]}
        rows, engine = recorded(targets["float32"], tmp_path / rounds, drafter, **given)
        assert isinstance(engine, AdaptiveEngine) == (rounds == "device")
        found.append(rows)
    device_runs.same_rows(*found)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("control", CONTROLS)
def test_graphs_have_the_bits_of_launches(
    targets: dict[str, Any], drafter: str, tmp_path: Path, control: str, temperature: float
) -> None:
    found = []
    for eager in (False, True):
        output = tmp_path / f"{eager}.parquet"
        given = {"eager": eager, "temperature": temperature, "policy": CONTROLS[control], "features": "all"}
        rows, engine = recorded(targets["bfloat16"], output, drafter, **given)
        built = [rounds._built for rung in engine.ladder.rungs for rounds in rung[:2]]
        assert {one.graph is None for one in built if one is not None} == {eager}
        assert run_command(["replay", str(output), "--check"]) == 0
        found.append(rows)
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)
    lengths = {json.loads(row["control_state"])["length"] for row in found[0] if row["control_state"]}
    assert len(lengths) > 1


@pytest.mark.parametrize("control", CONTROLS)
def test_bf16_rounds_commit_the_tokens_of_the_host(
    targets: dict[str, Any], drafter: str, tmp_path: Path, control: str
) -> None:
    found = []
    for rounds in ("host", "device"):
        given = {"rounds": rounds, "temperature": 0.8, "policy": CONTROLS[control]}
        rows, _ = recorded(targets["bfloat16"], tmp_path / rounds, drafter, **given)
        found.append(draft_runs.trunks(rows))
    assert found[0] == found[1]


def test_cuts_and_kept_taps_are_those_of_pytorch() -> None:
    g = torch.Generator(device="cuda").manual_seed(3)
    tree = RoundTree.make(7, 3, 5, "cuda")
    limits = RoundLimits(*torch.randint(0, 5, (2, 5), generator=g, device="cuda", dtype=torch.int32))
    cut = []
    for impl in ("triton", "reference"):
        tokens = torch.arange(5 * 21, dtype=torch.int32, device="cuda").view(5, 21)
        cut_nodes(tokens, limits, tree, impl=impl)
        cut.append(tokens)
    assert torch.equal(*cut)
    taps = torch.randn((10, 1728), generator=g, device="cuda").bfloat16()
    live, lengths = torch.tensor([[1, 0, 1, 1, 1], [3, 9, 17, 32, 40]], dtype=torch.int32, device="cuda")
    kept = []
    for impl in ("triton", "reference"):
        ring = TapRing.make(5, 16, taps)
        keep_taps(taps, RoundStart(live, lengths, lengths), ring, impl=impl)
        kept.append(ring.taps)
    assert torch.equal(*kept)
    assert torch.equal(kept[0][2, 1], taps[4])
    assert not kept[0][1].any()
