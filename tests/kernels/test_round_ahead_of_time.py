"""The kernels of device rounds compiled for sm_90: registers, spills, chaining."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from tests.kernels.ahead_of_time import Built

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="needs triton 3.6"),
]


def test_they_compile_without_spills_and_wait_for_their_predecessors() -> None:
    script = Path(__file__).with_name("compile_round.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=script.parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({facts["name"] for facts in found}) == 16
    for facts in found:
        kernel = Built(**{name: facts[name] for name in Built._fields})
        assert (kernel.stack, kernel.spills) == (0, 0), facts
        # a trunk is copied behind rounds, in no graph
        assert kernel.pdl or facts["name"] == "spread_head", facts
