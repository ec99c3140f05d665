"""The text form of a search: the recommendation, the ranking, the surface, the cost model, the words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dflash.cli.cost_text import PLAIN_UNTIMED, render_cost
from dflash.cli.output import Level, level
from dflash.cli.policy_cell import (
    add_numbers,
    counted,
    estimate_cell,
    number_cell,
    policy_cell,
    without_intervals,
)
from dflash.cli.replay_text import NO_INTERVALS
from dflash.policy.rule import Exactness
from dflash.replay.tune_document import TUNE_WORDS
from dflash.replay.tuned import Candidate, Cell, Tuned


def render(found: Tuned, limit: int, console: Console) -> None:
    """Print what to run first, and why after it."""
    if found.told():
        _recommendation(found, console)
    else:
        _untold(found, console)
    console.print()
    console.print(_ranking(found, limit))
    if legend := _legend(found, limit):
        console.print(legend, soft_wrap=True, style="dim")
    if found.surface and found.model.plain_timed:
        console.print()
        console.print(surface_table(found.surface))
    console.print()
    render_cost(found.model, console)
    if level() is Level.QUIET:
        return
    console.print()
    for name, text in TUNE_WORDS.items():
        console.print(f"{name.replace('_', ' ')}: {text}", soft_wrap=True, style="dim")


def _untold(found: Tuned, console: Console) -> None:
    """Print that the times do not tell which policy is the fastest."""
    console.print("best: not known", style="bold", soft_wrap=True)
    unpriced = sum(not found.priced(item) for item in found.candidates)
    for line in (
        PLAIN_UNTIMED,
        f"rounds as small as those of {unpriced} of the {len(found.candidates)} policies were not timed, "
        "either: in order of the tokens that a round keeps",
    ):
        console.print(f"  {line}", style="bold", soft_wrap=True)
    console.print(f"  on {counted(found.requests, 'request')}", soft_wrap=True)


def _recommendation(found: Tuned, console: Console) -> None:
    best, frugal = found.candidates[found.best], found.candidates[found.frugal]
    speed = best.speed
    console.print(f"best: {best.policy}", style="bold", soft_wrap=True)
    for caveat in caveats(found):
        console.print(f"  {caveat}", style="bold", soft_wrap=True)
    if found.speculates() is False:
        console.print(
            "  do not speculate: on these requests no policy is faster than one token after the other",
            style="bold",
            soft_wrap=True,
        )
    sure = "" if speed.best_share is None else f", the fastest in {speed.best_share:.0%} of resamples"
    gain = f"{speed.tokens_per_second:.4g} tokens/s a request"
    if found.model.plain_timed:
        gain = f"speed-up {number_cell(speed.speed_up, speed.interval)}"
    console.print(f"  {gain} at batch {found.model.batch:g}{sure}", soft_wrap=True)
    row = best.row
    told = f"tau {number_cell(row.tau, row.interval)}"
    if row.tau is None:
        told = f"kept a round {number_cell(row.emitted_per_round, row.emitted_interval)}"
    console.print(f"  {told}, {row.exactness}, on {counted(found.requests, 'request')}", soft_wrap=True)
    if row.interval is None and row.emitted_interval is None:
        console.print(f"  {NO_INTERVALS}", soft_wrap=True)
    for remark in (*row.remarks, *_advice(found)):
        console.print(f"  {remark}", soft_wrap=True)
    if found.frugal != found.best:
        console.print(
            f"frugal: {frugal.policy}: not told from the best, and verifies "
            f"{frugal.speed.verified_per_token:.2f} rows a token instead of {speed.verified_per_token:.2f}",
            soft_wrap=True,
        )
    if found.contest is not None and found.model.plain_timed:
        contest = found.contest
        gain = number_cell(contest.difference, contest.interval, "+.3f")
        console.print(
            f"adaptive against static: {contest.adaptive} minus {contest.static}: speed-up {gain}",
            soft_wrap=True,
        )


def caveats(found: Tuned) -> list[str]:
    """What must be known before the numbers of the best policy are believed."""
    best, whole, said = found.candidates[found.best], found.whole(), []
    if not found.model.plain_timed:
        said.append(PLAIN_UNTIMED)
    if best.censored:
        said.append(
            f"censored: walked {best.covered:.3f} of the answers' tokens, up to where it leaves them; its "
            "tau and speed-up cannot be compared with whole walks: --rejudge judges all on the same rounds"
        )
        if whole is not None:
            told = f"{whole.speed.tokens_per_second:.4g} tokens/s a request"
            if found.model.plain_timed:
                told = f"speed-up {number_cell(whole.speed.speed_up, whole.speed.interval)}"
            said.append(f"the fastest on whole answers: {whole.policy}, {told}")
    return said


def _advice(found: Tuned) -> list[str]:
    best, advice = found.candidates[found.best], list[str]()
    these = "this one request" if found.requests == 1 else "these requests"
    if tied := found.untold():
        advice.append(f"{tied} of the other policies cannot be told from it on {these}: their order is open")
    if best.row.exactness == Exactness.REJUDGE:
        advice.append(
            "re-judged at another policy's anchors, so that tau and close ranks may differ live; a recording "
            "with --dense is walked as it would run"
        )
    if found.extrapolated():
        advice.append(
            f"extrapolated: no batch near {found.model.batch:g} was timed, which the interval does not show"
        )
    if not best.policy.rule.runs_live():
        advice.append("for other engines: `dflash record` does not decide by this rule")
    if edges := found.edges():
        bounds = " and ".join(f"--{name} above {getattr(found.largest, name)}" for name in edges)
        advice.append(f"as large as the recording; {bounds} may be faster still")
    return advice


def _ranking(found: Tuned, limit: int) -> Table:
    """The first policies, and all others that are on the front."""
    told, known = found.told(), found.model.plain_timed
    candidates = list(found.candidates) if told else sorted(found.candidates, key=_kept)
    shown = [item for place, item in enumerate(candidates) if place < limit or (told and item.front)]
    columns: dict[str, Callable[[Candidate], str]] = {
        "speed-up (95 %)": lambda item: estimate_cell(item.speed.speed_up, item.speed.interval),
        "to best (95 %)": lambda item: estimate_cell(
            item.speed.difference if item.comparable else None, item.speed.difference_interval, "+.3f"
        ),
        "tokens/s a request": lambda item: number_cell(
            item.speed.tokens_per_second if found.priced(item) else None, form=".4g"
        ),
        "best share": lambda item: number_cell(item.speed.best_share, form=".2f"),
        "tau (95 %)": lambda item: estimate_cell(item.row.tau, item.row.interval),
        "kept a round (95 %)": lambda item: estimate_cell(
            item.row.emitted_per_round, item.row.emitted_interval
        ),
        "rows a token": lambda item: f"{item.speed.verified_per_token:.2f}",
        "divergence": lambda item: f"{item.divergence:.4f}",
        "walked": lambda item: number_cell(item.covered),
    }
    unknown = ["speed-up (95 %)", "to best (95 %)"] if not known else ["tokens/s a request"]
    for name in unknown + ([] if told else ["best share"]):
        del columns[name]
    if all(item.row.tau is not None for item in shown):
        del columns["kept a round (95 %)"]
    if all(item.row.tau is None for item in shown):
        del columns["tau (95 %)"]
    if not any(item.divergence for item in shown):
        del columns["divergence"]
    if not any(item.censored for item in shown):
        del columns["walked"]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("policy", no_wrap=True, overflow="fold")
    table.add_column("exactness")
    rows = [[cell(item) for cell in columns.values()] for item in shown]
    add_numbers(table, without_intervals(dict(zip(columns, zip(*rows, strict=True), strict=True))))
    for item, numbers in zip(shown, rows, strict=True):
        marks = ((item.front and told, "*", " "), (item.admissible, "", "x"), (item.censored, "c", ""))
        table.add_row(
            "".join(yes if holds else no for holds, yes, no in marks),
            policy_cell(str(item.policy)),
            item.row.exactness,
            *numbers,
        )
    return table


def _kept(item: Candidate) -> tuple[float, float]:
    """What to sort by, the most tokens a round first, then the fewest rows."""
    kept = item.row.emitted_per_round if item.row.tau is None else item.row.tau
    return -(kept or 0.0), item.speed.verified_per_token


def _legend(found: Tuned, limit: int) -> str:
    parts = ["* on the front"] if found.told() else []
    if not all(item.admissible for item in found.candidates):
        parts.append("x diverges more than allowed")
    if any(item.censored for item in found.candidates):
        parts.append("c censored: walked in part, not comparable with whole walks")
    if added := sum(item.front and found.told() for item in found.candidates[limit:]):
        parts.append(f"{added} rows beyond --limit {limit} are shown since they are on the front")
    if hidden := max(0, len(found.candidates) - limit) - added:
        parts.append(f"{hidden} more policies: --limit, or --json for all")
    if found.dropped:
        seen = ", ".join(f"{rung.policies} on {counted(rung.requests, 'request')}" for rung in found.rungs)
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
