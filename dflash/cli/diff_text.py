"""A comparison for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from dflash.cli.diff_grid import Grid
from dflash.cli.diff_page import Page, Section

_GOOD = {"identical", "equal within tolerance", "same law"}


def render(page: Page, console: Console) -> None:
    """Print verdict, causes, thresholds and sections."""
    style = "bold green" if page.verdict in _GOOD else "bold red"
    console.print(page.verdict, style=style)
    console.print(page.summary, soft_wrap=True)
    for line in page.files:
        console.print(line, soft_wrap=True, style="dim")
    for cause in page.causes:
        console.print(f"likely cause: {cause}", soft_wrap=True)
    if page.thresholds is not None:
        console.print(_table(page.thresholds))
    for section in page.sections:
        _section(section, console)


def _section(section: Section, console: Console) -> None:
    console.print()
    console.print(f"{section.name}: {section.status}" if section.status else section.name, style="bold")
    for line in section.lines:
        console.print(f"  {line}", soft_wrap=True)
    for grid in section.grids:
        console.print(_table(grid))


def _table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 2, 0, 0))
    for number, name in enumerate(grid.head):
        table.add_column(name, overflow="fold", no_wrap=number == 0, header_style="dim")
    for row in grid.rows:
        table.add_row(*row)
    return table
