"""The text form of a replay: one row a policy, then what each number means."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dflash.cli.replay_details import render_details
from dflash.replay.definitions import DEFINITIONS
from dflash.replay.result import CheckReport, PolicyRow, Replay
from dflash.replay.statistics import Interval

_POSITIONS = 8
_NUMBERS = (
    *("rounds", "tau", "95 %", "difference", "95 %"),
    *("kept/round", "95 %", "drafted/token", "changed"),
)
_MEANING = {
    "exactness": "exactness",
    "walk": "walk",
    "lossless": "lossless",
    "tau": "tau",
    "95 %": "interval",
    "difference": "difference",
    "kept/round": "emitted_per_round",
    "drafted/token": "drafted_per_token",
    "changed": "changed_rounds",
    "marginal": "marginal",
    "conditional": "conditional",
}


def render(runs: Sequence[Replay], console: Console) -> None:
    """Print every run, and the definitions once."""
    words = {heading: DEFINITIONS[name] for heading, name in _MEANING.items()}
    for number, run in enumerate(runs):
        if number:
            console.print()
        words |= _render(run, console)
    console.print()
    for heading, text in words.items():
        console.print(f"{heading.replace('_', ' ')}: {text}", soft_wrap=True, style="dim")


def _render(run: Replay, console: Console) -> dict[str, str]:
    files = ", ".join(source.path for source in run.sources)
    console.print(
        f"{files}: {run.requests} requests, recorded under {run.recorded}",
        soft_wrap=True,
    )
    console.print(_policies(run.rows))
    console.print(_positions(run.rows))
    for row in run.rows:
        for remark in _remarks(row):
            console.print(f"{row.policy}: {remark}", soft_wrap=True)
    words = render_details(run, console)
    if run.check is not None:
        _check(run.check, console)
    return words


def _policies(rows: Sequence[PolicyRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", overflow="fold")
    for name in ("exactness", "walk", "lossless"):
        table.add_column(name)
    for name in _NUMBERS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.policy,
            row.exactness,
            row.walk,
            "yes" if row.lossless else "no",
            f"{row.rounds:.6g}",
            _number(row.tau),
            _interval(row.interval),
            "-" if row.difference is None else f"{row.difference:+.3f}",
            _interval(row.difference_interval),
            _number(row.emitted_per_round),
            _interval(row.emitted_interval),
            _number(row.drafted_per_token),
            "-" if row.changed_rounds is None else str(row.changed_rounds),
        )
    return table


def _positions(rows: Sequence[PolicyRow]) -> Table:
    """Acceptance at the first positions, marginal and conditional."""
    deepest = min(_POSITIONS, max(len(row.acceptance) for row in rows))
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", overflow="fold")
    table.add_column("accepted at")
    for position in range(1, deepest + 1):
        table.add_column(str(position), justify="right")
    for row in (row for row in rows if row.acceptance):
        shown = row.acceptance[:deepest]
        for name, rates, intervals in (
            ("marginal", [item.marginal for item in shown], [item.interval for item in shown]),
            (
                "conditional",
                [item.conditional for item in shown],
                [item.conditional_interval for item in shown],
            ),
        ):
            table.add_row(row.policy if name == "marginal" else "", name, *map(_number, rates))
            if any(intervals):
                table.add_row("", "95 %", *map(_interval, intervals), style="dim")
    return table


def _remarks(row: PolicyRow) -> list[str]:
    off_choice = 0 if row.lossless else row.off_choice_rounds
    walked = []
    if row.walked is not None:
        facts = row.walked
        walked.append(f"walked {_number(facts.covered)} of the answers' tokens, {facts.near_ties} near-ties")
        if facts.left_trunk:
            walked.append(f"{facts.left_trunk} requests left the trunk and end there")
        if facts.clipped:
            walked.append(f"{facts.clipped} rounds clipped to the recorded shape")
    counted = (
        (row.unknown_bonus, "rounds whose bonus token was not recorded (null)"),
        (row.coin_ties, "coin ties"),
        (off_choice, "rounds that accept a token the target did not choose"),
    )
    return [*row.remarks, *walked, *(f"{count} {what}" for count, what in counted if count)]


def _check(check: CheckReport, console: Console) -> None:
    word = "passed" if check.passed else "FAILED"
    console.print(
        f"check {word}: {check.rounds} live rounds of {check.requests} requests, "
        f"{sum(check.failures.values())} failures, {check.coin_ties} coin ties",
        soft_wrap=True,
    )
    for failure in check.listed:
        console.print(
            f"  {failure.file}, request {failure.request_id}, round {failure.round}: {failure.what}: "
            f"expected {failure.expected}, found {failure.found}",
            soft_wrap=True,
        )
    for tie in check.ties:
        outcome = "reproduced" if tie.reproduced else "decided the other way"
        console.print(f"  coin tie: request {tie.request_id}, round {tie.round}, {outcome}", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"
