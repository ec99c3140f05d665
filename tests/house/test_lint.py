"""Style and types are part of the tests, so that a change that breaks them cannot land."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["ruff check", "ruff format --check", "mypy"])
def test_the_linters_are_content(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
