"""The text form of a cost model: terms, residuals, and what it takes for granted."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from dflash.cli.policy_cell import counted
from dflash.replay.cost import CostModel, Fit

PLAIN_UNTIMED = (
    "plain decoding was never timed in this recording or profile: the speed-up is not known, tau is; "
    "to know it, give --cost a profile of `dflash bench step`, or this recording and one with "
    "--drafter none"
)


def profile_text(model: CostModel) -> str:
    """Return a step-time profile as the file that --cost reads."""
    return json.dumps(model.step_time.to_dict(), indent=2) + "\n"


def render_cost(model: CostModel, console: Console) -> None:
    """Print where the times come from, how well they fit, and what was assumed."""
    if not model.fits:
        console.print(f"cost model: {model.source}, batch {model.batch:g}", soft_wrap=True)
    for fit in model.fits:
        console.print(_sentence(fit), soft_wrap=True)
    if model.fits:
        console.print(_residuals(model))
    if model.untimed:
        console.print(f"left out: {counted(model.untimed, 'round')} without times", soft_wrap=True)
    for text in model.assumptions:
        console.print(f"assumes: {text}", soft_wrap=True)


def _sentence(fit: Fit) -> str:
    terms = " + ".join(f"{_time(term.us)} a {term.of}" for term in fit.terms) or "nothing"
    share = "" if fit.share is None else f" ({fit.share:.0%})"
    return (
        f"{fit.part} = {terms}; residual {_time(fit.residual_us)}{share} on {counted(fit.steps, 'forward')}"
    )


def _residuals(model: CostModel) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("part", "at", "forwards", "measured", "fitted", "residual"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for fit in model.fits:
        for row in fit.residuals:
            at = f"{fit.over} {row.size:g}"
            times = (_time(value) for value in (row.measured_us, row.fitted_us, row.residual_us))
            table.add_row(fit.part, at, str(row.steps), *times)
    return table


def _time(us: float) -> str:
    """Return a time with the unit in which it is short."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    return f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} us"
