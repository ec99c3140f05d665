"""Re-judge: decide every recorded round again, at its own anchor, under other policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dflash.draftfile.reader import DraftFile
from dflash.policy.decision import Decision
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Part, batches, columns_of
from dflash.replay.check import CHECK_COLUMNS, Check
from dflash.replay.result import PolicyRow, policy_row
from dflash.replay.statistics import resampled
from dflash.replay.tally import TALLY_COLUMNS, Collector, Tally
from dflash.replay.verdicts import VerdictWriter


class Judged(NamedTuple):
    """Rounds as a policy saw them, and what it decided."""

    rounds: Rounds
    decision: Decision


def judge(policy: Policy, part: Part) -> Judged:
    """Cut the rounds to the policy's shape and decide."""
    rounds = policy.shape.cut(part.rounds)
    return Judged(rounds, policy.rule.decide(rounds, part.context))


def rejudge(
    files: Sequence[DraftFile],
    policies: Sequence[Policy],
    recorded: Policy,
    checker: Check | None,
    verdicts: VerdictWriter | None,
    progress: Callable[[], None],
    collectors: Sequence[Sequence[Collector]],
) -> list[PolicyRow]:
    """Decide the live rounds of a run under several policies; one row a policy.

    Args:
        recorded: the policy that decided them.
        checker: takes every recorded decision.
        verdicts: takes every decision.
        progress: called after each row group.
        collectors: of each policy.
    """
    tallies = [Tally(collectors=some) for some in collectors]
    more = {name for some in collectors for collector in some for name in collector.columns}
    for file in files:
        columns = {*columns_of(policies, file), *TALLY_COLUMNS, *more}
        if checker is not None:
            columns |= {*columns_of([recorded], file), *CHECK_COLUMNS}
        for batch in batches(file, columns):
            rounds = batch.rounds(columns)
            parts = batch.parts(rounds)
            for policy, tally in zip(policies, tallies, strict=True):
                judged = [judge(policy, part) for part in parts]
                tally.add(batch, parts, judged)
                if verdicts is not None:
                    verdicts.add(str(policy), batch, [part.rows for part in parts], judged)
            if checker is not None:
                checker.add(batch, rounds, parts)
            progress()
    return [
        policy_row(policy, recorded, tally, tallies[0], interval)
        for policy, tally, interval in zip(policies, tallies, resampled(tallies), strict=True)
    ]
