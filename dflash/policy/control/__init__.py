"""Schedulers: how a policy's shape, and if asked its threshold, change over time."""

from __future__ import annotations

from dflash.policy.control.base import Control
from dflash.policy.control.confidence import ConfidenceScheduled
from dflash.policy.control.ema import Ema
from dflash.policy.control.goodput import Goodput
from dflash.policy.control.heuristic import Heuristic
from dflash.policy.control.schedule import Schedule
from dflash.policy.control.static import Static
from dflash.policy.control.window import Window

CONTROLS: tuple[type[Control], ...] = (
    ConfidenceScheduled,
    Ema,
    Goodput,
    Heuristic,
    Schedule,
    Static,
    Window,
)

__all__ = ["CONTROLS", "Control", "Static"]
