"""Re-judge: decide every recorded round again, at its own anchor, under other policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from dflash.draftfile.reader import DraftFile
from dflash.policy.decision import Decision
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Batch, Part, batches, columns_of
from dflash.replay.check import CHECK_COLUMNS, Check
from dflash.replay.jobs import Pass, count_over
from dflash.replay.result import PolicyRow, policy_row
from dflash.replay.state_check import STATE_CHECK_COLUMNS
from dflash.replay.statistics import resampled
from dflash.replay.steered import STATE_COLUMNS, Steered
from dflash.replay.tally import TALLY_COLUMNS, Collector, Tally
from dflash.replay.tally import Judged as JudgedRounds
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
    collectors: Sequence[Sequence[Collector]],
    going: Pass,
) -> list[PolicyRow]:
    """Decide the live rounds of a run under several policies; one row a policy.

    Args:
        recorded: the policy that decided them.
        checker: takes every recorded decision.
        collectors: of each policy.
    """
    tallies = [Tally(collectors=some) for some in collectors]
    steered = [
        Steered(policy, recorded, files[0]) if policy.control.adaptive else None for policy in policies
    ]
    count = partial(
        _count,
        policies=policies,
        recorded=recorded,
        steered=steered,
        checker=checker,
        verdicts=going.verdicts,
    )
    # what a control has seen stays in one process
    jobs = 1 if any(steered) else going.jobs
    count_over(files, tallies, count, jobs, going.progress)
    rows = [
        policy_row(policy, recorded, tally, tallies[0], interval)
        for policy, tally, interval in zip(policies, tallies, resampled(tallies), strict=True)
    ]
    return [
        row if control is None else replace(row, remarks=(*row.remarks, control.remark))
        for row, control in zip(rows, steered, strict=True)
    ]


def _count(
    files: Sequence[DraftFile],
    tallies: Sequence[Tally],
    progress: Callable[[], None],
    *,
    policies: Sequence[Policy],
    recorded: Policy,
    steered: Sequence[Steered | None],
    checker: Check | None,
    verdicts: VerdictWriter | None,
) -> None:
    more = {name for tally in tallies for collector in tally.collectors for name in collector.columns}
    more |= {*STATE_COLUMNS} if recorded.control.adaptive else set()
    for file in files:
        for control in steered:
            if control is not None:
                control.begin()
        columns = {*columns_of(policies, file), *TALLY_COLUMNS, *more}
        if checker is not None:
            columns |= {*columns_of([recorded], file), *CHECK_COLUMNS}
            columns |= {*STATE_CHECK_COLUMNS} if checker.states is not None else set()
        for batch in batches(file, columns):
            rounds = batch.rounds(columns)
            parts = batch.parts(rounds)
            for policy, tally, control in zip(policies, tallies, steered, strict=True):
                judged = _judged(policy, control, batch, parts)
                tally.add(batch, parts, judged)
                if verdicts is not None:
                    verdicts.add(str(policy), batch, [part.rows for part in parts], judged)
            if checker is not None:
                checker.add(batch, rounds, parts)
            progress()


def _judged(
    policy: Policy, control: Steered | None, batch: Batch, parts: Sequence[Part]
) -> Sequence[JudgedRounds]:
    return [judge(policy, part) for part in parts] if control is None else control.judge(batch, parts)
