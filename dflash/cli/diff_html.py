"""A comparison as one HTML page that needs nothing else: no script, no fetched style, no picture."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from dflash.cli.diff_grid import Grid
from dflash.cli.diff_page import Page, Section

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.status { font-weight: 400; color: #57606a; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #d8dee4;
  font-variant-numeric: tabular-nums; vertical-align: top; }
th { color: #57606a; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117; } th, .status { color: #9198a1; }
  th, td { border-color: #30363d; } }
"""


def html_of(page: Page) -> str:
    """Return the page; text of the files is escaped."""
    title = f"dflash diff: {escape(page.verdict)}"
    head = (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
    )
    return "\n".join((head, "<body>", *_body(page, title), "</body>", "</html>", ""))


def _body(page: Page, title: str) -> Iterator[str]:
    yield f"<h1>{title}</h1>"
    yield _paragraph(page.summary)
    yield _list(page.files)
    if page.causes:
        yield "<h2>Likely cause</h2>"
        yield _list(page.causes)
    if page.thresholds is not None:
        yield "<h2>Thresholds</h2>"
        yield _grid(page.thresholds)
    for section in page.sections:
        yield from _section(section)
    yield f"<details><summary>what the numbers mean</summary>{_list(page.notes)}</details>"


def _section(section: Section) -> Iterator[str]:
    status = f' <span class="status">{escape(section.status)}</span>' if section.status else ""
    yield f"<h2>{escape(section.name)}{status}</h2>"
    yield from (_paragraph(line) for line in section.lines)
    yield from (_grid(grid) for grid in section.grids)


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _list(lines: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _grid(grid: Grid) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in grid.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in grid.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
