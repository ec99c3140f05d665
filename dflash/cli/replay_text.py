"""The text form of a replay: one row a policy, then what each number means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from dflash.cli.output import Level, level
from dflash.cli.policy_cell import (
    add_numbers,
    counted,
    estimate_cell,
    interval_cell,
    number_cell,
    policy_cell,
    without_intervals,
)
from dflash.cli.replay_details import render_details
from dflash.replay.definitions import DEFINITIONS
from dflash.replay.result import CheckReport, PolicyRow, Replay

_POSITIONS = 8
NO_INTERVALS = "no 95 % intervals: they are drawn over requests, and fewer than two have rounds"
_MEANING = {
    "walk": "walk",
    "lossless": "lossless",
    "tau (95 %)": "tau",
    "difference (95 %)": "difference",
    "kept a round (95 %)": "emitted_per_round",
    "drafted a token": "drafted_per_token",
    "changed": "changed_rounds",
}
_WORDS = ("walk", "lossless")
_ACCEPTANCE = ("marginal", "conditional")


def render(runs: Sequence[Replay], console: Console) -> None:
    """Print every run, and the definitions of what was printed once."""
    words = {"exactness": _ways([row for run in runs for row in run.rows])}
    for number, run in enumerate(runs):
        if number:
            console.print()
        words |= _render(run, console)
    if level() is Level.QUIET:
        return
    console.print()
    for heading, text in words.items():
        console.print(f"{heading.replace('_', ' ')}: {text}", soft_wrap=True, style="dim")


def _render(run: Replay, console: Console) -> dict[str, str]:
    files = ", ".join(source.path for source in run.sources)
    console.print(
        f"{files}: {counted(run.requests, 'request')}, recorded under {run.recorded}",
        soft_wrap=True,
    )
    columns = _columns(run.rows)
    shown = without_intervals(columns)
    console.print(_policies(run.rows, shown))
    if columns.keys() != shown.keys():
        console.print(NO_INTERVALS, soft_wrap=True)
    told = {name.removesuffix(" (95 %)"): _MEANING[name] for name in columns if name in _MEANING}
    words = {heading: DEFINITIONS[name] for heading, name in told.items()}
    if "walk" in words:
        words["walk"] = _walks(columns["walk"])
    if columns.keys() == shown.keys():
        words["95 %"] = DEFINITIONS["interval"]
    if any(row.acceptance for row in run.rows):
        console.print(_positions(run.rows))
        words |= {name: DEFINITIONS[name] for name in _ACCEPTANCE}
    for row in run.rows:
        for remark in _remarks(row):
            console.print(f"{row.policy}: {remark}", soft_wrap=True)
    words |= render_details(run, console)
    if run.check is not None:
        _check(run.check, console)
    return words


def _ways(rows: Sequence[PolicyRow]) -> str:
    """Say what the ways mean in which these rows were replayed."""
    met = {row.exactness.partition(" ")[0] for row in rows}
    told = DEFINITIONS["exactness"].split("; ")
    return "; ".join(text for text in told if text.partition(":")[0] in met)


def _walks(met: Sequence[str]) -> str:
    """Say what the walks mean that these policies would be."""
    what, _, ways = DEFINITIONS["walk"].partition(": ")
    told = [way.removeprefix("or ") for way in ways.split(", ")]
    return f"{what}: {', '.join(way for way in told if way.partition(' ')[0] in met)}"


def _columns(rows: Sequence[PolicyRow]) -> dict[str, list[str]]:
    """The cells of every column in which some row has something to say."""
    columns = {
        "walk": [row.walk for row in rows],
        "lossless": ["yes" if row.lossless else "no" for row in rows],
        "rounds": [f"{row.rounds:.6g}" for row in rows],
        "tau (95 %)": [estimate_cell(row.tau, row.interval) for row in rows],
        "difference (95 %)": [estimate_cell(row.difference, row.difference_interval, "+.3f") for row in rows],
        "kept a round (95 %)": [estimate_cell(row.emitted_per_round, row.emitted_interval) for row in rows],
        "drafted a token": [number_cell(row.drafted_per_token) for row in rows],
        "changed": ["-" if row.changed_rounds is None else str(row.changed_rounds) for row in rows],
    }
    if all(row.walk == row.exactness for row in rows):
        del columns["walk"]
    return {name: cells for name, cells in columns.items() if any(cell != "-" for cell in cells)}


def _policies(rows: Sequence[PolicyRow], columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True, overflow="fold")
    table.add_column("exactness")
    for name in (name for name in columns if name in _WORDS):
        table.add_column(name)
    add_numbers(table, {name: cells for name, cells in columns.items() if name not in _WORDS})
    for row, *cells in zip(rows, *columns.values(), strict=True):
        table.add_row(policy_cell(row.policy), row.exactness, *cells)
    return table


def _positions(rows: Sequence[PolicyRow]) -> Table:
    """Acceptance at the first positions, marginal and conditional."""
    deepest = min(_POSITIONS, max(len(row.acceptance) for row in rows))
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True, overflow="fold")
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
            table.add_row(
                policy_cell(row.policy) if name == "marginal" else "", name, *map(number_cell, rates)
            )
            if any(intervals):
                table.add_row("", "95 %", *map(interval_cell, intervals), style="dim")
    return table


def _remarks(row: PolicyRow) -> list[str]:
    off_choice = 0 if row.lossless else row.off_choice_rounds
    walked = []
    if row.walked is not None:
        facts = row.walked
        walked.append(
            f"walked {number_cell(facts.covered)} of the answers' tokens, {facts.near_ties} near-ties"
        )
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
        f"check {word}: {counted(check.rounds, 'live round')} of {counted(check.requests, 'request')}, "
        f"{counted(sum(check.failures.values()), 'failure')}, {counted(check.coin_ties, 'coin tie')}",
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
