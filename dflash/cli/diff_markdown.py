"""A comparison as Markdown, as a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dflash.cli.diff_grid import Grid
from dflash.cli.diff_page import Page

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown_of(page: Page) -> str:
    """Return the page; text of the files is escaped."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"## dflash diff: {escape(page.verdict)}"
    yield ""
    yield escape(page.summary)
    yield ""
    yield from (f"- {escape(line)}" for line in page.files)
    yield from (f"- **likely cause:** {escape(cause)}" for cause in page.causes)
    if page.thresholds is not None:
        yield from _grid(page.thresholds)
    for section in page.sections:
        yield ""
        yield f"### {section.name}" + (f": {section.status}" if section.status else "")
        for line in section.lines:
            yield ""
            yield escape(line)
        for grid in section.grids:
            yield from _grid(grid)
    yield ""
    yield "<details><summary>what the numbers mean</summary>"
    yield ""
    yield from (f"- {escape(note)}" for note in page.notes)
    yield ""
    yield "</details>"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _grid(grid: Grid) -> Iterator[str]:
    yield ""
    yield _row(grid.head)
    yield _row(("---",) * len(grid.head), plain=True)
    yield from (_row(row) for row in grid.rows)


def _row(cells: tuple[str, ...], plain: bool = False) -> str:
    return f"| {' | '.join(text if plain else escape(text) for text in cells)} |"
