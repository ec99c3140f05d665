"""Whether speculation pays: now and then a plain round beside a live one, timed and recorded nowhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dflash.drafters.base import DraftShape, NoDrafter
from dflash.engine.control import LaneControl
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.engine.loop import LIVE, Engine, Sink
from dflash.policy.registry import Policy

# plain rounds may take this share of the time of live ones; a few live ones come first, which are slower
SHARE, FIRST = 0.05, 8
FEWEST_PAIRS, MOST_PAIRS = 5, 16
# standard errors, wide because they are estimated from few pairs
SURE = 3.0


class Pair(NamedTuple):
    """Microseconds of a live round and of the plain round right after it."""

    live: float
    plain: float


class Verdict(NamedTuple):
    """Speculative against plain decoding of one lane; times are means over the pairs, in microseconds.

    Attributes:
        speed_up: tokens a second over those of plain rounds, prompts left out.
        error: its standard error, from how much the pairs disagree.
    """

    speed_up: float
    error: float
    tau: float
    live_us: float
    plain_us: float

    @property
    def lost(self) -> bool:
        """Whether speculation was surely slower."""
        return self.speed_up + SURE * self.error < 1

    @property
    def paid(self) -> bool:
        """Whether speculation was surely faster."""
        return self.speed_up - SURE * self.error > 1


def judge_pairs(pairs: Sequence[Pair], tau: float) -> Verdict | None:
    """Compare by the ratio of summed times; None where there are too few pairs to tell."""
    if len(pairs) < FEWEST_PAIRS:
        return None
    live, plain = np.array(pairs, dtype=np.float64).T
    ratio = float(plain.sum() / live.sum())
    apart = float(np.square(plain - ratio * live).sum())
    error = math.sqrt(apart / (len(pairs) * (len(pairs) - 1))) / float(live.mean())
    return Verdict(tau * ratio, tau * error, tau, float(live.mean()), float(plain.mean()))


@dataclass(slots=True)
class _Stopwatch:
    """A sink that keeps nothing of a round but its microseconds."""

    us: float = 0.0

    def opened(self, lane: Lane) -> None:
        """A request starts."""

    def row(self, lane: Lane, row: Row) -> None:
        """Take a round's time."""
        self.us = float(row["round_us"])

    def closed(self, lane: Lane) -> None:
        """A request has ended."""

    def ended(self, order: int) -> None:
        """A prompt has no more requests."""


@dataclass(slots=True)
class PaceWatch:
    """A sink between an engine of one lane and its own sink, which times plain rounds beside live ones.

    A plain round is one of the same engine without drafter, from where the request stands; the trunk is cut
    back after it. Which live round it follows is settled before that round begins, so that slow rounds are
    not picked.
    """

    engine: Engine
    sink: Sink
    pairs: list[Pair] = field(default_factory=list)
    rounds: int = 0
    accepted: int = 0
    _spent: float = 0.0
    _due: bool = False

    def opened(self, lane: Lane) -> None:
        """Hand on."""
        self.sink.opened(lane)

    def row(self, lane: Lane, row: Row) -> None:
        """Hand on; time a plain round if this was the live round to compare it with."""
        self.sink.row(lane, row)
        if row["kind"] != LIVE:
            return
        self.rounds += 1
        self.accepted += len(row["accepted_nodes"])
        self._spent += float(row["round_us"])
        if self._due and self._room(lane):
            self.pairs.append(Pair(float(row["round_us"]), self._plain(lane)))
        plain = sum(pair.plain for pair in self.pairs)
        wanted = self.rounds >= FIRST and len(self.pairs) < MOST_PAIRS
        self._due = wanted and plain <= SHARE * self._spent

    def closed(self, lane: Lane) -> None:
        """Hand on."""
        self.sink.closed(lane)

    def ended(self, order: int) -> None:
        """Hand on."""
        self.sink.ended(order)

    def verdict(self) -> Verdict | None:
        """What the pairs come to; None where they are too few."""
        return judge_pairs(self.pairs, 1 + self.accepted / self.rounds) if self.rounds else None

    def _room(self, lane: Lane) -> bool:
        return not lane.done and len(lane.trunk) < self.engine.target.window

    def _plain(self, lane: Lane) -> float:
        engine, times = self.engine, _Stopwatch()
        control = LaneControl(Policy(engine.control.policy.rule), DraftShape(0), 1, None)
        plain = Engine(
            engine.target, engine.trunk, NoDrafter(), control, engine.context, engine.judge, engine.features
        )
        request = replace(lane.request, max_new_tokens=engine.target.window, stop=())
        copied = Lane(lane.index, request, frozenset(), lane.stream, None, list(lane.trunk))
        control.open(copied)
        plain.round([copied], times)
        engine.trunk.truncate(lane.index, len(lane.trunk) - 1)
        return times.us
