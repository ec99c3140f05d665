"""Lets these tests use the builders of draft files that other tests have."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "draftfile"), str(TESTS / "replay")]
