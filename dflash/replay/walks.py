"""Walks of whole runs: what several policies would have done live, one row a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dflash.draftfile.reader import DraftFile
from dflash.policy.control.controller import Controller, frame_of
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.topology import Bool
from dflash.replay.batch import Part, columns_of
from dflash.replay.check import LISTED
from dflash.replay.controlled import ControlledWalk
from dflash.replay.definitions import LOSSY
from dflash.replay.dense import DENSE_COLUMNS, DenseBatch
from dflash.replay.group import Group
from dflash.replay.law_exact import LAW_COLUMNS, Lengths, joined, lengths, reach
from dflash.replay.near_ties import NearTie
from dflash.replay.result import PolicyRow, WalkFacts, open_row, tally_row
from dflash.replay.statistics import Interval, draws_of, interval_of, per_round, resampled, tau
from dflash.replay.steered import largest_shape, step_time_of
from dflash.replay.tally import Collector, Counts, Tally
from dflash.replay.verdicts import Verdicts
from dflash.replay.walk import WALK_COLUMNS, Walked, marked, walk

Narrow = npt.NDArray[np.integer[Any]]


class Mark(NamedTuple):
    """What is kept of a walk until it is known where the others end, small since there may be many.

    Attributes:
        rows: `[V]` visited rows, int32.
        owner: `[V]` request of each, int32.
        accepted: `[V]` nodes accepted, int16; `tried` min(accepted + 1, depth of the tree) likewise.
        left_trunk: `[V]` where the walk left its trunk.
    """

    rows: Narrow
    owner: Narrow
    accepted: Narrow
    tried: Narrow
    left_trunk: Bool

    @classmethod
    def of(cls, walked: Walked) -> Mark:
        """Mark the rounds of a walk."""
        accepted = walked.decision.accepted_count
        tried = np.minimum(accepted + 1, walked.rounds.trees.tree_depth)
        return cls(
            walked.rows.astype(np.int32),
            walked.owner.astype(np.int32),
            accepted.astype(np.int16),
            tried.astype(np.int16),
            walked.left_trunk,
        )


@dataclass(slots=True)
class WalkTally(Counts):
    """What one policy met on its walks.

    Attributes:
        all: every visited round.
        common: rounds that begin where no policy has left the trunk yet.
        kept: tokens kept, by request; `covered` those before the trunk was left, `outputs` all there are.
    """

    all: Tally = field(default_factory=Tally)
    common: Tally = field(default_factory=Tally)
    kept: list[I64] = field(default_factory=list)
    covered: list[I64] = field(default_factory=list)
    outputs: list[I64] = field(default_factory=list)
    left_trunk: int = 0
    clipped: int = 0
    near_ties: int = 0
    listed: list[NearTie] = field(default_factory=list)

    def add(self, dense: DenseBatch, walked: Sequence[Walked]) -> None:
        """Count one row group."""
        requests = len(dense.outputs)
        kept, covered = np.zeros(requests, dtype=np.int64), np.zeros(requests, dtype=np.int64)
        for item in walked:
            np.add.at(kept, item.owner, item.kept)
            covered += item.covered
            self.left_trunk += int(item.left_trunk.sum())
            self.clipped += item.clipped
            self.near_ties += len(item.near_ties)
            self.listed += item.near_ties[: LISTED - len(self.listed)]
        self.all.count([item.owner for item in walked], walked, requests)
        for found, value in ((self.kept, kept), (self.covered, covered), (self.outputs, dense.outputs)):
            found.append(value)

    def add_common(self, marks: Sequence[Mark], last: I64) -> None:
        """Count the rounds of one row group that all policies share.

        Args:
            last: `[requests]` the last row at which every policy is still on the trunk.
        """
        shared = [mark.rows <= last[mark.owner] for mark in marks]
        # a row group may have no rows that can be walked, and so no marks
        owners, accepted, tried = (
            [column(mark)[rows].astype(np.int64) for mark, rows in zip(marks, shared, strict=True)]
            for column in map(attrgetter, ("owner", "accepted", "tried"))
        )
        self.common.count_depths(owners, accepted, tried, len(last))


@dataclass(slots=True)
class Walking:
    """Walks every request of a run under several policies.

    Attributes:
        first: file of the run.
        strict: the trunk holds the target's choices.
        verdicts: takes every decision.
    """

    policies: tuple[Policy, ...]
    first: DraftFile
    strict: bool
    verdicts: Verdicts | None
    tallies: tuple[WalkTally, ...]
    _walkers: tuple[Path, tuple[StaticWalk | ControlledWalk, ...]] | None = None

    @classmethod
    def of(
        cls,
        policies: Sequence[Policy],
        collectors: Sequence[Sequence[Collector]],
        strict: bool,
        first: DraftFile,
        verdicts: Verdicts | None,
    ) -> Walking:
        """Begin; `collectors` are those of each policy."""
        tallies = tuple(WalkTally(Tally(collectors=tuple(some))) for some in collectors)
        return cls(tuple(policies), first, strict, verdicts, tallies)

    @property
    def in_order(self) -> bool:
        """Whether states are carried on, or anything is written; see `Counter.in_order`."""
        return self.verdicts is not None or any(policy.control.adaptive for policy in self.policies)

    def columns(self, file: DraftFile) -> set[str]:
        """Return the columns that policies and collectors read."""
        collectors = [collector for tally in self.tallies for collector in tally.all.collectors]
        more = {name for collector in collectors for name in collector.columns}
        read = {name for policy in self.policies for name in policy.control.columns}
        return {*columns_of(self.policies, file), *WALK_COLUMNS, *DENSE_COLUMNS, *more, *read}

    def add(self, group: Group) -> None:
        """Walk one row group."""
        dense = group.dense
        rounds = dense.batch.rounds(group.table.column_names)
        parts = [marked(dense, part) for part in dense.batch.parts(rounds)]
        marks: list[list[Mark]] = []
        for policy, walk_on, tally in zip(
            self.policies, self._walkers_of(group.file), self.tallies, strict=True
        ):
            walked = walk_on.walk(dense, parts, group.file.header.tie_tolerance, self.strict)
            tally.all.contexts.update(part.context for part in parts)
            tally.add(dense, walked)
            marks.append([Mark.of(item) for item in walked])
            if self.verdicts is not None:
                self.verdicts.add(str(policy), dense.batch, [item.rows for item in walked], walked)
        last = _last_common(dense, marks)
        for tally, some in zip(self.tallies, marks, strict=True):
            tally.add_common(some, last)

    def forget(self) -> None:
        """Let go of what belongs to one file; see `Counter.forget`."""
        self._walkers = None

    def rows(self) -> list[PolicyRow]:
        """Return one row a policy."""
        wholes = resampled([tally.all for tally in self.tallies])
        # alone a policy has nobody to share rounds with
        common = resampled([tally.common for tally in self.tallies]) if len(self.tallies) > 1 else wholes
        kept = _kept_intervals(self.tallies)
        rows = []
        for index, (policy, tally, whole, interval) in enumerate(
            zip(self.policies, self.tallies, wholes, kept, strict=True)
        ):
            simulated = _simulated(policy, self.first.header.lanes)
            row = _walk_row(tally_row(policy, tally.all, whole), tally, interval, simulated)
            mean, base = (tau(item.common.lengths().sum(axis=0)) for item in (tally, self.tallies[0]))
            if index and mean is not None and base is not None:
                row = replace(row, difference=mean - base, difference_interval=common[index].difference)
            rows.append(row)
        return rows

    def _walkers_of(self, file: DraftFile) -> tuple[StaticWalk | ControlledWalk, ...]:
        """Every part of a run comes from an engine of its own."""
        if self._walkers is None or self._walkers[0] != file.path:
            self._walkers = (file.path, tuple(walker(policy, file) for policy in self.policies))
        return self._walkers[1]


class StaticWalk:
    """One policy's walk under a shape and a rule that stay."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def walk(self, dense: DenseBatch, parts: Sequence[Part], tolerance: float, strict: bool) -> list[Walked]:
        """Follow the policy through one row group; see `dflash.replay.walk.walk`."""
        return [walk(self.policy, dense, part, tolerance, strict) for part in parts]


