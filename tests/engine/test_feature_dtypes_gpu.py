"""Hidden states that a GPU packs are those that it keeps whole, coded by the words of the format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import numpy as np
import pytest
import torch

from dflash.engine.device.engine import DeviceEngine
from dflash.engine.prompts.files import text_prompt, with_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none", "length": 0, "branches": 1},
    "chain": {"length": 3, "branches": 1},
    "tree": {"length": 3, "branches": 3},
    "control": {
        "length": 3,
        "branches": 3,
        "policy": "match:control=window,control.every=2,control.after=2,control.window=5,control.low=0.4",
    },
}
COMMON = [name for name in device_runs.LASTING if name not in ("feature_values", "feature_scale")]


@pytest.fixture(scope="module")
def target(tiny_folder: Path) -> Any:
    return device_runs.cuda_targets(tiny_folder)["bfloat16"]


@pytest.fixture(scope="module")
def drafter(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    whole = device_runs.cuda_targets(tiny_folder)["float32"]
    return device_runs.write_cuda_drafter(whole, tmp_path_factory.mktemp("drafter"))


def rows_of(target: Any, output: Path, *, eager: bool = False, **given: Any) -> list[dict[str, Any]]:
    """The rows of a recording of more prompts than lanes."""
    run = draft_runs.session(
        target, output, target_impl="native", rounds="device", numerics="replay-exact", lanes=3,
        temperature=0.8, draft_temperature=4.0, max_new_tokens=21, features="all", **given,
    )  # fmt: skip
    assert isinstance(run.engine, DeviceEngine)
    if eager:
        run.engine.rounds.plan = replace(run.engine.rounds.plan, eager=True)
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(7))
    run.record(run.conversations(entries, check=True))
    return draft_runs.rows(output)


def coded(row: dict[str, Any], width: int) -> tuple[bytes, list[float]]:
    """int8 codes and scales of a row's bfloat16 states."""
    high, low = np.split(np.frombuffer(row["feature_values"], "u1").astype(np.uint32), 2)
    states = (high << 24 | low << 16).view(np.float32).reshape(-1, width)
    codes, scales = np.empty(states.shape, np.int8), []
    for token, state in enumerate(states):
        for start in range(0, width, 128):
            part = state[start : start + 128]
            peak, largest = np.abs(part).max(), np.float32(127)
            codes[token, start : start + 128] = np.rint(part * (largest / peak))
            scales.append(float(peak / largest))
    return codes.tobytes(), scales


@pytest.mark.parametrize("recorder", ["process", "inline"])
@pytest.mark.parametrize("name", RUNS)
def test_int8_states_are_codes_of_the_states_in_bf16(
    target: Any, drafter: str, tmp_path: Path, name: str, recorder: str
) -> None:
    given = {"drafter": drafter, "recorder": recorder} | RUNS[name]
    if given["length"]:
        given["draft_impl"] = "native"
    whole, small = (
        rows_of(target, tmp_path / dtype, feature_dtype=dtype, **given) for dtype in ("bf16", "int8")
    )
    width = len(small[0]["feature_values"])
    assert {row["kind"] for row in small} == {0, 2, 3}
    for sixteen, eight in zip(whole, small, strict=True):
        assert [eight[one] for one in COMMON] == [sixteen[one] for one in COMMON]
        assert (eight["feature_values"], eight["feature_scale"]) == coded(sixteen, width)


def test_graphs_pack_what_launches_pack(target: Any, drafter: str, tmp_path: Path) -> None:
    given = {"drafter": drafter, "draft_impl": "native", "feature_dtype": "fp8"} | RUNS["tree"]
    found = [rows_of(target, tmp_path / str(eager), eager=eager, **given) for eager in (False, True)]
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)
