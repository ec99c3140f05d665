"""Production configurations compiled for sm_90: shared memory, registers, spills, MMA, async copies."""

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
def built() -> dict[str, list[Built]]:
    """Compile in a process of its own: the interpreter and the compiler exclude each other."""
    script = Path(__file__).with_name("compile_all.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=script.parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[Built]] = {}
    for line in done.stdout.splitlines():
        facts = json.loads(line)
        found.setdefault(facts.pop("configuration"), []).append(Built(**facts))
    return found


def test_every_kernel_fits_the_device(built: dict[str, list[Built]]) -> None:
    assert len(built) > 20
    for name, kernels in built.items():
        for kernel in kernels:
            assert kernel.shared <= SHARED_LIMIT, (name, kernel)
            assert kernel.registers <= 255, (name, kernel)
            assert (kernel.stack, kernel.spills) == (0, 0), (name, kernel)


def test_attention_uses_tensor_cores_and_asynchronous_copies(built: dict[str, list[Built]]) -> None:
    for name, kernels in built.items():
        for kernel in kernels:
            if kernel.name == "attend_chunks":
                few = any(f"rows{rows} " in f"{name} " for rows in (16, 32))
                assert kernel.wgmma or (few and kernel.mma), (name, kernel)
                assert kernel.async_copy, (name, kernel)
                assert not kernel.serialized, (name, kernel)


def test_kernels_of_a_chain_wait_for_their_predecessor(built: dict[str, list[Built]]) -> None:
    for name, kernels in built.items():
        for kernel in kernels:
            if kernel.name in ("attend_chunks", "merge_chunks"):
                assert kernel.pdl, (name, kernel)
