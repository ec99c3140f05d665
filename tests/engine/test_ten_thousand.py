"""Ten thousand requests in a row: memory stays, the file is valid, nothing is lost."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest
import torch

from dflash.cli.main import run as run_command
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.target.load import load_target

REQUESTS, EARLY = 10_000, 3_000
GROWTH = 48 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run_all(target: Any, output: Path, **given: Any) -> None:
    """Record them, and compare what the process holds early and late."""
    run = draft_runs.session(target, output, max_new_tokens=6, store_topk=4, **given)
    held, allocated, ended = [], [], 0

    def watch(lane: Any) -> None:
        nonlocal ended
        ended += 1
        if ended in (EARLY, REQUESTS - 1):
            held.append(resident())
            allocated.append(torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)

    entries = with_ids(text_prompt(f"Say {number}") for number in range(REQUESTS))
    recording = run.record(run.conversations(entries, check=True), on_request=watch)
    assert recording.totals.requests == ended == REQUESTS
    assert held[1] - held[0] < GROWTH, held
    assert allocated[1] <= allocated[0] + GROWTH, allocated
    found = draft_runs.trunks(draft_runs.rows(output))
    assert list(found) == [str(number) for number in range(REQUESTS)]
    assert run_command(["doctor", str(output)]) == 0
    assert run_command(["replay", str(output), "--check"]) == 0


@pytest.mark.evidence
def test_a_cpu_keeps_its_memory(tiny: Any, tmp_path: Path) -> None:
    run_all(tiny, tmp_path / "run.parquet", drafter="ngram", length=3, branches=1, lanes=8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_keeps_its_memory(tiny_folder: Path, tmp_path: Path) -> None:
    loaded = load_target(str(tiny_folder), device="cuda", dtype="bfloat16")
    target = device_runs.native_target(loaded)
    run_all(
        target, tmp_path / "run.parquet", drafter="none", length=0, branches=1, lanes=64,
        target_impl="native", rounds="device",
    )  # fmt: skip
