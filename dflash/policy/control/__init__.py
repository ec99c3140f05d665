"""Schedulers: how a policy's shape, and if asked its threshold, change over time."""

from __future__ import annotations

from dflash.policy.control.base import Control
from dflash.policy.control.static import Static

CONTROLS: tuple[type[Control], ...] = (Static,)
"""Every control, by name."""

__all__ = ["CONTROLS", "Control", "Static"]
