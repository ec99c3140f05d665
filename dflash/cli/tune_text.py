"""The text form of a search: the recommendation, the ranking, the surface, the cost model, the words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    console.print(_legend(found, limit), soft_wrap=True, style="dim")
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
    told = f"tau {_value(row.tau, row.interval)}"
    if row.tau is None:
        told = f"kept/round {_value(row.emitted_per_round, row.emitted_interval)}"
    console.print(f"  {told}, {row.exactness}, on {found.requests} requests", soft_wrap=True)
    for remark in (*row.remarks, *_advice(found)):
        console.print(f"  {remark}", soft_wrap=True)
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


def _advice(found: Tuned) -> list[str]:
    best, advice = found.candidates[found.best], []
    if best.row.exactness == Exactness.REJUDGE:
        advice.append(
            "judged at another policy's anchors; a recording with --dense is walked as it would run"
        )
    if not best.policy.rule.runs_live():
        advice.append("for other engines: `dflash record` does not decide by this rule")
    if edges := found.edges():
        bounds = " and ".join(f"--{name} above {getattr(found.largest, name)}" for name in edges)
        advice.append(f"as large as the recording; {bounds} may be faster still")
    return advice


def _ranking(candidates: Sequence[Candidate], limit: int) -> Table:
    """The first policies, and all others that are on the front."""
    shown = [item for place, item in enumerate(candidates) if place < limit or item.front]
    columns: dict[str, Callable[[Candidate], list[str]]] = {
        "speed-up": lambda item: [f"{item.speed.speed_up:.3f}", _interval(item.speed.interval)],
        "to best": lambda item: [f"{item.speed.difference:+.3f}", _interval(item.speed.difference_interval)],
        "best share": lambda item: [_number(item.speed.best_share, ".2f")],
        "tau": lambda item: [_number(item.row.tau), _interval(item.row.interval)],
        "kept/round": lambda item: [
            _number(item.row.emitted_per_round),
            _interval(item.row.emitted_interval),
        ],
        "rows/token": lambda item: [f"{item.speed.verified_per_token:.2f}"],
        "divergence": lambda item: [f"{item.divergence:.4f}"],
    }
    if all(item.row.tau is not None for item in shown):
        del columns["kept/round"]
    if all(item.row.tau is None for item in shown):
        del columns["tau"]
    if not any(item.divergence for item in shown):
        del columns["divergence"]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("policy", overflow="fold")
    table.add_column("exactness")
    for name, cells in columns.items():
        for heading in (name, "95 %")[: len(cells(candidates[0]))]:
            table.add_column(heading, justify="right")
    for item in shown:
        mark = ("*" if item.front else " ") + ("" if item.admissible else "x")
        numbers = [text for cells in columns.values() for text in cells(item)]
        table.add_row(mark, str(item.policy), item.row.exactness, *numbers)
    return table


def _legend(found: Tuned, limit: int) -> str:
    parts = ["* on the front"]
    if not all(item.admissible for item in found.candidates):
        parts.append("x diverges more than allowed")
    if hidden := sum(not item.front for item in found.candidates[limit:]):
        parts.append(f"{hidden} more policies: --limit, or --json for all")
    if found.dropped:
        seen = ", ".join(f"{rung.policies} on {rung.requests} requests" for rung in found.rungs)
        parts.append(f"policies judged: {seen}")
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
    return _number(value, form) + ("" if interval is None else f" ({_interval(interval)})")


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
