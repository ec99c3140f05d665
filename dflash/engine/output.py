"""Where a recording goes: its output and its journal, checked before a model is loaded, opened after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dflash.draftfile.journal import Journal, journal_path, refuse_journal
from dflash.draftfile.publish import Publication, beside
from dflash.draftfile.resume import Kept, carry_over, find_earlier, require_same_header
from dflash.draftfile.writer import DraftFileWriter
from dflash.engine.recorder.recorder import Recorder


class Part(NamedTuple):
    """Which file of which run."""

    run_id: str
    part: int
    parts: int


def check_output(path: Path, *, overwrite: bool = False, resume: bool = False) -> bool:
    """Refuse an output that could not be written; tells whether there is a recording to go on with.

    Raises:
        OutputExists, OutputBusy, FolderNotWritable: see `draftfile.publish.Publication`.
        JournalExists: An earlier recording of the same output broke off.
        OpenError: What is to be resumed cannot be read.
    """
    Publication(path, overwrite=overwrite or resume).discard()
    if resume:
        return find_earlier(path) is not None
    if not overwrite:
        refuse_journal(journal_path(path))
    return False


def start_journal(
    output: Path,
    header: Mapping[str, Any],
    part: Part,
    sync_seconds: float,
    *,
    overwrite: bool = False,
    resume: bool = False,
    alone: bool = False,
) -> tuple[Journal, Kept]:
    """The journal of an output, and what is kept of an earlier recording; that is in the journal already.

    Raises:
        JournalExists: An earlier recording broke off, and nobody said what becomes of it.
        ResumeRefused: It was made under other settings.
    """
    path = journal_path(output)
    if overwrite:
        path.unlink(missing_ok=True)
    earlier = find_earlier(output) if resume else None
    if earlier is None:
        if resume:
            # empty, or there is none
            path.unlink(missing_ok=True)
        return Journal(path, header, sync_seconds, **part._asdict(), apart=alone), Kept({})
    require_same_header(earlier, header)
    partial = beside(path, ".partial")
    partial.unlink(missing_ok=True)
    journal = Journal(partial, header, sync_seconds, **part._asdict(), apart=alone)
    try:
        kept = carry_over(earlier, journal)
        journal.replace(path)
    except BaseException:
        journal.delete()
        raise
    return journal, kept


class RecorderPlan(NamedTuple):
    """All that a recorder must know before the first round, wherever it runs."""

    output: Path
    header: Mapping[str, Any]
    part: Part
    sync_seconds: float
    overwrite: bool
    resume: bool
    keep_text: bool
    features: bool


@contextmanager
def open_here(plan: RecorderPlan, *, patience: float = 0.0, alone: bool = False) -> Iterator[Recorder]:
    """A recorder in this process, with its output and its journal.

    Args:
        plan: What it must know.
        patience: As there.
        alone: Whether the process is the recorder's: rows are not lent, and threads write others.

    Raises:
        WriteError: The output or the journal cannot be written.
        ResumeRefused: What is to be gone on with was made under other settings.
    """
    choice = {"overwrite": plan.overwrite, "resume": plan.resume}
    with DraftFileWriter(
        plan.output, plan.header, **plan.part._asdict(), overwrite=any(choice.values()), apart=alone
    ) as writer:
        journal, kept = start_journal(
            plan.output, plan.header, plan.part, plan.sync_seconds, **choice, alone=alone
        )
        given = {"keep_text": plan.keep_text, "features": plan.features}
        yield Recorder(writer, journal, kept, **given, patience=patience, lent=not alone)
