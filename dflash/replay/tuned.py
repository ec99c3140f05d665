"""What a search found: the candidates, the front, the recommendation, the surface over shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.policy.shape import Shape
from dflash.policy.topology import Bool
from dflash.replay.cost import CostModel
from dflash.replay.pareto import front
from dflash.replay.result import PolicyRow
from dflash.replay.statistics import Interval
from dflash.replay.work import OFF_CHOICE, ROUNDS, Speed, Work, speeds

TUNE_DEFINITIONS = {
    "front": "no other policy of the search is at least as fast, diverges as little and verifies as few rows "
    "a token, and better in one of them",
    "best": "the fastest policy that diverges in no more rounds than allowed; chosen by the same rounds that "
    "measure it, so that its own speed-up is flattered a little: best_share says how sure the choice is",
    "divergence": "off_choice, but 0 for lossless policies, whatever they accept; policies that diverge more "
    "than allowed do not take part in best_share, nor do censored ones",
    "censored": "the walk stops where the policy leaves the recorded answers, of whose tokens it covers the "
    "share covered: its tau and speed-up are those of beginnings, not comparable with whole walks, so that "
    "it has no difference to best and is not on the front",
    "difference_to_best": "speed-up minus that of the best policy, 95 % interval on the same resamples",
    "frugal": "of the policies whose difference to the best has an interval that reaches 0, the one that "
    "verifies the fewest rows a token: the one to prefer where many requests share the target",
    "surface": "speed-up of the fastest static policy of each length and number of branches that may be "
    "chosen",
}


class Search(StrEnum):
    """How the policies are gone through."""

    GRID = "grid"
    HALVING = "halving"


class Rung(NamedTuple):
    """One pass of a search: how many requests it saw, how many policies came and went on."""

    requests: int
    policies: int
    kept: int


class Dropped(NamedTuple):
    """A policy that a search by halving left behind, and what it had shown by then."""

    policy: Policy
    requests: int
    speed_up: float
    admissible: bool


class Cell(NamedTuple):
    """One shape of the surface; `requests` on which it was measured."""

    branches: int
    length: int
    policy: str
    speed_up: float
    interval: Interval | None
    requests: int


class Candidate(NamedTuple):
    """A policy that was judged on every request.

    Attributes:
        divergence: 0 for lossless policies; its interval None there.
        admissible: whether it may be recommended.
        front: whether it is on the Pareto front of speed-up, divergence and verified rows a token.
        comparable: whether neither it nor the best is censored, or it is the best.
    """

    policy: Policy
    row: PolicyRow
    speed: Speed
    divergence: float
    divergence_interval: Interval | None
    admissible: bool
    front: bool
    comparable: bool

    @property
    def covered(self) -> float | None:
        """Share of the answers' tokens that its walk covers; None if it did not walk."""
        return None if self.row.walked is None else self.row.walked.covered

    @property
    def censored(self) -> bool:
        """Whether its walk stops before the ends of the answers."""
        return _censored(self.row)


class Contest(NamedTuple):
    """The fastest static policy against the fastest adaptive one; `difference` is what the latter gains."""

    static: str
    adaptive: str
    difference: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """Everything that a search found.

    Attributes:
        candidates: fastest first.
        best: by place in `candidates`; `frugal` likewise.
        largest: the recorded shape, beyond which nothing is known.
        contest: None unless both kinds of policy were judged.
    """

    model: CostModel
    search: Search
    max_divergence: float
    requests: int
    rungs: tuple[Rung, ...]
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]
    best: int
    frugal: int
    contest: Contest | None
    surface: tuple[Cell, ...]
    largest: Shape

    def told(self) -> bool:
        """Return whether the times tell which policy is the fastest, though one-token decoding be untimed."""
        return all(self.priced(item) for item in self.candidates if item.admissible)

    def priced(self, item: Candidate) -> bool:
        """Return whether rounds of the size of a policy's were timed, or can be told from those that were."""
        return self.model.plain_timed or self.model.timed(item.speed.nodes)

    def speculates(self) -> bool | None:
        """Return whether the best policy drafts, and is faster than one-token decoding; None if untimed."""
        if not self.model.plain_timed:
            return None
        best = self.candidates[self.best]
        return best.speed.speed_up > 1.0 and best.policy.shape.filled(self.largest).length != 0

    def whole(self) -> Candidate | None:
        """Return the fastest policy that may be recommended and is not censored."""
        return next((item for item in self.candidates if item.admissible and not item.censored), None)

    def untold(self) -> int:
        """Return how many other policies may be as fast as the best: their paired interval reaches 0."""
        others = (item for place, item in enumerate(self.candidates) if place != self.best)
        found = [item.speed.difference_interval for item in others if item.admissible]
        return sum(interval is None or interval.high >= 0 for interval in found)

    def extrapolated(self) -> bool:
        """Return whether the batch lies beyond the batches of the cost model."""
        batches = self.model.step_time.verify_us.axes[1]
        return not min(batches) <= self.model.batch <= max(batches)

    def edges(self) -> tuple[str, ...]:
        """Return the bounds in which the best policy is as large as the recording, if that drafts at all."""
        policy = self.candidates[self.best].policy
        shape = policy.shape.filled(self.largest)
        at = [name for name in ("length", "branches") if getattr(shape, name) == getattr(self.largest, name)]
        return tuple(at) if shape.length else ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """Policies on the same requests."""

    policies: Sequence[Policy]
    rows: Sequence[PolicyRow]
    works: Sequence[Work]
    limit: float

    def divergence(self) -> F64:
        """Rounds that diverge, as a share; `[policies]`."""
        sums = np.array([work.sums().sum(axis=0) for work in self.works])
        lossless = np.array([row.lossless for row in self.rows])
        return np.where(lossless, 0.0, sums[:, OFF_CHOICE] / np.maximum(1.0, sums[:, ROUNDS]))

    @property
    def requests(self) -> int:
        """How many requests they were judged on."""
        return len(self.works[0].sums()) if self.works else 0

    def dropped(self, place: int) -> Dropped:
        """Leave one policy behind."""
        admissible = bool(self.divergence()[place] <= self.limit)
        return Dropped(self.policies[place], self.requests, self.works[place].speed_up(), admissible)

    def order(self) -> I64:
        """Places of the policies: those that may be chosen first, the fastest first."""
        gain = np.array([work.speed_up() for work in self.works])
        return np.lexsort((-gain, self.divergence() > self.limit))


