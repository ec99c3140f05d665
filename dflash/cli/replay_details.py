"""The text form of what a replay tells beside acceptance: knee, branches, calibration, predicted speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dflash.cli.cost_text import PLAIN_UNTIMED, render_cost
from dflash.cli.policy_cell import estimate_cell, number_cell, policy_cell
from dflash.policy.rule import Exactness
from dflash.replay.branching import BRANCHING_DEFINITIONS, Branches
from dflash.replay.calibration import CALIBRATION_DEFINITIONS, Calibrated
from dflash.replay.cost import COST_DEFINITIONS
from dflash.replay.knee import KNEE_DEFINITIONS, Knee
from dflash.replay.result import PolicyRow, Replay
from dflash.replay.statistics import Interval
from dflash.replay.work import SPEED_DEFINITIONS

# where a line says it otherwise than the document
_CALLED = {
    "curve": "tau by length",
    "later_branch_wins": "later branches win",
    "first_token_diversity": "first-token diversity",
    "duplicate_first_token_rate": "duplicate first tokens",
    "speed_up": "speed-up",
    "tokens_per_second": "tokens/s a request",
    "verified_per_token": "rows a token",
}


def render_details(run: Replay, console: Console) -> dict[str, str]:
    """Print what there is, and return what it means."""
    words: dict[str, str] = {}
    for row in run.rows:
        for line in _lines(row):
            console.print(f"{row.policy}: {line}", soft_wrap=True)
        for signal in row.calibration or ():
            console.print(f"{row.policy}: {_calibrated(signal)}", soft_wrap=True)
            console.print(_reliability(signal))
    if any(row.knee is not None and row.knee.length is not None for row in run.rows):
        words |= _called(KNEE_DEFINITIONS)
    if any(row.branching is not None for row in run.rows):
        words |= _called(BRANCHING_DEFINITIONS)
    if any(row.calibration for row in run.rows):
        words |= CALIBRATION_DEFINITIONS
    if run.cost is not None:
        speeds = _speeds(run)
        console.print(speeds)
        if not run.cost.plain_timed:
            console.print(PLAIN_UNTIMED, style="bold", soft_wrap=True)
        render_cost(run.cost, console)
        shown = {str(column.header).removesuffix(" (95 %)") for column in speeds.columns}
        words |= {name: text for name, text in _called(SPEED_DEFINITIONS).items() if name in shown}
        words |= COST_DEFINITIONS if run.cost.fits else {}
    return words


def _called(words: Mapping[str, str]) -> dict[str, str]:
    """The definitions under the words that are printed."""
    return {_CALLED.get(name, name): text for name, text in words.items()}


def _lines(row: PolicyRow) -> list[str]:
    lines = []
    if row.knee is not None and row.knee.length is not None:
        lines.append(_knee(row.knee))
    if row.branching is not None:
        lines.append(_branching(row.branching))
    if row.calibration == () and row.exactness != Exactness.LAW:
        lines.append("no reached node has a confidence or a margin, so that nothing can be calibrated")
    return lines


def _knee(knee: Knee) -> str:
    reach = "" if knee.interval is None else f" (95 % {knee.interval.low:g} to {knee.interval.high:g})"
    return f"knee at length {knee.length}{reach}; tau by length from 0: {_list(knee.curve)}"


def _branching(found: Branches) -> str:
    wins = ", ".join(str(count) for count in found.wins)
    return (
        f"{found.branching_rounds} branching rounds: wins by branch {wins}, none {found.accepted_nothing}; "
        f"later branches win {number_cell(found.later_branch_wins, found.later_interval)}; "
        f"first-token diversity {number_cell(found.first_token_diversity)}; duplicate first tokens "
        f"{number_cell(found.duplicate_first_token_rate, found.duplicate_interval)}"
    )


def _calibrated(found: Calibrated) -> str:
    return (
        f"{found.signal}, {found.accepted} of {found.reached} reached nodes accepted, "
        f"ECE {number_cell(found.ece, found.ece_interval)}, AUC {number_cell(found.auc, found.auc_interval)}"
    )


def _reliability(found: Calibrated) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("score")
    filled = [item for item in found.bins if item.reached]
    for item in filled:
        table.add_column(f"{item.low:.1f}-{item.high:.1f}", justify="right")
    table.add_row("reached", *(str(item.reached) for item in filled))
    table.add_row("mean score", *(number_cell(item.score) for item in filled))
    table.add_row("accepted", *(number_cell(item.accepted / item.reached) for item in filled))
    return table


def _speeds(run: Replay) -> Table:
    """What is known of the predicted speed."""
    speeds = [run.speed(row) for row in run.rows]
    told = [(row.policy, speed) for row, speed in zip(run.rows, speeds, strict=True) if speed is not None]
    cells = [_speed(speed, first=not index) for index, (_, speed) in enumerate(told)]
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True, overflow="fold")
    names = [name for name in (cells[0] if cells else ()) if any(row[name] != "-" for row in cells)]
    for name in names:
        table.add_column(name, justify="right")
    for (policy, _), row in zip(told, cells, strict=True):
        table.add_row(policy_cell(policy), *(row[name] for name in names))
    return table


def _speed(speed: Mapping[str, Any], first: bool) -> dict[str, str]:
    def estimate(name: str, interval: str, form: str) -> str:
        found = speed[interval]
        return estimate_cell(speed[name], None if found is None else Interval(*found), form)

    round_us = speed["round_us"]
    return {
        "speed-up (95 %)": estimate("speed_up", "interval", ".3f"),
        "difference (95 %)": "-" if first else estimate("difference", "difference_interval", "+.3f"),
        "tokens/s a request": number_cell(speed["tokens_per_second"], form=".4g"),
        "round ms": number_cell(None if round_us is None else round_us / 1e3, form=".4g"),
        "rows a token": number_cell(speed["verified_per_token"], form=".2f"),
    }


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
