"""The head and the packing of features compiled for sm_90: memory, registers, spills, MMA, chaining."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from tests.kernels.ahead_of_time import SHARED_LIMIT, Built

pytestmark = [
    pytest.mark.slow,
    # the figures are those of the compiler that the GPU machine has
    pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="needs triton 3.6"),
]


@pytest.fixture(scope="module")
def built() -> list[tuple[str, Built]]:
    """Compile in a process of its own: the interpreter and the compiler exclude each other."""
    script = Path(__file__).with_name("compile_head.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=script.parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(facts.pop("configuration"), Built(**facts)) for facts in lines]


def test_everything_fits_the_device_without_spills(built: list[tuple[str, Built]]) -> None:
    assert len(built) >= 16
    for name, kernel in built:
        assert kernel.shared <= SHARED_LIMIT, (name, kernel)
        assert kernel.registers <= 255, (name, kernel)
        assert (kernel.stack, kernel.spills) == (0, 0), (name, kernel)


def test_the_head_uses_tensor_cores_and_keeps_copies_in_flight(built: list[tuple[str, Built]]) -> None:
    for name, kernel in built:
        if kernel.name == "score_chunks":
            assert kernel.wgmma or "float32" in name, (name, kernel)
            assert kernel.async_copy, (name, kernel)


def test_the_small_kernels_leave_registers_free(
    built: list[tuple[str, Built]],
) -> None:
    for name, kernel in built:
        if kernel.name in ("pack_rows", "merge_parts"):
            assert kernel.registers <= 128, (name, kernel)


def test_kernels_of_a_chain_wait_for_their_predecessor(built: list[tuple[str, Built]]) -> None:
    assert all(kernel.pdl for _, kernel in built)
