"""`dflash cat`: the rounds of a draft file as text, ndjson or csv."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from dflash.cli.cat_lines import write_csv, write_ndjson
from dflash.cli.cat_text import write_text
from dflash.cli.options import files_argument
from dflash.cli.settings import did_you_mean
from dflash.cli.token_text import find_tokens
from dflash.draftfile.dealt import in_order
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.run import Run, open_run
from dflash.draftfile.summary import Kind
from dflash.errors import UsageError

KINDS = {"live": Kind.LIVE, "dense": Kind.DENSE, "prefill": Kind.PREFILL, "features": Kind.PROMPT_FEATURES}
Row = dict[str, Any]


class UnknownRequest(UsageError):
    """A request that the file does not hold."""


@click.command()
@files_argument
@click.option("-n", "--rows", type=click.IntRange(min=0), help="Show only the first N rows.", metavar="N")
@click.option("--request", "wanted", help="Show only this request.", metavar="ID")
@click.option("--kind", type=click.Choice(list(KINDS)), multiple=True, help="Show only rows of this kind.")
@click.option(
    "--format", "form", type=click.Choice(["text", "ndjson", "csv"]), default="text", show_default=True,
    help="Text draws the trees; ndjson is one JSON object a row; csv holds lists as JSON.",
)  # fmt: skip
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json, or its folder, to show tokens as text; default: the target's, if it is here.",
)
def cat(
    files: tuple[Path, ...],
    rows: int | None,
    wanted: str | None,
    kind: tuple[str, ...],
    form: str,
    tokenizer: Path | None,
) -> None:
    """Print the rounds of a draft file, or of all the files of one run: what was proposed, what was accepted.

    As text every tree is drawn, accepted nodes marked with * and coloured. The shards of a run (a folder, or
    its files) are joined in the order of their prompts.
    """
    run = open_any(files)
    opened = run.files[0]
    if wanted is not None:
        _check_request(run, wanted)
    chosen = islice(select(run, wanted, {KINDS[name] for name in kind}), rows)
    if form == "ndjson":
        write_ndjson(chosen, sys.stdout)
    elif form == "csv":
        write_csv(chosen, opened.schema.names, sys.stdout)
    else:
        write_text(chosen, find_tokens(opened.header, tokenizer))
    sys.stdout.flush()


def open_any(paths: Sequence[Path]) -> Run:
    """One file as it is, though it were a part of something, or a whole run."""
    if len(paths) == 1 and not paths[0].is_dir():
        return Run((open_draft_file(paths[0]),))
    return open_run(paths)


def _check_request(run: Run, request: str) -> None:
    tables = run.tables(["request_id"])
    known = [name for table in tables for name in table["request_id"].unique().to_pylist()]
    if request not in known:
        place = run.files[0].path if len(run.files) == 1 else "The run"
        raise UnknownRequest(f"{place} has no request {request!r}.{did_you_mean(request, known)}")


def select(run: Run, request: str | None, kinds: set[Kind]) -> Iterator[Row]:
    """The rows wanted, as dictionaries, in the order of the prompts."""
    for table in in_order(run):
        for batch in table.to_batches(max_chunksize=256):
            for row in batch.to_pylist():
                if request in (None, row["request_id"]) and (not kinds or row["kind"] in kinds):
                    yield row
