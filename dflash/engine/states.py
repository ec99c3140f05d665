"""States of control as they are stored: JSON of what decided a round, made of numbers where it is recorded.

This needs no torch, so that it may happen in another process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Columns = Mapping[str, Sequence[bool | int | float]]
# how many rounds a step had, and what decided each of them, by name, or the one state that they shared
States = tuple[int, Columns]

_encode = json.JSONEncoder(sort_keys=True, allow_nan=False).encode


def state_text(state: Mapping[str, Any]) -> str:
    """The `control_state` of a round, from what decided it."""
    return _encode(state)


def state_texts(states: States) -> list[str]:
    """The `control_state` of each round of a step.

    Raises:
        ValueError: a number is not finite, which JSON cannot hold.
    """
    rows, columns = states
    found = _texts(columns)
    return found if len(found) == rows else found * rows


def _texts(columns: Columns) -> list[str]:
    """What `state_text` makes of each row of columns, much faster for many."""
    names = sorted(columns)
    form = "{" + ", ".join(f"{json.dumps(name)}: %s" for name in names) + "}"
    return [form % row for row in zip(*(_words(columns[name]) for name in names), strict=True)]


def _words(column: Sequence[bool | int | float]) -> list[str]:
    """Numbers and truths as JSON writes them."""
    if not np.isfinite(column).all():
        raise ValueError(f"expected finite states of control, found {column}")
    texts = map(repr, column)
    return [text.lower() for text in texts] if isinstance(column[0], bool) else list(texts)
