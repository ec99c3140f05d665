"""Recordings on the native step are those of the generic one, and say which it was."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import draft_runs
import pytest
import torch
import transformers as tf

from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file
from dflash.errors import UsageError
from dflash.target.native import proven
from dflash.target.native_layers import Way


@pytest.fixture
def target(tiny: Any) -> Any:
    """The tiny target with heads that the kernels take."""
    torch.manual_seed(0)
    config = copy.deepcopy(tiny.model.config)
    config.head_dim = 64
    model = tf.LlamaForCausalLM(config).eval().requires_grad_(False)
    model.lm_head.weight.data *= 8.0
    return replace(tiny, model=model)


@pytest.fixture(autouse=True)
def _by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native step run in PyTorch."""
    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))


@pytest.mark.parametrize("lanes", [1, 3])
def test_rounds_are_the_same(target: Any, tmp_path: Path, lanes: int) -> None:
    """Dense rows, too, which the native step computes in lanes of their own."""
    found = []
    for impl in ("generic", "native"):
        output = tmp_path / f"{impl}.parquet"
        draft_runs.record(
            target, draft_runs.prompts(3), output, target_impl=impl, lanes=lanes, dense=True,
            max_new_tokens=12, temperature=0.7,
        )  # fmt: skip
        header = open_draft_file(output).header
        assert (header.engine["attention"] == "native") == (impl == "native")
        rows = sorted(draft_runs.rows(output), key=lambda row: (row["request_id"], row["kind"], row["round"]))
        found.append([(row["request_id"], row["node_token"], row["slot_choice"]) for row in rows])
    assert found[0] == found[1]


def test_the_self_test_proves_the_native_step(target: Any) -> None:
    assert proven(target, Way(impl="reference")).tie_tolerance >= target.tie_tolerance


def test_replay_exact_is_the_native_steps(target: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--target-impl native"):
        draft_runs.session(target, tmp_path / "x.parquet", numerics="replay-exact")
    output = draft_runs.record(
        target, draft_runs.prompts(1), tmp_path / "x.parquet", numerics="replay-exact", target_impl="native",
        max_new_tokens=4,
    )  # fmt: skip
    assert open_draft_file(output).header.engine["numerics"] == "replay-exact"


def test_only_block_drafters_have_a_native_way(target: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dflash or dspark drafter"):
        draft_runs.session(target, tmp_path / "x.parquet", draft_impl="native")


def test_a_cpu_is_refused(tiny_folder: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", "hello", "--target", str(tiny_folder), "--device", "cpu", "-o", "x.parquet"]
    for option in ("--target-impl", "--draft-impl"):
        assert run([*words, option, "native"]) == 2
        assert f"CUDA device with {option} native" in capsys.readouterr().err


def test_rounds_on_a_device_are_refused_before_a_model_is_loaded(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record", "hello", "--target", "./nothing", "--device", "cpu", "-o", "x.parquet"]
    asked = {"auto": "CUDA device", "generic": "--target-impl native", "native": "CUDA device"}
    for option, advice in asked.items():
        assert run([*words, "--rounds", "device", "--target-impl", option]) == 2
        told = capsys.readouterr().err
        assert advice in told
        assert "--rounds device" in told
