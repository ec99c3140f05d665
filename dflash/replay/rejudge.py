"""Re-judge: decide every recorded round again, at its own anchor, under other policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dflash.draftfile.reader import DraftFile
from dflash.policy.decision import Decision
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.shape import Shape
from dflash.replay.batch import Part, batches, columns_of
from dflash.replay.check import CHECK_COLUMNS, Check
from dflash.replay.errors import ShapeBeyondRecording
from dflash.replay.result import Replay, Source, check_report, policy_row
from dflash.replay.statistics import resampled
from dflash.replay.tally import TALLY_COLUMNS, Tally
from dflash.replay.verdicts import VerdictWriter


class Judged(NamedTuple):
    """Rounds as a policy saw them, and what it decided."""

    rounds: Rounds
    decision: Decision


def judge(policy: Policy, part: Part) -> Judged:
    """Cut the rounds to the policy's shape and decide."""
    rounds = policy.shape.cut(part.rounds)
    return Judged(rounds, policy.rule.decide(rounds, part.context))


def recorded_policy(file: DraftFile) -> Policy:
    """Return the policy that decided the live rounds, with the shape that they were drafted in."""
    policy = Policy.from_dict(file.header.policy)
    largest = file.header.shape
    drafted = Shape(int(largest["length"]), int(largest["branches"]))
    return replace(policy, shape=policy.shape.filled(drafted))


def replay(
    files: Sequence[DraftFile],
    policies: Sequence[Policy] = (),
    *,
    check: bool = False,
    verdicts: VerdictWriter | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Replay:
    """Re-judge the live rounds of a run.

    Args:
        files: of one run, in order.
        policies: none means the recorded one.
        check: also hold every recorded decision against the recorded policy.
        verdicts: takes every decision.
        progress: called after each row group.

    Raises:
        ShapeBeyondRecording: a policy asks for more than was drafted.
    """
    recorded = recorded_policy(files[0])
    asked = tuple(policies) or (recorded,)
    for policy in asked:
        _within(policy, recorded.shape)
    tallies = [Tally() for _ in asked]
    checker = Check(recorded.rule) if check else None
    for file in files:
        judged_columns = set(columns_of((recorded, *asked) if check else asked, file))
        columns = judged_columns | set(TALLY_COLUMNS) | set(CHECK_COLUMNS if check else ())
        for batch in batches(file, columns, prefills=check):
            rounds = batch.rounds(columns)
            parts = batch.parts(rounds)
            for policy, tally in zip(asked, tallies, strict=True):
                judged = [judge(policy, part) for part in parts]
                tally.add(batch, parts, judged)
                if verdicts is not None:
                    verdicts.add(str(policy), batch, parts, judged)
            if checker is not None:
                checker.add(batch, rounds, parts)
            progress()
    intervals = resampled(tallies)
    return Replay(
        run_id=files[0].run_id,
        sources=tuple(Source(str(file.path), file.part, file.content_digest) for file in files),
        recorded=recorded,
        requests=sum(file.requests for file in files),
        rows=tuple(
            policy_row(policy, recorded, tally, tallies[0], interval)
            for policy, tally, interval in zip(asked, tallies, intervals, strict=True)
        ),
        check=None if checker is None else check_report(checker),
    )


def _within(policy: Policy, recorded: Shape) -> None:
    for bound in ("length", "branches"):
        asked, drafted = getattr(policy.shape, bound), getattr(recorded, bound)
        if asked is not None and asked > drafted:
            raise ShapeBeyondRecording(str(policy), bound, asked, drafted)