def walker(policy: Policy, file: DraftFile) -> StaticWalk | ControlledWalk:
    """Return what follows a policy through a file.

    Raises:
        StepTimeMissing: the control predicts step times, and the header has no profile.
    """
    if not policy.control.adaptive:
        return StaticWalk(policy)
    frame = frame_of(policy.rule, policy.shape, largest_shape(file), step_time_of(file))
    lanes = file.header.lanes
    return ControlledWalk(policy, lambda count: Controller(policy.control, frame, count), lanes)


def _last_common(dense: DenseBatch, marks: Sequence[Sequence[Mark]]) -> I64:
    last = dense.trunk.first + dense.trunk.rows
    for some in marks:
        for mark in some:
            np.minimum.at(last, mark.owner[mark.left_trunk], mark.rows[mark.left_trunk])
    return last


def _simulated(policy: Policy, lanes: int) -> tuple[str, ...]:
    """Say where a walk is a simulation, since requests depend on each other."""
    control = policy.control
    if not control.simulated(lanes):
        return ()
    return (
        f"a simulation: control {control.name} ties requests together; they run in file order in {lanes} "
        "lanes, which empty at the end of a row group",
    )


def _kept_intervals(tallies: Sequence[WalkTally]) -> list[Interval | None]:
    """Return the interval of tokens kept per round of each policy, over the same resamples of requests."""
    kept = [_joined(tally.kept) for tally in tallies]
    rounds = [tally.all.lengths().sum(axis=1) for tally in tallies]
    used = rounds[0] > 0
    if used.sum() < 2:
        return [None] * len(tallies)
    columns = np.column_stack([column[used] for pair in zip(kept, rounds, strict=True) for column in pair])
    draws = draws_of(columns.astype(np.float64), len(columns))
    return [interval_of(draws[:, place] / draws[:, place + 1]) for place in range(0, 2 * len(tallies), 2)]


