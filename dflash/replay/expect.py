"""`replay --expect`: what several policies accept on average in the recorded rounds, one row a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.policy.context import RuleContext, context_from_header
from dflash.policy.noise import F64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Part, batches
from dflash.replay.chances import chances, drafted_chances, needs
from dflash.replay.errors import StaticOnly
from dflash.replay.result import Acceptance, PolicyRow, open_row
from dflash.replay.statistics import Interval, draws_of, interval_of
from dflash.replay.tempered import TEMPERED_COLUMNS, require_tempered, tempered


class Expect(StrEnum):
    """What is integrated out."""

    COINS = "coins"
    DRAFTS = "drafts"


@dataclass(slots=True)
class Expected:
    """Sums of chances of one policy by request, which merge by putting requests side by side.

    Attributes:
        sums: a row group each: `[requests, 1 + 2 x longest]` rounds, then the chance to accept at least 1, 2,
            ... nodes, then the chance to try depth 1, 2, ...
        nodes: of the trees it used.
        contexts: the contexts met.
    """

    sums: list[F64] = field(default_factory=list)
    nodes: int = 0
    contexts: set[RuleContext] = field(default_factory=set)

    def add(self, policy: Policy, parts: Sequence[Part], requests: int, kind: Expect, longest: int) -> None:
        """Add one row group."""
        total = np.zeros((requests, 1 + 2 * longest))
        for part in parts:
            cut = policy.shape.cut(part.rounds)
            give = drafted_chances if kind is Expect.DRAFTS else chances
            chance = give(policy.rule, cut, part.context)
            reached = chances(policy.rule, cut, part.context) if kind is Expect.DRAFTS else chance
            total[:, 0] += np.bincount(part.owner, minlength=requests)
            place = part.owner[cut.node_round] * longest + cut.node_depth - 1
            for offset, weight in ((1, chance), (1 + longest, _tried(cut, reached))):
                counts = np.bincount(place, weights=weight, minlength=requests * longest)
                total[:, offset : offset + longest] += counts.reshape(requests, longest)
            self.nodes += len(chance)
            self.contexts.add(part.context)
        self.sums.append(total)


def expect_all(
    files: Sequence[DraftFile],
    policies: Sequence[Policy],
    kind: Expect,
    longest: int,
    temperature: float | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[PolicyRow]:
    """Give the expected acceptance of several policies in the live rounds of a run, read once.

    Args:
        kind: what is integrated out.
        longest: the deepest tree that was recorded.
        temperature: at which the target judges, if not the recorded one.
        progress: called after each row group.

    Raises:
        StaticOnly: a policy adapts.
        DflashError: whatever `chances` and `drafted_chances` raise.
    """
    for policy in policies:
        if policy.control.adaptive:
            raise StaticOnly(str(policy))
    found = [Expected() for _ in policies]
    for file in files:
        columns = expect_columns(policies, file, kind)
        if temperature is not None:
            require_tempered(policies, file)
            columns |= {*TEMPERED_COLUMNS}
        for batch in batches(file, columns):
            parts = batch.parts(batch.rounds(columns))
            if temperature is not None:
                parts = [tempered(part, temperature, file.header.vocab_size) for part in parts]
            for policy, expected in zip(policies, found, strict=True):
                expected.add(policy, parts, len(batch.requests), kind, longest)
            progress()
    return rows_of(policies, found, kind)


def expect_columns(policies: Sequence[Policy], file: DraftFile, kind: Expect) -> set[str]:
    """Return the columns that the chances of some policies are made of, in any context of a file."""
    contexts = [context_from_header(file.header.raw, temperature) for temperature in (0.0, 1.0)]
    drafts = kind is Expect.DRAFTS
    return {
        name
        for policy in policies
        for context in contexts
        for name in (*needs(policy.rule, context, drafts), *policy.shape.needs(context))
    }


def rows_of(policies: Sequence[Policy], found: Sequence[Expected], kind: Expect) -> list[PolicyRow]:
    """Sum up what every policy came to; differences are taken from the first one, on the same resamples."""
    rows: list[PolicyRow] = []
    first: tuple[float, F64] | None = None
    for policy, expected in zip(policies, found, strict=True):
        sums = np.concatenate(expected.sums) if expected.sums else np.zeros((0, 1))
        sums = sums[sums[:, 0] > 0]
        row = _row(policy, expected, kind)
        if len(sums):
            longest = (sums.shape[1] - 1) // 2
            draws = draws_of(sums, len(sums)) if len(sums) > 1 else np.zeros((0, sums.shape[1]))
            mean, means = _tau(sums.sum(axis=0)[None], longest), _tau(draws, longest)
            first = (float(mean[0]), means) if first is None else first
            row = replace(
                row,
                rounds=int(sums[:, 0].sum()),
                tau=float(mean[0]),
                interval=_interval(means),
                acceptance=_acceptance(sums.sum(axis=0), draws, longest),
                difference=float(mean[0]) - first[0] if rows else None,
                difference_interval=_interval(means - first[1]) if rows else None,
            )
        rows.append(row)
    return rows


def _row(policy: Policy, expected: Expected, kind: Expect) -> PolicyRow:
    remarks = {remark for context in expected.contexts for remark in policy.remarks(context)}
    return replace(
        open_row(policy),
        exactness="expectation" if kind is Expect.COINS else "expectation over drafts",
        lossless=all(policy.is_lossless(context) for context in expected.contexts),
        remarks=tuple(sorted(remarks)),
        drafted=expected.nodes,
    )


def _tried(rounds: Rounds, chance: F64) -> F64:
    """The chance that a node's depth is tried below its parent, told once a family, by its first node."""
    parent = rounds.parent_node
    before = np.where(parent >= 0, chance[parent], 1.0)
    if rounds.trees.chains:
        return before
    first = np.zeros(len(parent), dtype=bool)
    first[np.unique(rounds.parent_slot, return_index=True)[1]] = True
    return np.where(first, before, 0.0)


def _tau(sums: F64, longest: int) -> F64:
    return np.asarray(1.0 + sums[:, 1 : 1 + longest].sum(axis=1) / sums[:, 0])


def _interval(values: F64) -> Interval | None:
    return interval_of(values) if len(values) else None


def _acceptance(sums: F64, draws: F64, longest: int) -> tuple[Acceptance, ...]:
    rows = []
    for index in range(longest):
        accepted, tried = float(sums[1 + index]), float(sums[1 + longest + index])
        if tried > 0:
            interval = _interval(draws[:, 1 + index] / draws[:, 0]) if len(draws) else None
            rows.append(
                Acceptance(index + 1, accepted, float(accepted / sums[0]), interval, tried, accepted / tried)
            )
    return tuple(rows)
