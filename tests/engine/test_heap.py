"""Memory that was freed does not stay with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from dflash.engine.heap import give_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kept, large = [], []
for _ in range(1000):
    large.append(np.ones(100_000, np.int8))
    kept.append(np.ones(100, np.int8))
large.clear()
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries keep no holes, or tell nobody"
)
def test_holes_between_small_blocks_go_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80e6
