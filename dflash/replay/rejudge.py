"""Re-judge: decide every recorded round again, at its own anchor, under other policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dflash.draftfile.reader import DraftFile
from dflash.policy.decision import Decision
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Batch, Part, columns_of
from dflash.replay.check import CHECK_COLUMNS, Check
from dflash.replay.group import Group
from dflash.replay.result import PolicyRow, policy_row
from dflash.replay.state_check import STATE_CHECK_COLUMNS
from dflash.replay.statistics import resampled
from dflash.replay.steered import STATE_COLUMNS, Steered
from dflash.replay.tally import TALLY_COLUMNS, Collector, Tally
from dflash.replay.tally import Judged as JudgedRounds
from dflash.replay.verdicts import Verdicts


class Judged(NamedTuple):
    """Rounds as a policy saw them, and what it decided."""

    rounds: Rounds
    decision: Decision


def judge(policy: Policy, part: Part) -> Judged:
    """Cut the rounds to the policy's shape and decide."""
    rounds = policy.shape.cut(part.rounds)
    return Judged(rounds, policy.rule.decide(rounds, part.context))


@dataclass(slots=True)
class Rejudging:
    """Decides the live rounds of a run under several policies.

    Attributes:
        recorded: the policy that decided them.
        steered: what follows the control of each adaptive policy.
        checker: takes every recorded decision.
        verdicts: takes every decision.
    """

    policies: tuple[Policy, ...]
    recorded: Policy
    steered: tuple[Steered | None, ...]
    checker: Check | None
    verdicts: Verdicts | None
    tallies: tuple[Tally, ...]

    @classmethod
    def of(
        cls,
        policies: Sequence[Policy],
        collectors: Sequence[Sequence[Collector]],
        recorded: Policy,
        first: DraftFile,
        checker: Check | None,
        verdicts: Verdicts | None,
    ) -> Rejudging:
        """Begin.

        Args:
            collectors: of each policy.
            first: file of the run.
        """
        steered = tuple(
            Steered(policy, recorded, first) if policy.control.adaptive else None for policy in policies
        )
        tallies = tuple(Tally(collectors=tuple(some)) for some in collectors)
        return cls(tuple(policies), recorded, steered, checker, verdicts, tallies)

    @property
    def in_order(self) -> bool:
        """Whether states are carried on, or anything is checked or written; see `Counter.in_order`."""
        steered = any(control is not None for control in self.steered)
        return steered or self.checker is not None or self.verdicts is not None

    def columns(self, file: DraftFile) -> set[str]:
        """Return the columns that policies, collectors and checker read."""
        more = {
            name for tally in self.tallies for collector in tally.collectors for name in collector.columns
        }
        columns = {*columns_of(self.policies, file), *TALLY_COLUMNS, *more}
        if self.recorded.control.adaptive:
            columns |= {*STATE_COLUMNS}
        if self.checker is not None:
            columns |= {*columns_of([self.recorded], file), *CHECK_COLUMNS}
            columns |= {*STATE_CHECK_COLUMNS} if self.checker.states is not None else set()
        return columns

    def add(self, group: Group) -> None:
        """Decide one row group."""
        batch = group.live
        rounds = batch.rounds(group.table.column_names)
        parts = batch.parts(rounds)
        for policy, tally, control in zip(self.policies, self.tallies, self.steered, strict=True):
            judged = _judged(policy, control, batch, parts)
            tally.add(batch, parts, judged)
            if self.verdicts is not None:
                self.verdicts.add(str(policy), batch, [part.rows for part in parts], judged)
        if self.checker is not None:
            self.checker.add(batch, rounds, parts)

    def forget(self) -> None:
        """Let go of what belongs to one file; see `Counter.forget`."""
        for control in self.steered:
            if control is not None:
                control.forget()

    def rows(self) -> list[PolicyRow]:
        """Return one row a policy."""
        rows = [
            policy_row(policy, self.recorded, tally, self.tallies[0], interval)
            for policy, tally, interval in zip(
                self.policies, self.tallies, resampled(self.tallies), strict=True
            )
        ]
        return [
            row if control is None else replace(row, remarks=(*row.remarks, control.remark))
            for row, control in zip(rows, self.steered, strict=True)
        ]


def _judged(
    policy: Policy, control: Steered | None, batch: Batch, parts: Sequence[Part]
) -> Sequence[JudgedRounds]:
    return [judge(policy, part) for part in parts] if control is None else control.judge(batch, parts)
