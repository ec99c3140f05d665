"""The drafter that comes with this package, for the default target; its card lies beside its weights."""

from __future__ import annotations

from pathlib import Path

from dflash.target.catalogue import DEFAULT, find_packaged

NAME = "default"
FAMILY = "dspark"
FOLDER = Path(__file__).parent / "default"


def fits(target: str) -> bool:
    """Whether a target, as users name it, is the one that the shipped drafter was trained for."""
    return find_packaged(target) == DEFAULT
