"""`dflash recover`: salvages the recording that a journal holds."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from dflash.cli.options import json_option, output_option, overwrite_option
from dflash.cli.outcome import Exit
from dflash.cli.output import emit
from dflash.cli.policy_cell import counted
from dflash.draftfile.recover import Recovered
from dflash.draftfile.recover import recover as recover_journal


@click.command()
@click.argument("journal", type=click.Path(path_type=Path), metavar="JOURNAL")
@output_option("the draft file")
@overwrite_option
@json_option
def recover(journal: Path, output: Path | None, overwrite: bool, as_json: bool) -> int:
    """Make a draft file of the journal that a broken recording left.

    JOURNAL is the journal itself or the output that the recording was to write, which is also
    where the file goes without -o. Requests that were still open keep their rounds and end with
    `interrupted`. Exit code 3 if anything in the journal could not be kept.

    The journal is removed once all of it is in the recording's own output. It is kept if something
    was lost, or if -o puts the file elsewhere: `dflash record --resume` can still go on with it.
    """
    found = recover_journal(journal, output, overwrite=overwrite)
    document = {
        "schema": "dflash.recover/1",
        "path": str(found.path),
        "content_digest": found.content_digest,
        "already_complete": found.already_complete,
        "rows": found.rows,
        "requests": found.requests,
        "closed": found.closed,
        "interrupted": list(found.interrupted),
        "dense_left_out": list(found.dense_left_out),
        "dropped": found.dropped,
        "torn_bytes": found.torn_bytes,
        "lost": found.lost,
        "journal": None if found.journal is None else str(found.journal),
    }
    emit(document, as_json, lambda console: render(found, console))
    return Exit.LOST if found.lost else Exit.DONE


def render(found: Recovered, console: Console) -> None:
    """Prints what came back and what did not."""
    if found.already_complete:
        console.print(f"{found.path} is complete; the journal is not needed and was removed.", soft_wrap=True)
        return
    interrupted = counted(len(found.interrupted), "interrupted request")
    kept = f"{found.closed} finished and {interrupted}, {counted(found.rows, 'row')}"
    console.print(f"{found.path}: {kept}, digest {found.content_digest[:12]}", soft_wrap=True)
    if found.dense_left_out:
        names = ", ".join(found.dense_left_out)
        console.print(f"left out the dense rows of {names}: they were not all there yet", soft_wrap=True)
    for request, reason in found.dropped.items():
        console.print(f"left out {request}: {reason}", soft_wrap=True)
    if found.torn_bytes:
        console.print(
            f"lost: the last {found.torn_bytes} bytes of the journal hold no whole round", soft_wrap=True
        )
    console.print(_journal(found), soft_wrap=True)


def _journal(found: Recovered) -> str:
    if found.journal is None:
        return "The journal was removed: all of it is in the draft file."
    if found.lost:
        return f"{found.journal} was kept, as not all of it could be read."
    return f"{found.journal} was kept: `dflash record --resume` can go on with it."
