"""Prompts on a stream of their own on a GPU: the bits of prompts read in turn, whatever runs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest
import torch

from dflash.engine.device.prompted import Refills
from dflash.engine.prompts.files import text_prompt, with_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = {"plain": (0, 1), "chain": (3, 1), "tree": (3, 3)}


@pytest.fixture(autouse=True, scope="module")
def _exact_products() -> Iterator[None]:
    with device_runs.exact_products():
        yield


@pytest.fixture(scope="module")
def target(tiny_folder: Path) -> Any:
    return device_runs.cuda_targets(tiny_folder)["bfloat16"]


@pytest.fixture(scope="module")
def drafter(target: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return device_runs.write_cuda_drafter(target, tmp_path_factory.mktemp("drafter"))


def recorded(target: Any, output: Path, drafter: str, shape: str, rows: int | None, **given: Any) -> Any:
    """The rows of a recording of ragged prompts; `rows` of prompts a round, or None for one by one."""
    length, branches = SHAPES[shape]
    drafts = {"drafter": drafter, "draft_impl": "native"} if length else {"drafter": "none"}
    chosen = {"target_impl": "native", "rounds": "device", "max_new_tokens": 40, "draft_temperature": 4.0}
    settings = chosen | drafts | {"length": length, "branches": branches} | given
    run = draft_runs.session(target, output, **settings)
    if rows is None:
        run.engine.overlaps = False
    else:
        run.engine.refills = Refills(rows)
    asked = [
        text_prompt(prompt * (1 + 5 * (place % 3))) for place, prompt in enumerate(draft_runs.prompts(20))
    ]
    run.record(run.conversations(with_ids(asked), check=True))
    return draft_runs.rows(output)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_beside_rounds_have_the_bits_of_prompts_in_turn(
    target: Any, drafter: str, tmp_path: Path, shape: str, temperature: float
) -> None:
    given = {"numerics": "replay-exact", "temperature": temperature, "features": "all"}
    expected = recorded(target, tmp_path / "turn", drafter, shape, None, lanes=1, **given)
    for lanes in (1, 3, 8):
        for rows in (None, 1024, 64):
            output = tmp_path / f"{lanes}-{rows}"
            found = recorded(target, output, drafter, shape, rows, lanes=lanes, **given)
            device_runs.same_rows(found, expected, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_repeats(target: Any, drafter: str, tmp_path: Path, shape: str) -> None:
    """Down to the steps, in `fast` too: nothing depends on how long a prompt takes."""
    found = [
        recorded(target, tmp_path / str(turn), drafter, shape, 128, lanes=8, temperature=0.8)
        for turn in range(2)
    ]
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)
    steps = [[(row["step"], row["batch_size"]) for row in rows] for rows in found]
    assert steps[0] == steps[1]


def test_caches_grow_under_prompts(target: Any, drafter: str, tmp_path: Path) -> None:
    found = []
    for capacity in (64, 1024):
        run = draft_runs.session(
            target, tmp_path / str(capacity), drafter=drafter, draft_impl="native", target_impl="native",
            length=3, branches=3, lanes=4, max_new_tokens=200, numerics="replay-exact", warm_up=False,
        )  # fmt: skip
        run.trunk.cache.capacity = run.drafter.cache.capacity = capacity
        run.engine.refills = Refills(64)
        asked = [text_prompt(prompt * (1 + place)) for place, prompt in enumerate(draft_runs.prompts(12))]
        run.record(run.conversations(with_ids(asked), check=True))
        found.append(draft_runs.rows(tmp_path / str(capacity)))
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)
