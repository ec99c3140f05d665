"""The control `window`: shrink fast while few drafts are accepted, grow by one while most are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash.policy.control.base import Asked, Frame, Learning, Load, Scheduler, Seen, State
from dflash.policy.control.cut import rule_at
from dflash.policy.errors import BadParameter, ThresholdMissing
from dflash.policy.noise import F64, I64
from dflash.policy.parameter import Number, Whole
from dflash.policy.rule import Rule


@dataclass(frozen=True, slots=True)
class Window(Learning):
    """Watch accepted depth / drafted depth over the last rounds.

    Attributes:
        window: rounds that are remembered; one that is filled in part counts.
        low: below this share the length falls by 2 and the branches by 1, to no less than 1.
        high: above it the length grows by 1, and once it is largest the branches do.
        every: rounds between two changes; a change empties the window.
        dt: by how much the rule's threshold falls and rises along; 0 leaves it alone.
    """

    window: int = field(default=128, metadata={"type": Whole(1)})
    low: float = field(default=0.3, metadata={"type": Number(0.0, 1.0)})
    high: float = field(default=0.7, metadata={"type": Number(0.0, 1.0)})
    every: int = field(default=8, metadata={"type": Whole(1)})
    dt: float = field(default=0.0, metadata={"type": Number(0.0, 1.0)})

    name = "window"
    summary = "shrink where few of the last rounds' drafts were accepted, grow where most were"
    source = "acceptance over a sliding window of rounds"
    varies = ("length", "branches")

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise BadParameter("low", self.low, f"at most high, {self.high:g}")

    @property
    def moves_threshold(self) -> bool:
        """Whether it changes the rule's `t`."""
        return self.dt > 0

    def extremes(self, rule: Rule) -> tuple[Rule, ...]:
        """Return the rule with the lowest and the highest threshold; see `Control.extremes`."""
        t = getattr(rule, "t", None)
        if not self.moves_threshold or t is None:
            return (rule,)
        return rule_at(rule, min(self.dt, t)), rule_at(rule, 1.0)

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one whose window is empty; see `Control.scheduler`."""
        if self.moves_threshold and frame.t is None:
            raise ThresholdMissing(self.name)
        return _Scheduler(self, frame, size)


class _Scheduler(Scheduler):
    def __init__(self, control: Window, frame: Frame, size: int) -> None:
        self.control = control
        super().__init__(frame, size)

    def fresh(self, size: int) -> State:
        """Return empty windows; see `Scheduler.fresh`."""
        memory = (size, self.control.window)
        whole = ("rounds", "accepted", "drafted", "shift")
        return {
            **super().fresh(size),
            **{name: np.zeros(size, dtype=np.int64) for name in whole},
            "_next": np.zeros(size, dtype=np.int64),
            "_accepted": np.zeros(memory, dtype=np.int64),
            "_drafted": np.zeros(memory, dtype=np.int64),
        }

    def ask(self, who: I64, load: Load) -> Asked:
        """Move the threshold along with the shape; see `Scheduler.ask`."""
        return super().ask(who, load)._replace(t=self._threshold(who))

    def learn(self, who: I64, seen: Seen) -> None:
        """Remember the rounds, then act where enough of them are known; see `Scheduler.learn`."""
        state, place = self.state, self.state["_next"][who]
        for total, ring, value in (
            ("accepted", "_accepted", seen.accepted),
            ("drafted", "_drafted", seen.drafted),
        ):
            state[total][who] += value - state[ring][who, place]
            state[ring][who, place] = value
        state["_next"][who] = (place + 1) % self.control.window
        state["rounds"][who] = np.minimum(state["rounds"][who] + 1, self.control.window)
        state["known"][who] += 1
        enough = min(self.control.every, self.control.window)
        self._act(who[(state["rounds"][who] >= enough) & (state["known"][who] >= self.control.after)])

    def facts(self, scopes: I64) -> dict[str, list[Any]]:
        """Return some scopes' states with the thresholds that they come to; see `Scheduler.facts`."""
        facts = super().facts(scopes)
        if self.control.moves_threshold:
            facts["t"] = self._threshold(scopes).tolist()
        return facts

    def _act(self, who: I64) -> None:
        state, frame, control = self.state, self.frame, self.control
        who = who[state["drafted"][who] > 0]
        share = state["accepted"][who] / state["drafted"][who]
        low, high = share < control.low, share > control.high
        length, branches, shift = (state[name][who] for name in ("length", "branches", "shift"))
        longer = high & (length < frame.longest)
        wider = high & ~longer & (branches < frame.widest)
        state["length"][who] = np.where(low, np.maximum(length - 2, 1), length + longer)
        state["branches"][who] = np.where(low, np.maximum(branches - 1, 1), branches + wider)
        before = self._threshold(who)
        state["shift"][who] = shift + high.astype(np.int64) - low
        moved = self._threshold(who) != before
        state["shift"][who] = np.where(moved, state["shift"][who], shift)
        state["clipped"][who] = high & ~longer & ~wider
        changed = moved | (state["length"][who] != length) | (state["branches"][who] != branches)
        self._empty(who[changed])

    def _empty(self, who: I64) -> None:
        for name in ("rounds", "accepted", "drafted", "_next", "_accepted", "_drafted"):
            self.state[name][who] = 0

    def _threshold(self, who: I64) -> F64:
        t, dt = self.frame.t, self.control.dt
        if t is None:
            return np.full(len(who), np.nan)
        return np.clip(t + dt * self.state["shift"][who], min(dt, t), 1.0)