def _joined(parts: Sequence[I64]) -> I64:
    """Counts of all requests, of which there may be none."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _walk_row(
    row: PolicyRow, tally: WalkTally, kept_interval: Interval | None, simulated: tuple[str, ...]
) -> PolicyRow:
    kept, covered, outputs = map(_joined, (tally.kept, tally.covered, tally.outputs))
    rounds = tally.all.lengths().sum(axis=1).astype(np.float64)
    total = int(outputs.sum())
    facts = WalkFacts(
        covered=float(covered.sum()) / total if total else None,
        left_trunk=tally.left_trunk,
        clipped=tally.clipped,
        near_ties=tally.near_ties,
        listed=tuple(tally.listed[:LISTED]),
    )
    return replace(
        row,
        exactness=LOSSY if row.walk != "path-exact" else "simulation" if simulated else "path-exact",
        remarks=(*row.remarks, *simulated),
        emitted=int(kept.sum()),
        emitted_per_round=float(kept.sum() / rounds.sum()) if rounds.sum() else None,
        emitted_interval=kept_interval,
        walked=facts,
    )


@dataclass(slots=True)
class LawTally(Counts):
    """The law of one policy's rounds, a row group each."""

    collectors: Sequence[Collector] = ()
    parts: list[Lengths] = field(default_factory=list)


@dataclass(slots=True)
class LawWalking:
    """Gives the law of the rounds of several policies along every trunk."""

    policies: tuple[Policy, ...]
    tallies: tuple[LawTally, ...]

    @classmethod
    def of(cls, policies: Sequence[Policy], collectors: Sequence[Sequence[Collector]]) -> LawWalking:
        """Begin; `collectors` are those of each policy."""
        return cls(tuple(policies), tuple(LawTally(tuple(some)) for some in collectors))

    @property
    def in_order(self) -> bool:
        """Nothing is carried on; see `Counter.in_order`."""
        return False

    def columns(self, file: DraftFile) -> set[str]:
        """Return the columns that hold the laws along trunks."""
        return {*LAW_COLUMNS, *DENSE_COLUMNS}

    def add(self, group: Group) -> None:
        """Follow the trunks of one row group."""
        dense = group.dense
        context = dense.trunk.mean_context(dense.batch.table)
        for policy, tally in zip(self.policies, self.tallies, strict=True):
            length = policy.shape.length
            longest = int(group.file.header.shape["length"]) if length is None else length
            tally.parts.append(lengths(dense, reach(dense, longest, policy.rule)))
            for collector in tally.collectors:
                collector.count_law(longest, tally.parts[-1].rounds, tally.parts[-1].tokens, context)

    def forget(self) -> None:
        """Nothing does; see `Counter.forget`."""

    def rows(self) -> list[PolicyRow]:
        """Return one row a policy."""
        return [
            _law_row(policy, joined(tally.parts))
            for policy, tally in zip(self.policies, self.tallies, strict=True)
        ]


def _law_row(policy: Policy, law: Lengths) -> PolicyRow:
    rounds, tokens = float(law.rounds.sum()), int(law.tokens.sum())
    return replace(
        open_row(policy),
        exactness="law-exact",
        walk="law-exact",
        lossless=True,
        rounds=rounds,
        emitted=tokens,
        emitted_per_round=tokens / rounds if rounds else None,
        emitted_interval=per_round(law.tokens, law.rounds, law.variance),
        remarks=(
            "rounds are expected ones, given the texts; the lengths of the last ones depend on what came "
            "after an answer, so that there is no tau: compare tokens kept a round",
        ),
    )
