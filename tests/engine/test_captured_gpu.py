"""Layers of transformers in CUDA graphs on a GPU: chosen by `auto`, lossless, and drafted for natively."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest
import torch
import transformers as tf

from dflash.cli.main import run as run_command
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.target.load import load_target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("kind", ["olmo2", "granite", "phi3"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_auto_captures_layers_that_are_not_native(
    tiny_folder: Path, tmp_path: Path, kind: str, temperature: float
) -> None:
    tiny = load_target(str(tiny_folder), device="cuda", dtype="bfloat16")
    target = replace(tiny, model=device_runs.other_model(tiny, kind))
    drafter = device_runs.write_cuda_drafter(target, tmp_path / "drafter")
    output = tmp_path / "run.parquet"
    run = draft_runs.session(
        target, output, drafter=drafter, target_impl="auto", draft_impl="auto", length=3, branches=2, lanes=3,
        max_new_tokens=40, temperature=temperature, draft_temperature=4.0, dense=True,
    )  # fmt: skip
    assert (run.settings.target_impl, run.settings.draft_impl) == ("captured", "native")
    assert f"its type is {kind}" in run.generic_remark
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(7))
    run.record(run.conversations(entries, check=True))
    assert isinstance(run.engine, DeviceEngine)
    assert run.engine.rounds._built.graph is not None
    for words in (["--check"], ["--policy", "match"]):
        assert run_command(["replay", str(output), *words]) == 0
    device_runs.near_live(draft_runs.rows(output), run.target.tie_tolerance / (temperature or 1.0))


def test_what_breaks_a_capture_goes_launch_by_launch_and_says_so(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = load_target(str(tiny_folder), device="cuda", dtype="bfloat16")
    target = replace(tiny, model=device_runs.other_model(tiny, "olmo2"))
    forward = tf.Olmo2ForCausalLM.forward

    def waiting(self: Any, *args: Any, **given: Any) -> Any:
        """Read a number on the host, which no capture allows."""
        found = forward(self, *args, **given)
        found.logits.sum().item()
        return found

    monkeypatch.setattr(tf.Olmo2ForCausalLM, "forward", waiting)
    output = tmp_path / "run.parquet"
    run = draft_runs.session(target, output, target_impl="auto", max_new_tokens=8)
    assert run.settings.target_impl == "generic"
    assert "launch by launch" in run.generic_remark
    run.record(run.conversations(with_ids([text_prompt("hello")]), check=True))
    assert run_command(["replay", str(output), "--check"]) == 0
