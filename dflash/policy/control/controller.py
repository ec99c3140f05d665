"""The loop around a scheduler: ask, run the rounds, tell what they came to; it is known `lag` steps later."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from dflash.policy.control.base import Asked, Control, Frame, Load, Seen, State
from dflash.policy.noise import F64, I64
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape
from dflash.policy.step_time import StepTime

_NO_SURVIVAL = np.empty(0)
# requests of a step by their numbers, and how many the load speaks of
_Batch = tuple[bytes, int]


class Outcome(NamedTuple):
    """What the k rounds of one step came to.

    Attributes:
        accepted: `[k]` accepted depth; `drafted` the depth of the tree; `length` the one asked for.
        survival: of the drafted nodes of all rounds, before any was cut; see `Seen`.
    """

    accepted: I64
    drafted: I64
    length: I64
    survival: F64 = _NO_SURVIVAL


class Ahead(NamedTuple):
    """What a control asks for from now on.

    Attributes:
        coming: by step; the last goes for all further ones, unless something changes.
        sure: steps for which that is decided already, if their load comes true.
        chained: of these, how many the next choice waits for, or all where a choice is made every step; none
            where it is not positive. Those behind them run while the choice is made.
    """

    coming: list[Asked]
    sure: int
    chained: int

    @property
    def lasts(self) -> bool:
        """Whether a choice stands for a known time, so that there is nothing to guess beyond `sure`."""
        return self.chained < self.sure

    def together(self, step: int, count: int) -> bool:
        """Whether so many steps from this one on may be read at once.

        Where a choice lasts, a chain that begins before its outcomes are all known and ends later would keep
        the next choice waiting for rounds that it does not depend on.
        """
        return step + count <= (self.chained if step < self.chained else self.sure)

    def at(self, step: int) -> Asked:
        """What it asks for after so many steps."""
        return self.coming[min(step, len(self.coming) - 1)]

    def later(self) -> Ahead:
        """The same a step later."""
        return Ahead(self.coming[1:] or self.coming, self.sure - 1, self.chained - 1)

    def last(self, step: int, count: int) -> bool:
        """Whether so many steps from this one on are of one shape, as far as is known."""
        first = self.at(step)
        return all(same_shape(self.at(step + more), first) for more in range(1, count))


class _Foreseen(NamedTuple):
    """What is decided for some requests; `fresh` until a step is told."""

    batch: _Batch
    ahead: Ahead
    fresh: bool


class _Stands(NamedTuple):
    """What some requests were told to do last."""

    batch: _Batch
    asked: Asked


def same_shape(one: Asked, other: Asked) -> bool:
    """Whether rounds of the same requests have the same lengths and branches."""
    if one is other:
        return True
    return bool((one.length == other.length).all() and (one.branches == other.branches).all())


class Controller:
    """Runs a control over the steps of a run, live or in a walk, the requests of a step side by side.

    Args:
        control: of the policy.
        frame: what it may ask for.
        requests: how many there are to tell apart: lanes of an engine, requests of a walk.
        foresees: whether it will be asked to `foresee`, for which it keeps states of all of them.
    """

    def __init__(self, control: Control, frame: Frame, requests: int, *, foresees: bool = False) -> None:
        self.control = control
        self._foresees = foresees and not control.batch
        self.scheduler = control.scheduler(frame, 1 if control.streams else requests)
        self._late: deque[tuple[I64, Seen]] = deque()
        # what a state will be as outcomes become known, where nothing else changes it
        self._states = deque([self.scheduler.state])
        self._ahead: _Foreseen | None = None
        self._stands: _Stands | None = None

    def open(self, who: I64) -> None:
        """Begin new requests under these numbers; a stream goes on."""
        self._ahead = self._stands = None
        if self.control.streams:
            return
        for state in reversed(self._states):
            self.scheduler.state = state
            self.scheduler.reset(who)
        self._late = deque(_without(who, item) for item in self._late)

    def ask(self, who: I64, load: Load) -> Asked:
        """Return what the next round of each of these requests is to be."""
        batch = _batch(who, load)
        stands = self._stands
        if stands is None or stands.batch != batch or not self.scheduler.held(self._scopes(who)):
            stands = self._stands = _Stands(batch, self._ask(who, load))
        return stands.asked

    def _ask(self, who: I64, load: Load) -> Asked:
        asked = self.scheduler.ask(self._scopes(who), load)
        return asked.take(np.zeros_like(who)) if self.control.streams else asked

    def foresee(self, who: I64, load: Load, steps: int = sys.maxsize) -> Ahead:
        """Return what `ask` will return from now on, as far as that is decided by now.

        The answer for some requests stands until outcomes are told or a request begins, whatever the load's
        context; where choices last, also after outcomes that change nothing of the next `steps`.
        """
        batch, found = _batch(who, load), self._ahead
        if found is None or found.batch != batch or not (found.fresh or found.ahead.sure >= steps):
            found = self._ahead = _Foreseen(batch, self._look(who, load), fresh=True)
        return found.ahead

    def _look(self, who: I64, load: Load) -> Ahead:
        delay = self.control.delay
        if (steps := self.scheduler.held(self._scopes(who))) > delay:
            return Ahead([self.ask(who, load)], steps, steps - delay)
        present = self.scheduler.state
        try:
            return self._decided(who, load) if self._foresees else self._simulated(who, load)
        finally:
            self.scheduler.state = present

    def _decided(self, who: I64, load: Load) -> Ahead:
        """Look at states that are there already."""
        delay, coming = self.control.delay, []
        unheard = delay + 1 - len(self._states)
        for state in self._states:
            self.scheduler.state = state
            coming.append(self._ask(who, load))
        return Ahead([coming[0]] * unheard + coming, delay + 1, delay + 1)

    def _simulated(self, who: I64, load: Load) -> Ahead:
        """Go on without further outcomes."""
        scopes, delay = self._scopes(who), self.control.delay
        coming: list[Asked] = []
        self.scheduler.state = _copied(self.scheduler.state)
        stays = False
        for step in range(delay + 1):
            coming.append(coming[-1] if stays else self._ask(who, load))
            self.scheduler.passed(scopes)
            stays = self.scheduler.held(scopes) > 0
            known = len(self._late) + step - delay
            if 0 <= known < len(self._late):
                self._learn(self._late[known])
        sure = delay + 1 + (held := self.scheduler.held(scopes))
        return Ahead(coming, sure, sure - delay if held else sure)

    def tell(self, who: I64, outcome: Outcome) -> None:
        """Take in one step's rounds, at most one a request."""
        if (found := self._ahead) is not None:
            later = _Foreseen(found.batch, found.ahead.later(), fresh=False)
            self._ahead = later if found.ahead.lasts else None
        seen = _seen(outcome)
        scopes = self._scopes(who)
        if self.control.streams:
            who, seen = scopes, seen.each(lambda column: column.sum(keepdims=True))
        if not self._foresees:
            self.scheduler.passed(scopes)
            self._late.append((who, seen))
            if len(self._late) > self.control.delay:
                self._learn(self._late.popleft())
            return
        self.scheduler.state = _copied(self._states[-1])
        self._states.append(self.scheduler.state)
        self._learn((who, seen))
        if len(self._states) > self.control.delay + 1:
            self._states.popleft()
        self.scheduler.state = self._states[0]

    def _learn(self, known: tuple[I64, Seen]) -> None:
        scopes, seen = known
        if len(scopes):
            self.scheduler.learn(scopes, seen)

    def facts(self, request: int) -> dict[str, Any]:
        """Return the state that decides a request's next round, as `control_state` stores it."""
        return {name: values[0] for name, values in self.columns(np.array([request])).items()}

    def columns(self, who: I64) -> dict[str, list[Any]]:
        """Return `facts` of several requests, a column each, of one row where they share a state."""
        return self.scheduler.facts(self._scopes(who))

    def _scopes(self, who: I64) -> I64:
        """Requests of a stream are one scope."""
        return np.zeros(1, dtype=np.int64) if self.control.streams else who


def frame_of(rule: Rule, shape: Shape, largest: Shape, step_time: StepTime | None = None) -> Frame:
    """Return where a policy starts and what bounds it.

    Args:
        rule: of the policy; `shape` likewise.
        largest: what may be drafted at most, both bounds given.
    """
    start = shape.filled(largest)
    if start.length is None or start.branches is None or largest.length is None or largest.branches is None:
        raise ValueError("expected the largest shape with a length and branches")
    t = getattr(rule, "t", None)
    return Frame(start.length, start.branches, largest.length, largest.branches, t, step_time)


def _batch(who: I64, load: Load) -> _Batch:
    return who.tobytes(), load.requests


def _copied(state: State) -> State:
    return {name: column.copy() for name, column in state.items()}


def _seen(outcome: Outcome) -> Seen:
    accepted, drafted, length, survival = outcome
    full = (accepted == length).astype(np.int64)
    return Seen(np.ones_like(accepted), accepted, drafted, np.minimum(accepted + 1, drafted), full, survival)


def _without(gone: I64, late: tuple[I64, Seen]) -> tuple[I64, Seen]:
    scopes, seen = late
    kept = ~np.isin(scopes, gone)
    return scopes[kept], seen.each(lambda column: column[kept])
