"""`dflash doctor`: every problem of a draft file in one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dflash.cli.options import files_argument, json_option
from dflash.cli.outcome import Exit
from dflash.cli.output import emit
from dflash.draftfile.doctor import problems
from dflash.draftfile.errors import DataError, DraftFileError
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.run import draft_paths

Json = dict[str, Any]


@click.command()
@files_argument
@click.option("--deep", is_flag=True, help="Recompute the digests of every column, too.")
@json_option
def doctor(files: Sequence[Path], deep: bool, as_json: bool) -> int:
    """Examine draft files: structure, checksums, invariants, counts.

    Reads every byte and tells all problems, not only the first. Exit code 0 if all files are
    sound, 1 if there are findings, 2 if a file cannot be opened as a draft file at all.
    """
    paths: dict[Path, DraftFileError | None] = {}
    for given in files:
        try:
            paths |= dict.fromkeys(draft_paths([given]))
        except DraftFileError as error:
            paths[given] = error
    found = [examined(path, deep) if none is None else unopened(path, none) for path, none in paths.items()]
    document = {"schema": "dflash.doctor/1", "deep": deep, "files": found}
    emit(document, as_json, lambda console: render(found, console))
    if not all(file["opens"] for file in found):
        return Exit.UNUSABLE
    return Exit.DIFFERENT if any(file["findings"] for file in found) else Exit.DONE


def examined(path: Path, deep: bool) -> Json:
    """What is wrong with one file, as the JSON document has it."""
    try:
        file = open_draft_file(path)
    except DraftFileError as error:
        return unopened(path, error)
    return {
        "path": str(path),
        "opens": True,
        "findings": [finding(error) for error in problems(file, deep=deep)],
    }


def unopened(path: Path, error: DraftFileError) -> Json:
    """What is wrong with a path at which there is no draft file."""
    return {"path": str(path), "opens": False, "findings": [finding(error)]}


def finding(error: DraftFileError) -> Json:
    """One problem: its kind, its place as far as known, and the words."""
    place = (error.row_group, error.row) if isinstance(error, DataError) else (None, None)
    return {"kind": type(error).__name__, "row_group": place[0], "row": place[1], "message": str(error)}


def render(files: Sequence[Json], console: Console) -> None:
    """Prints one line a sound file and one a problem."""
    for file in files:
        if not file["findings"]:
            console.print(f"{file['path']}: sound", soft_wrap=True)
        for problem in file["findings"]:
            console.print(problem["message"], soft_wrap=True)
