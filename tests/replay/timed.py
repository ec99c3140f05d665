"""Gives the rows of a tiny recording the times of a machine whose law is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from dflash.policy.step_time import Grid, StepTime

DRAFT, POSITION = 50.0, 30.0
FORWARD, ROW, CACHED = 400.0, 20.0, 2.0


def machine(longest: int = 8) -> StepTime:
    """The law itself, as a profile."""
    nodes, context = (0.0, 64.0), (0.0, 1000.0)
    verify = [FORWARD + ROW * (n + 1) + CACHED * c for n in nodes for c in context]
    draft = (DRAFT, DRAFT + POSITION * longest)
    return StepTime(
        Grid(((0.0, float(longest)), (1.0,)), draft), Grid((nodes, (1.0,), context), tuple(verify))
    )


def clocked(noise: float = 0.0, every: int = 0) -> Callable[[list[dict[str, Any]]], None]:
    """An `edit` for `Recorder` that times every live round, each a forward of its own.

    Args:
        noise: relative spread of the times.
        every: so many rounds apart something else runs, and the round takes twenty times as long; 0: never.
    """
    random, steps = np.random.default_rng(0), count()

    def edit(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["kind"] != 0:
                continue
            step = next(steps)
            slow = 20.0 if every and step % every == 0 else 1.0
            depth = max((1 + depth for depth in depths(row["node_parent"])), default=0)
            context = row["anchor_position"] + 1
            draft = (DRAFT + POSITION * depth) * np.exp(random.normal(0, noise))
            verify = FORWARD + ROW * (len(row["node_token"]) + 1) + CACHED * context
            rest = slow * verify * np.exp(random.normal(0, noise))
            row |= {"draft_us": draft, "verify_us": rest, "round_us": draft + rest, "step": step}
            row |= {"batch_size": 1, "context_length": context}

    return edit


def depths(parents: Any) -> list[int]:
    """0-based depth of every node."""
    found: list[int] = []
    for parent in np.asarray(parents).tolist():
        found.append(0 if parent < 0 else found[parent] + 1)
    return found
