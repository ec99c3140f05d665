"""The steps that `dflash bench step --compare` times compute the same, and what it reports can be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from dflash.bench import step_compare, step_ways
from dflash.bench.kernels import RedCheck
from dflash.bench.step_compare import Comparison, StepRow, bytes_of, document, measure_shape
from dflash.bench.step_shapes import MODELS, SHAPES, make_target
from dflash.bench.step_ways import draft_case, verify_case
from dflash.cli import bench_step
from dflash.cli.main import run
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.cost import load_cost
from dflash.target.native_layers import Way

SMALL = {"num_hidden_layers": 2, "vocab_size": 300, "intermediate_size": 128}


@pytest.fixture(scope="module")
def target() -> Any:
    return make_target("smollm2-135m", "cpu", torch.float32, **SMALL)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native steps run in PyTorch."""
    monkeypatch.setattr(step_ways, "LlamaStep", _by_reference(step_ways.LlamaStep))
    monkeypatch.setattr(step_ways, "BlockStep", _by_reference(step_ways.BlockStep))


def _by_reference(kind: Any) -> Any:
    return lambda *args, way=None, **given: kind(*args, way=Way(impl="reference"), **given)


@pytest.mark.parametrize("batch", [1, 2])
@torch.inference_mode()
def test_every_way_to_verify_leaves_the_same_logits(
    target: Any, batch: int, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    case = verify_case(target, 6, 40, batch)
    expected = step_ways._eager(case).call()
    assert expected.shape == (batch * 7, 300)
    for way in step_ways.VERIFY_WAYS:
        ready = way.build(case)
        for _ in range(2):
            ready.before()
            torch.testing.assert_close(ready.call(), way.part(expected), atol=2e-5, rtol=2e-4)


@torch.inference_mode()
def test_every_way_to_draft_leaves_the_same_logits(
    target: Any, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    case = draft_case(target, 5, 40)
    for way in step_ways.DRAFT_WAYS:
        found = way.build(case).call()
        torch.testing.assert_close(found, way.part(case.blocks()()), atol=2e-5, rtol=2e-4)


def _chained(case: Any) -> Any:
    """The native step, but of a chain of the same tokens."""
    tokens = case.tree[0]
    return step_ways.native_verify(replace(case, tree=(tokens, list(range(-1, len(tokens) - 1)))))


def _short(case: Any) -> Any:
    """The native block, but without the last row of its context."""
    return step_ways.native_draft(case._replace(context=case.context - 1))


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    ("shape", "ways", "wrong"), [(1, "VERIFY_WAYS", _chained), (2, "DRAFT_WAYS", _short)]
)
def test_what_is_farther_from_float32_than_rounding_explains_is_refused(
    shape: int, ways: str, wrong: Any, ours: bool, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_target("smollm2-135m", "cpu", torch.bfloat16, **SMALL)
    monkeypatch.setattr(step_compare, "time_step", lambda ready, repeats=0: (2.0, 1.0, 3.0))
    small = SHAPES[shape]._replace(context=40, nodes=5)
    right = measure_shape(small, target, 4.5, False, lambda line: None)
    assert all(row.failure is None and 0 < row.error < 2e-2 for row in right)
    spoilt = step_ways.StepWay("dflash wrong" if ours else "wrong", wrong)
    monkeypatch.setattr(step_compare, ways, (*getattr(step_ways, ways), spoilt))
    if ours:
        with pytest.raises(RedCheck, match="dflash wrong: expected at most .* from float32, found"):
            measure_shape(small, target, 4.5, False, lambda line: None)
        return
    last = measure_shape(small, target, 4.5, False, lambda line: None)[-1]
    assert (last.failure, last.median_us) == ("wrong output", None)
    assert last.error > 3 * max(row.error for row in right)


def test_every_shape_is_measured_and_a_peer_that_fails_says_so(
    target: Any, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(step_compare, "time_step", lambda ready, repeats=0: (2.0, 1.0, 3.0))
    for shape in SHAPES[1:3]:
        small = shape._replace(context=40, nodes=5)
        rows = measure_shape(small, target, 4.5, True, lambda line: None)
        failed = [row for row in rows if row.failure]
        assert {row.median_us for row in rows if not row.failure} == {2.0}
        assert {row.failure for row in failed} == {"RuntimeError: no compiler"}
        assert all("compile" in row.name for row in failed)
        assert rows[0].goal_us == shape.goal_us
        assert rows[0].floor_us > 0


def test_the_profile_is_over_nodes_lanes_and_contexts(
    target: Any, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(float(number) for number in range(1, 100))
    monkeypatch.setattr(step_compare, "time_step", lambda ready, repeats=0: (next(calls),) * 3)
    monkeypatch.setattr(step_compare, "CONTEXTS", (20, 40))
    monkeypatch.setattr(step_compare, "BATCHES", (1, 3))
    times = step_compare.profile(target, block=4)
    assert times.verify(0, 1, 20) == 1.0
    assert times.verify(31, 3, 40) == 16.0
    assert [times.draft(*asked) for asked in ((0, 1, 1), (1, 1, 8), (3, 2, 1))] == [0.0, 17.0, 17.0]


def test_a_floor_counts_each_weight_once(target: Any) -> None:
    """The head is the embedding here, and is read once."""
    weights = 300 * 576 + 576 + 2 * (960 * 576 + 576 * 576 + 3 * 128 * 576 + 2 * 576)
    assert bytes_of([target, target.lm_head], []) == 4 * weights


def test_what_is_reported_follows_its_schema_and_is_a_profile(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MODELS == bench_step.SHAPES == tuple(dict.fromkeys(shape.model for shape in SHAPES))
    row = StepRow("verify x", "dflash native", 700.0, 690.0, 720.0, 60.0, 700.0, 500.0, 1e-3)
    times = StepTime(
        Grid(((0.0, 1.0), (1.0,)), (0.0, 90.0)), Grid(((0.0,), (1.0,), (512.0, 4096.0)), (500.0, 600.0))
    )
    failed = replace(row, median_us=None, low_us=None, high_us=None, name="peer", failure="no such thing")
    found = Comparison(4.5, [row, failed], "smollm2-135m", times)
    monkeypatch.setattr(step_compare, "compare", lambda *shapes, **options: found)
    monkeypatch.setattr(step_compare, "environment", lambda: {"device": "none"})
    schema = json.loads((root / "schemas" / "bench_step_compare_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(document(found))))
    profile = tmp_path / "profile.json"
    assert run(["bench", "step", "--compare", "-o", str(profile), "-q"]) == 0
    assert "no such thing" in capsys.readouterr().out
    assert load_cost(profile).step_time.verify(0, 1, 512) == 500.0


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["bench", "step", "--compare", "-q"]) == 2
