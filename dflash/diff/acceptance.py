"""tau and acceptance per position of aligned requests, with paired bootstrap intervals over requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dflash.diff.flat import Block
from dflash.draftfile.summary import Kind
from dflash.policy.noise import I64
from dflash.replay.statistics import Interval, at_least, resampled, tau
from dflash.replay.tally import Counted, Tally

DEFINITIONS: Mapping[str, str] = {
    "tau": "accepted nodes + 1 per live round, before truncation, over the live rounds of aligned requests",
    "position": "live rounds that accept at least this many nodes, of all live rounds",
    "interval": "95 % percentile bootstrap over requests, the same requests drawn for both files; none for "
    "fewer than two requests with rounds on both sides",
}


@dataclass(frozen=True, slots=True)
class Shift:
    """One number on both sides; intervals are of the 95 % bootstrap, None without one."""

    a: float | None
    b: float | None
    interval_a: Interval | None
    interval_b: Interval | None
    difference: float | None
    difference_interval: Interval | None

    def to_dict(self) -> dict[str, Any]:
        return {key: list(item) if isinstance(item, tuple) else item for key, item in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
    """The section; `positions[i]` is the acceptance at position i + 1."""

    requests: int
    rounds_a: int
    rounds_b: int
    tau: Shift
    positions: tuple[Shift, ...]
    lengths_a: tuple[int, ...]
    lengths_b: tuple[int, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the paired interval of tau holds 0; without one, whether the same lengths were accepted."""
        interval = self.tau.difference_interval
        if interval is None:
            return self.lengths_a == self.lengths_b
        return interval.low <= 0.0 <= interval.high

    def to_dict(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "rounds": {"a": self.rounds_a, "b": self.rounds_b},
            "tau": self.tau.to_dict(),
            "positions": [shift.to_dict() for shift in self.positions],
            "lengths": {"a": list(self.lengths_a), "b": list(self.lengths_b)},
        }


@dataclass(slots=True)
class Acceptance:
    """Live rounds by request and accepted length, on both sides."""

    _a: list[Counted] = field(default_factory=list)
    _b: list[Counted] = field(default_factory=list)

    def add(self, a: Block, b: Block) -> None:
        """Count the live rounds of aligned requests."""
        for block, found in ((a, self._a), (b, self._b)):
            found.append(_lengths(block))

    def report(self) -> AcceptanceReport:
        """Close the section; requests without rounds on one side have no part in intervals."""
        counts = [Tally(_lengths=found).lengths() for found in (self._a, self._b)]
        width = max(count.shape[1] for count in counts)
        counts = [np.pad(count, ((0, 0), (0, width - count.shape[1]))) for count in counts]
        paired = (counts[0].sum(axis=1) > 0) & (counts[1].sum(axis=1) > 0)
        drawn = resampled([Tally(_lengths=[count[paired]]) for count in counts])
        totals = [count.sum(axis=0) for count in counts]
        rounds = [int(total.sum()) for total in totals]
        means = [tau(total) for total in totals]
        rates = [_rates(total) for total in totals]
        positions = tuple(
            _shift(
                (rates[0][index], rates[1][index]),
                (drawn[0].marginal[index], drawn[1].marginal[index]),
                drawn[1].marginal_difference[index],
            )
            for index in range(width - 1)
        )
        return AcceptanceReport(
            requests=int(paired.sum()),
            rounds_a=rounds[0],
            rounds_b=rounds[1],
            tau=_shift((means[0], means[1]), (drawn[0].tau, drawn[1].tau), drawn[1].difference),
            positions=positions,
            lengths_a=tuple(totals[0].tolist()),
            lengths_b=tuple(totals[1].tolist()),
        )


def same_report(lengths: tuple[int, ...], requests: int) -> AcceptanceReport:
    """The section of two equal files, from the histogram in their footer."""
    total = np.array(lengths or (0,), dtype=np.int64)
    rounds, certain = int(total.sum()), Interval(0.0, 0.0)
    shown = requests > 1 and rounds > 0
    shifts = [
        _shift((value, value), (None, None), certain if shown else None)
        for value in (tau(total), *_rates(total))
    ]
    return AcceptanceReport(
        requests, rounds, rounds, shifts[0], tuple(shifts[1:]), tuple(total.tolist()), tuple(total.tolist())
    )


def _shift(
    values: tuple[float | None, float | None],
    intervals: tuple[Interval | None, Interval | None],
    difference: Interval | None,
) -> Shift:
    a, b = values
    return Shift(a, b, *intervals, None if a is None or b is None else b - a, difference)


def _rates(total: I64) -> list[float | None]:
    rounds = int(total.sum())
    return [float(count / rounds) if rounds else None for count in at_least(total)]


def _lengths(block: Block) -> I64:
    live = block.scalar("kind") == Kind.LIVE
    length = np.maximum(block.flat("accepted_nodes").lengths[live], 0)
    width, requests = int(length.max(initial=0)) + 1, len(block.starts)
    cells = np.bincount(block.owner[live] * width + length, minlength=requests * width)
    return cells.reshape(requests, width)
