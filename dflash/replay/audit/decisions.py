"""Probe: the recorded policy makes every recorded decision, and the rounds join up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dflash.draftfile.reader import DraftFile
from dflash.errors import DflashError
from dflash.policy.registry import parse_policy
from dflash.replay.audit.verdict import LISTED, Fault, Status, Verdict
from dflash.replay.result import CheckReport
from dflash.replay.run import replay

_POWER = "every decision that the stored values and the request's coins do not lead to"
_OTHERS = ("match", "speculative", "block", "greedy")


def decisions(files: Sequence[DraftFile], progress: Callable[[], None]) -> Verdict:
    """Decide every round again; see `replay.check`."""
    verdict = Verdict(
        "decisions",
        "the recorded policy makes every recorded decision, and the rounds join up",
        Status.UNTESTED,
        0,
    )
    if files[0].header.contexts is not None:
        reason = "its decisions are those of another target: p was scored afterwards"
        return replace(verdict, reasons=(reason,))
    try:
        report = replay(files, check=True, dense=False, progress=progress).check
    except DflashError as error:
        return replace(verdict, reasons=(str(error),))
    assert report is not None
    return _verdict(verdict, report, files)


def _verdict(verdict: Verdict, report: CheckReport, files: Sequence[DraftFile]) -> Verdict:
    status = Status.PASSED if report.passed else Status.FAILED
    listed = tuple(
        Fault(
            failure.file,
            failure.request_id,
            f"round {failure.round}",
            failure.what,
            failure.what,
            failure.expected,
            failure.found,
        )
        for failure in report.listed[: 2 * LISTED]
    )
    return replace(
        verdict,
        status=status if report.requests else Status.UNTESTED,
        places=report.rounds,
        power=_POWER if report.requests else "",
        faults=sum(report.failures.values()),
        near_ties=report.coin_ties + report.dense_near_ties,
        listed=listed,
        causes=() if report.passed else _causes(files),
        reasons=() if report.requests else ("no round was recorded",),
    )


def _causes(files: Sequence[DraftFile]) -> tuple[str, ...]:
    """Which other rule accepts as much as was accepted in every round."""
    found = []
    for name in _OTHERS:
        if name == files[0].header.policy["rule"]["name"]:
            continue
        try:
            row = replay(files, [parse_policy(name)], dense=False).rows[0]
        except DflashError:
            # a rule that cannot judge these drafts did not judge them
            continue
        if row.changed_rounds == 0 and row.rounds:
            found.append(f"{name} accepts what was accepted in every round")
    return tuple(found)
