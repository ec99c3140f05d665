"""The base of every control: a frozen value that makes schedulers, which say in what shape to draft next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dflash.policy.noise import F64, I64
from dflash.policy.parameter import Choice, Whole
from dflash.policy.rule import Rule
from dflash.policy.step_time import StepTime

Bool = npt.NDArray[np.bool_]
State = dict[str, npt.NDArray[Any]]


class Scope(StrEnum):
    """Over which rounds a scheduler keeps one state: those of a request, or all of a run in file order."""

    REQUEST = "request"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a scheduler is given once.

    Attributes:
        length: of the policy's shape, where the scheduler starts; `branches` likewise.
        longest: the largest length that may be drafted, live or within a dense file; `widest` likewise.
        t: the rule's threshold, None if it has none.
        step_time: how long a round takes, None where no profile is known.
    """

    length: int
    branches: int
    longest: int
    widest: int
    t: float | None = None
    step_time: StepTime | None = None


class Asked(NamedTuple):
    """In what shape and under which threshold k rounds are to run.

    Attributes:
        length: `[k]`; `branches` likewise.
        survival: `[k]` the lowest survival of a node that is verified, 0 for every node.
        t: `[k]` the rule's threshold, NaN if it has none.
        clipped: `[k]` whether more was wanted than may be drafted.
    """

    length: I64
    branches: I64
    survival: F64
    t: F64
    clipped: Bool

    def take(self, which: I64) -> Asked:
        """Return some of the rounds."""
        shape = (self.length[which], self.branches[which], self.survival[which])
        return Asked(*shape, self.t[which], self.clipped[which])

    @classmethod
    def joined(cls, parts: Sequence[Asked]) -> Asked:
        """Put the rounds of one or more behind each other."""
        length, branches, survival, t, clipped = map(np.concatenate, zip(*parts, strict=True))
        return cls(length, branches, survival, t, clipped)


class Load(NamedTuple):
    """The batch that the next rounds share: how many requests, and the mean context of each in tokens."""

    requests: int
    context: float


class Seen(NamedTuple):
    """What one step came to, by scope: sums over the rounds of each.

    A stream of several lanes sees all rounds of a step as one.

    Attributes:
        rounds: `[k]` how many.
        accepted: `[k]` accepted depth; `drafted` the depth of the trees; `tried` min(accepted + 1, drafted).
        full: `[k]` rounds that accepted as many nodes as they were asked to draft.
        survival: of every drafted node, before any was cut: the drafter's word for how likely it and its
            ancestors are accepted; empty unless the control reads confidence.
    """

    rounds: I64
    accepted: I64
    drafted: I64
    tried: I64
    full: I64
    survival: F64

    def each(self, change: Callable[[I64], I64]) -> Seen:
        """Return this with every count changed."""
        counts = (change(self.rounds), change(self.accepted), change(self.drafted))
        return Seen(*counts, change(self.tried), change(self.full), self.survival)


class Scheduler(ABC):
    """The mutable side of a control: what it knows of `size` scopes, and what it asks for in each.

    Attributes:
        state: arrays of one row a scope: the shape to ask for, how many steps are known, and more.
    """

    def __init__(self, frame: Frame, size: int) -> None:
        self.frame = frame
        self.state = self.fresh(size)

    def fresh(self, size: int) -> State:
        """Return the state of scopes of which nothing is known."""
        return {
            "length": np.full(size, self.frame.length, dtype=np.int64),
            "branches": np.full(size, self.frame.branches, dtype=np.int64),
            "clipped": np.zeros(size, dtype=bool),
            "known": np.zeros(size, dtype=np.int64),
        }

    def reset(self, who: I64) -> None:
        """Forget some scopes."""
        for name, column in self.fresh(len(who)).items():
            self.state[name][who] = column

    def ask(self, who: I64, load: Load) -> Asked:
        """Return what the next round of each of these scopes is to be.

        Args:
            who: `[k]` scopes, each once.
            load: the batch that they form.
        """
        t = np.nan if self.frame.t is None else self.frame.t
        return Asked(
            self.state["length"][who],
            self.state["branches"][who],
            np.zeros(len(who)),
            np.full(len(who), t),
            self.state["clipped"][who],
        )

    @abstractmethod
    def learn(self, who: I64, seen: Seen) -> None:
        """Take in what rounds came to.

        Args:
            who: `[k]` scopes, each once.
            seen: by scope.
        """

    def passed(self, who: I64) -> None:  # noqa: B027
        """Take in that a step of these scopes was asked for and has run, whatever it came to."""

    def held(self, who: I64) -> int:
        """For how many further steps of these scopes `ask` stays as it is, whatever is learned by then."""
        return 0

    def facts(self, scopes: I64) -> dict[str, list[Any]]:
        """Return some scopes' states, each a column of JSON; names with an underscore are working memory."""
        return {name: column[scopes].tolist() for name, column in self.state.items() if name[0] != "_"}


class Control(ABC):
    """How a policy changes over time; its dataclass fields are its parameters.

    Attributes:
        name: in policies.
        summary: one sentence.
        source: where it comes from.
        varies: bounds of the shape that it changes.
        columns: draft-file columns that it reads beside the trees.
        batch: whether it depends on the requests of one step together; a walk is then a simulation.
        timed: whether it reads a step-time profile.
    """

    __slots__ = ()
    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    varies: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]] = ()
    batch: ClassVar[bool] = False
    timed: ClassVar[bool] = False

    @property
    def adaptive(self) -> bool:
        """Whether anything changes at all."""
        return bool(self.varies)

    @property
    def moves_threshold(self) -> bool:
        """Whether it changes the rule's `t`."""
        return False

    def extremes(self, rule: Rule) -> tuple[Rule, ...]:
        """Return the rule as it may come to be, between these."""
        return (rule,)

    @property
    def delay(self) -> int:
        """After how many further rounds an outcome is known."""
        return 0

    @property
    def streams(self) -> bool:
        """Whether the state is carried from request to request."""
        return False

    @property
    def couples(self) -> bool:
        """Whether a request's rounds depend on other requests."""
        return self.batch or self.streams

    def simulated(self, lanes: int) -> bool:
        """Whether a walk over requests that were recorded in so many lanes is a simulation."""
        return self.batch or (self.streams and lanes > 1)

    @abstractmethod
    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return a scheduler for `size` scopes of which nothing is known.

        Raises:
            StepTimeMissing: the control is `timed`, and the frame has no profile.
            ThresholdMissing: the control `moves_threshold`, and the frame has none.
        """


@dataclass(frozen=True, slots=True)
class Learning(Control):
    """A control that learns from the outcomes of earlier rounds.

    Attributes:
        scope: whose rounds it learns from.
        lag: rounds that pass before an outcome is known, since a GPU host learns of acceptance late.
        after: rounds that must be known before it first changes anything.
    """

    scope: str = field(
        default=Scope.REQUEST.value, metadata={"type": Choice(tuple(scope.value for scope in Scope))}
    )
    lag: int = field(default=2, metadata={"type": Whole(0)})
    after: int = field(default=8, metadata={"type": Whole(0)})

    @property
    def delay(self) -> int:
        """After how many further rounds an outcome is known."""
        return self.lag

    @property
    def streams(self) -> bool:
        """Whether the state is carried from request to request."""
        return self.scope == Scope.STREAM
