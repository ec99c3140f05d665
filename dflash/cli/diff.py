"""`dflash diff`: what drifted between two draft files, as a gate for releases."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from dflash.cli.diff_html import html_of
from dflash.cli.diff_markdown import markdown_of
from dflash.cli.diff_page import Page, page_of
from dflash.cli.diff_text import render
from dflash.cli.options import json_option, output_option, overwrite_option, say_left_out
from dflash.cli.output import Level, bar, data_console, jsonable, level, talk
from dflash.cli.outputs import check_outputs, write_output
from dflash.cli.token_text import find_tokens
from dflash.diff.pairing import On
from dflash.diff.report import Diff
from dflash.diff.run import diff as compare
from dflash.diff.settings import EXAMPLES, Settings
from dflash.diff.thresholds import parse_thresholds
from dflash.diff.tolerance import parse_tolerances
from dflash.draftfile.run import Run, draft_paths, open_run
from dflash.errors import UsageError

TEXT, JSON, MARKDOWN, HTML = "text", "json", "md", "html"
FORM_OF_SUFFIX = {".json": JSON, ".md": MARKDOWN, ".html": HTML, ".htm": HTML}
WIDTH = 160


@click.command(
    epilog="Exit codes: 0 identical, equal within tolerance, or the same law; 1 drifted or different "
    "(with --fail-on: a threshold fails); 2 usage, unreadable input, or no prompt in both files."
)
@click.argument("a", type=click.Path(path_type=Path), metavar="A", callback=say_left_out)
@click.argument("b", type=click.Path(path_type=Path), metavar="B", callback=say_left_out)
@click.option(
    "--on",
    type=click.Choice([str(on) for on in On]),
    default=str(On.ROUNDS),
    show_default=True,
    help="Pair live rounds by their number, or by the position of their anchor.",
)
@click.option(
    "--atol",
    multiple=True,
    metavar="[COL=]X",
    help="Absolute tolerance, of all columns or of one. [default: 1e-4; 1e-2 with a 16-bit model]",
)
@click.option(
    "--rtol",
    multiple=True,
    metavar="[COL=]X",
    help="Relative tolerance, of all columns or of one. [default: 1e-4; 1e-2 with a 16-bit model]",
)
@click.option("--ignore", multiple=True, metavar="COL", help="Leave a column out; may be repeated.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="METRIC:[+|-]X[%],...",
    help="Exit 1 only if a metric moves further than this: tau, accept@N, kl_mean, same_top1, tokens. "
    "+ stops a rise, - a fall, no sign both.",
)
@click.option("--timing", is_flag=True, help="Compare times too; they never change the verdict.")
@click.option(
    "--limit",
    type=click.IntRange(0, 10_000),
    default=EXAMPLES,
    show_default=True,
    metavar="N",
    help="Examples listed in a section.",
)
@json_option
@click.option("--md", "as_markdown", is_flag=True, help="Print Markdown, as for a pull request.")
@click.option("--html", "as_html", is_flag=True, help="Print one self-contained HTML page.")
@output_option("the report, as JSON, Markdown or HTML if the name or a flag says so,")
@overwrite_option
def diff(
    a: Path,
    b: Path,
    on: str,
    atol: Sequence[str],
    rtol: Sequence[str],
    ignore: Sequence[str],
    fail_on: Sequence[str],
    timing: bool,
    limit: int,
    as_json: bool,
    as_markdown: bool,
    as_html: bool,
    output: Path | None,
    overwrite: bool,
) -> int:
    """Compare draft files A (older) and B (newer): what drifted, how far, and the likely cause.

    A folder stands for the *.parquet files right inside it. Requests are aligned by their
    prompts, in any order, and compared as long as both files committed the same tokens.
    Nothing is said of what an ignored or volatile column holds. -q prints the verdict alone.
    """
    settings = Settings(
        on=On(on),
        tolerances=parse_tolerances(atol, rtol),
        ignore=frozenset(ignore),
        timing=timing,
        thresholds=tuple(threshold for text in fail_on for threshold in parse_thresholds(text)),
        limit=limit,
    )
    form = form_of(as_json, as_markdown, as_html, output)
    runs = open_run([a]), open_run([b])
    if output is None or str(output) == "-":
        found = _compare(*runs, settings)
        _print(found, form, limit)
        return found.exit_code
    check_outputs([output], draft_paths([a, b]), overwrite)
    found = _compare(*runs, settings)
    write_output(output, text_of(found, form, limit), overwrite=overwrite)
    talk(f"{found.verdict}: {output}")
    return found.exit_code


def form_of(as_json: bool, as_markdown: bool, as_html: bool, output: Path | None) -> str:
    """How to tell it: by the flag, else by the suffix of the output, else as text.

    Raises:
        UsageError: more than one flag.
    """
    flags = {JSON: as_json, MARKDOWN: as_markdown, HTML: as_html}
    asked = [form for form, given in flags.items() if given]
    if len(asked) > 1:
        raise UsageError(f"Expected one form of the report, found --{' and --'.join(asked)}.")
    return asked[0] if asked else FORM_OF_SUFFIX.get(output.suffix.lower() if output else "", TEXT)


def text_of(found: Diff, form: str, limit: int) -> str:
    """The report as a text, without colours."""
    if form == JSON:
        return json.dumps(jsonable(found.document()), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    if form == MARKDOWN:
        return markdown_of(_page(found, limit))
    if form == HTML:
        return html_of(_page(found, limit))
    text = io.StringIO()
    render(_page(found, limit), Console(file=text, width=WIDTH, markup=False, highlight=False, emoji=False))
    return text.getvalue()


def _print(found: Diff, form: str, limit: int) -> None:
    if form == TEXT and level() is Level.QUIET:
        data_console().print(str(found.verdict))
    elif form == TEXT:
        render(_page(found, limit), data_console())
    else:
        sys.stdout.write(text_of(found, form, limit))
    sys.stdout.flush()


def _page(found: Diff, limit: int) -> Page:
    return page_of(found.document(), limit, find_tokens(found.a.header), find_tokens(found.b.header))


def _compare(a: Run, b: Run, settings: Settings) -> Diff:
    groups = sum(file.row_groups for run in (a, b) for file in run.files)
    with bar("diff", total=groups) as (progress, task):
        return compare(a, b, settings, lambda: progress.advance(task))
