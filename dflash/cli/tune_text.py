"""The text form of a search: the recommendation, the ranking, the surface, the cost model, the words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dflash.cli.cost_text import render_cost
from dflash.policy.rule import Exactness
from dflash.replay.statistics import Interval
from dflash.replay.tune_document import TUNE_WORDS
from dflash.replay.tuned import Candidate, Cell, Tuned


def render(found: Tuned, limit: int, console: Console) -> None:
    """Print what to run first, and why after it."""
    _recommendation(found, console)
    console.print()
    console.print(_ranking(found.candidates, limit))
    hidden = len(found.candidates) - min(limit, len(found.candidates))
    if hidden or found.dropped:
        console.print(_left_out(found, hidden), soft_wrap=True, style="dim")
    if found.surface:
        console.print()
        console.print(surface_table(found.surface))
    console.print()
    render_cost(found.model, console)
    console.print()
    for name, text in TUNE_WORDS.items():
        console.print(f"{name.replace('_', ' ')}: {text}", soft_wrap=True, style="dim")


def _recommendation(found: Tuned, console: Console) -> None:
    best, frugal = found.candidates[found.best], found.candidates[found.frugal]
    speed = best.speed
    console.print(f"best: {best.policy}", style="bold", soft_wrap=True)
    sure = "" if speed.best_share is None else f", the fastest in {speed.best_share:.0%} of resamples"
    console.print(
        f"  speed-up {_value(speed.speed_up, speed.interval)} at batch {found.model.batch:g}{sure}",
        soft_wrap=True,
    )
    row = best.row
    tau = _value(row.tau, row.interval) if row.tau is not None else "-"
    kept = _value(row.emitted_per_round, row.emitted_interval) if row.tau is None else ""
    told = f"tau {tau}" if row.tau is not None else f"emitted/round {kept}"
    console.print(f"  {told}, {row.exactness}, on {found.requests} requests", soft_wrap=True)
    for remark in row.remarks:
        console.print(f"  {remark}", soft_wrap=True)
    if row.exactness == Exactness.REJUDGE:
        console.print(
            "  judged at another policy's anchors; a recording with --dense is walked as the policy runs",
            soft_wrap=True,
        )
    if found.frugal != found.best:
        console.print(
            f"frugal: {frugal.policy}: not told from the best, and verifies "
            f"{frugal.speed.verified_per_token:.2f} rows a token instead of {speed.verified_per_token:.2f}",
            soft_wrap=True,
        )
    if found.contest is not None:
        contest = found.contest
        gain = _value(contest.difference, contest.interval, "+.3f")
        console.print(
            f"adaptive against static: {contest.adaptive} minus {contest.static}: speed-up {gain}",
            soft_wrap=True,
        )


def _ranking(candidates: Sequence[Candidate], limit: int) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("policy", overflow="fold")
    table.add_column("exactness")
    strays = any(item.divergence > 0 for item in candidates)
    numbers = ("speed-up", "95 %", "to best", "95 %", "best share", "tau", "95 %", "rows/token")
    for name in (*numbers, "divergence") if strays else numbers:
        table.add_column(name, justify="right")
    for item in candidates[:limit]:
        speed, row = item.speed, item.row
        tau = (
            (row.tau, row.interval) if row.tau is not None else (row.emitted_per_round, row.emitted_interval)
        )
        table.add_row(
            ("*" if item.front else " ") + ("" if item.admissible else "x"),
            str(item.policy),
            row.exactness,
            f"{speed.speed_up:.3f}",
            _interval(speed.interval),
            f"{speed.difference:+.3f}",
            _interval(speed.difference_interval),
            "-" if speed.best_share is None else f"{speed.best_share:.2f}",
            "-" if tau[0] is None else f"{tau[0]:.3f}",
            _interval(tau[1]),
            f"{speed.verified_per_token:.2f}",
            *([f"{item.divergence:.4f}"] if strays else []),
        )
    return table


def _left_out(found: Tuned, hidden: int) -> str:
    parts = ["* on the front; x diverges more than allowed"]
    if hidden:
        parts.append(f"{hidden} more policies: --limit, or --json for all")
    if found.dropped:
        seen = ", ".join(f"{rung.requests} requests: {rung.policies}" for rung in found.rungs)
        parts.append(f"policies judged on {seen}")
    return "; ".join(parts)


def surface_table(cells: Sequence[Cell]) -> Table:
    """The surface as a table, one row a number of branches; the best shape is marked."""
    lengths = sorted({cell.length for cell in cells})
    best = max(cells, key=lambda cell: cell.speed_up)
    table = Table(box=None, pad_edge=False, padding=(0, 0))
    table.add_column("speed-up: branches, length  ")
    for length in lengths:
        table.add_column(f"{length:>5} ", justify="right")
    spread = max(0.05, max(abs(cell.speed_up - 1.0) for cell in cells))
    for branches in sorted({cell.branches for cell in cells}, reverse=True):
        row = {cell.length: cell for cell in cells if cell.branches == branches}
        shown = [_cell(row.get(length), best, spread) for length in lengths]
        table.add_row(str(branches), *shown)
    return table


def _cell(cell: Cell | None, best: Cell, spread: float) -> Text:
    if cell is None:
        return Text("    - ")
    mark = "*" if cell is best else " "
    strength = min(1.0, abs(cell.speed_up - 1.0) / spread)
    # towards green where a shape gains time, towards red where it loses
    faded = round(235 - 150 * strength)
    colour = f"rgb({faded},235,{faded})" if cell.speed_up >= 1.0 else f"rgb(235,{faded},{faded})"
    return Text(f"{cell.speed_up:5.2f}{mark}", Style(color="black", bgcolor=colour, bold=cell is best))


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"


def _value(value: float | None, interval: Interval | None, form: str = ".3f") -> str:
    if value is None:
        return "-"
    return format(value, form) + ("" if interval is None else f" ({_interval(interval)})")
