"""Outputs: checked before the work that fills them, and whole or not there after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash.draftfile.publish import Publication, whole_file
from dflash.draftfile.run import refuse_as_output
from dflash.errors import UsageError


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path], overwrite: bool) -> None:
    """Find out whether results can be written; an output that was not asked for is None.

    Raises:
        OutputIsInput: An output is one of the files that are read.
        OutputExists, FolderNotWritable: see `draftfile.publish.Publication`.
        UsageError: Two outputs are one path.
    """
    refuse_as_output(outputs, inputs)
    named = [path.resolve() for path in outputs if path is not None]
    if len(set(named)) < len(named):
        raise UsageError("Expected different outputs, found one path twice.")
    for path in named:
        Publication(path, overwrite=overwrite).discard()


def write_output(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a result.

    Raises:
        OutputExists: The path exists and may not be replaced.
        WriteFailed: The system refused to write; nothing is left.
    """
    with whole_file(path, overwrite=overwrite) as file:
        file.write(text.encode())
