"""Times of the live rounds of aligned requests, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash.diff.flat import Block
from dflash.diff.spread import Spread
from dflash.draftfile.summary import Kind

TIMERS = ("draft_us", "verify_us", "round_us")
PERCENTILES = (100, 99, 90, 50, 10, 1, 0)


@dataclass(slots=True)
class Timing:
    """Spreads of each timer, in microseconds; a timer that failed is left out."""

    a: Mapping[str, Spread] = field(default_factory=lambda: {name: Spread() for name in TIMERS})
    b: Mapping[str, Spread] = field(default_factory=lambda: {name: Spread() for name in TIMERS})

    def add(self, a: Block, b: Block) -> None:
        """Take the live rounds of aligned requests, in whatever context they were."""
        for block, spreads in ((a, self.a), (b, self.b)):
            live = block.scalar("kind") == Kind.LIVE
            for name, spread in spreads.items():
                found = block.flat(name)
                spread.add(found.values[live & found.valid].astype(np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Return spreads, and how many times as long B took in the mean."""
        return {name: self._pair(self.a[name], self.b[name]) for name in TIMERS}

    def _pair(self, a: Spread, b: Spread) -> dict[str, Any]:
        means = a.mean, b.mean
        ratio = means[1] / means[0] if means[0] and means[1] is not None else None
        return {"a": a.to_dict(PERCENTILES), "b": b.to_dict(PERCENTILES), "ratio": ratio}