def ranked(judged: Judgement) -> tuple[list[Candidate], list[Work]]:
    """Return the policies that have rounds, fastest first, those that may be chosen before the others."""
    divergence = judged.divergence()
    order = [place for place in judged.order().tolist() if judged.works[place].speed_up() > 0]
    works = [judged.works[place] for place in order]
    if not works:
        return [], []
    among: Bool = np.array([divergence[place] <= judged.limit for place in order])
    whole: Bool = np.array([not _censored(judged.rows[place]) for place in order])
    priced = speeds(works, 0, among & whole)
    measured = [speed for speed in priced if speed is not None]
    costs = [
        (-speed.speed_up, divergence[place], speed.verified_per_token)
        for place, speed in zip(order, measured, strict=True)
    ]
    on_front = np.zeros(len(order), dtype=bool)
    on_front[whole] = front(np.array(costs)[whole])
    found = []
    for index, (place, speed) in enumerate(zip(order, measured, strict=True)):
        row = judged.rows[place]
        comparable = index == 0 or bool(whole[index] and whole[0])
        if not comparable:
            speed = speed._replace(difference_interval=None)
        found.append(
            Candidate(
                judged.policies[place],
                row,
                speed,
                float(divergence[place]),
                None if row.lossless else speed.off_choice_interval,
                bool(among[index]),
                bool(on_front[index]),
                comparable,
            )
        )
    return found, works


def _censored(row: PolicyRow) -> bool:
    facts = row.walked
    return facts is not None and facts.left_trunk > 0 and facts.covered is not None and facts.covered < 1


def frugal(candidates: Sequence[Candidate]) -> int:
    """Return the place of the policy that verifies least among those that cannot be told from the best."""
    tied = [
        index
        for index, item in enumerate(candidates)
        if item.admissible
        and (
            index == 0
            or (item.speed.difference_interval is not None and item.speed.difference_interval.high >= 0)
        )
    ]
    return min(tied, key=lambda index: candidates[index].speed.verified_per_token)


def contest(candidates: Sequence[Candidate], works: Sequence[Work]) -> Contest | None:
    """Set the fastest static policy against the fastest adaptive one, of those that walk whole answers.

    Args:
        works: of the candidates.
    """
    first: dict[bool, int] = {}
    for index, item in enumerate(candidates):
        if item.admissible and not item.censored:
            first.setdefault(item.policy.control.adaptive, index)
    if len(first) < 2:
        return None
    _, adaptive = speeds([works[first[False]], works[first[True]]], 0, np.array([True, True]))
    names = (str(candidates[first[False]].policy), str(candidates[first[True]].policy))
    if adaptive is None:
        return None
    return Contest(*names, adaptive.difference, adaptive.difference_interval)


def surface(
    candidates: Sequence[Candidate], dropped: Sequence[Dropped], largest: Shape, requests: int
) -> tuple[Cell, ...]:
    """Return the fastest static policy of every length and number of branches.

    Args:
        largest: the recorded shape, for policies that leave a bound open.
        requests: on which the candidates were judged.
    """
    cells: dict[tuple[int, int], Cell] = {}

    def offer(policy: Policy, speed_up: float, interval: Interval | None, seen: int) -> None:
        if policy.control.adaptive or policy.shape.cuts() - {"length", "branches"}:
            return
        shape = policy.shape.filled(largest)
        cell = Cell(int(shape.branches or 1), int(shape.length or 0), str(policy), speed_up, interval, seen)
        known = cells.get(cell[:2])
        if known is None or (seen, speed_up) > (known.requests, known.speed_up):
            cells[cell[:2]] = cell

    for item in candidates:
        if item.admissible:
            offer(item.policy, item.speed.speed_up, item.speed.interval, requests)
    for gone in dropped:
        if gone.admissible:
            offer(gone.policy, gone.speed_up, None, gone.requests)
    return tuple(cells[key] for key in sorted(cells))
