"""A table of texts, and how numbers and values become texts in it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; every row has as many cells as the head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float | None) -> str:
    """Six digits, or a dash for what does not exist."""
    return "-" if value is None else f"{value:.6g}"


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.6g}"


def percentage(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.4g} %"


def interval(value: Sequence[float] | None) -> str:
    return "-" if value is None else f"{value[0]:.4g} to {value[1]:.4g}"


def cell(value: Any) -> str:
    """Any value in short: digests by their beginning, structures as JSON."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        text = value[:12] if _DIGEST.fullmatch(value) else value
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
