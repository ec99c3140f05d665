"""The small products compiled for sm_90: shared memory, registers, spills, MMA, async copies, chaining."""

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
def built() -> dict[str, Built]:
    """Compile in a process of its own: the interpreter and the compiler exclude each other."""
    script = Path(__file__).with_name("compile_products.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=script.parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {facts.pop("configuration"): Built(**facts) for facts in lines}


def test_every_product_fits_the_device_without_spills(built: dict[str, Built]) -> None:
    assert len(built) >= 24
    for name, kernel in built.items():
        assert kernel.shared <= SHARED_LIMIT, (name, kernel)
        assert (kernel.stack, kernel.spills) == (0, 0), (name, kernel)


def test_products_use_tensor_cores_and_keep_copies_in_flight(built: dict[str, Built]) -> None:
    for name, kernel in built.items():
        assert kernel.mma or kernel.wgmma, (name, kernel)
        assert kernel.async_copy, (name, kernel)
        # a norm of its own stands between the products; steps carry theirs
        assert not kernel.serialized or name == "gate-up 64 small own norm", (name, kernel)


def test_products_of_a_chain_wait_for_their_predecessor(built: dict[str, Built]) -> None:
    assert all(kernel.pdl for kernel in built.values())
