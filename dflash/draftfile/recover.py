"""Makes a draft file of what a broken recording left in its journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout

from dflash.draftfile.errors import FileMissing, JournalGone, OpenError, OutputBusy
from dflash.draftfile.invariants import check_rows
from dflash.draftfile.journal import journal_path
from dflash.draftfile.journal_reader import Entry, JournalReader, open_journal
from dflash.draftfile.publish import beside
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.requests import check_requests
from dflash.draftfile.resume import same_recording
from dflash.draftfile.summary import Kind
from dflash.draftfile.view import Limits
from dflash.draftfile.violations import RequestSplit
from dflash.draftfile.writer import DraftFileWriter
from dflash.errors import DflashError


class Recovered(NamedTuple):
    """What a recovery brought back.

    Attributes:
        path: The draft file; it was there already if `already_complete`.
        rows, requests: In the file.
        closed: Requests that the recorder had finished.
        interrupted: Requests that it had not; their last round says `interrupted`.
        dense_left_out: Those of them that had some of their dense rows, and have none now: a walk needs all.
        dropped: Requests whose rows were damaged and left out, with the reason.
        torn_bytes: Bytes at the end of the journal that hold no whole round.
        journal: The journal, if it was kept; None if it was removed.
    """

    path: Path
    content_digest: str
    rows: int
    requests: int
    closed: int
    interrupted: tuple[str, ...]
    dense_left_out: tuple[str, ...]
    dropped: dict[str, str]
    torn_bytes: int
    already_complete: bool
    journal: Path | None = None

    @property
    def lost(self) -> bool:
        """Whether anything that had reached the journal could not be kept."""
        return bool(self.torn_bytes or self.dropped)


def recover(path: Path | str, output: Path | str | None = None, *, overwrite: bool = False) -> Recovered:
    """Writes the requests of a journal as a draft file.

    If the journal's own run has a valid file already, that file wins and nothing is written. The journal
    is deleted once everything in it is published under the recording's own name; it stays if something was
    lost, or if the file goes elsewhere, so that the recording can still be gone on with.

    Args:
        path: A journal, or the output of the recording that broke off.
        output: Where to write; default: the output of that recording.
        overwrite: Replace an existing output.

    Raises:
        OpenError: No journal, or one that broke off before its header was written.
        OutputBusy: The recording is still running.
        WriteError: The output cannot be written.
    """
    journal, own = _places(Path(path))
    target = own if output is None else Path(output)
    elsewhere = target.resolve() != own.resolve()
    with _held(own) if elsewhere else nullcontext():
        reader = open_journal(journal) if elsewhere else _opened(journal, own)
        found = _complete(reader, own)
        if found is None:
            found = _write(reader, target, overwrite)
        if found.lost or (elsewhere and not found.already_complete):
            return found._replace(journal=journal)
        journal.unlink()
        return found


def _opened(journal: Path, own: Path) -> JournalReader:
    """The journal as its recording left it, which may have ended only just now."""
    with _held(own):
        return open_journal(journal)


def _places(path: Path) -> tuple[Path, Path]:
    """The journal, and the file that its recording was to become."""
    given = path.suffix == ".journal"
    journal, own = (path, path.with_suffix(".parquet")) if given else (journal_path(path), path)
    if not journal.exists():
        raise _missing(journal, own)
    return journal, own


def _missing(journal: Path, own: Path) -> FileMissing:
    """What to say of a journal that is not there."""
    try:
        return JournalGone(journal, own, open_draft_file(own).run_status)
    except OpenError:
        return FileMissing(journal, "the journal of a recording")


@contextmanager
def _held(output: Path) -> Iterator[None]:
    lock = FileLock(beside(output, ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputBusy(output) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _complete(reader: JournalReader, own: Path) -> Recovered | None:
    try:
        file = open_draft_file(own)
    except OpenError:
        return None
    if not same_recording(file, reader) or file.lost is not None:
        return None
    return Recovered(own, file.content_digest, file.rows, file.requests, file.requests, (), (), {}, 0, True)


def _write(reader: JournalReader, target: Path, overwrite: bool) -> Recovered:
    closed, interrupted, dense_left_out, dropped = 0, list[str](), list[str](), dict[str, str]()
    limits, seen = Limits.of(reader.header), set[str]()
    with DraftFileWriter(
        target,
        reader.header.raw,
        run_id=reader.run_id,
        part=reader.part,
        parts=reader.parts,
        overwrite=overwrite,
    ) as writer:
        for entry in reader.entries():
            if damage := _damage(entry, limits, seen):
                dropped[entry.request_id] = damage
                continue
            seen.add(entry.request_id)
            # a round that was journaled before its request was interrupted does not say so yet
            table = mark_interrupted(entry.table)
            if not entry.closed and lacks_dense_rows(table):
                table = table.filter(pc.not_equal(table["kind"], Kind.DENSE))
                dense_left_out.append(entry.request_id)
            writer.write_request(table)
            closed += entry.closed
            interrupted += [] if entry.closed else [entry.request_id]
        lost = {"torn_bytes": reader.torn_bytes, "dropped": dropped} if reader.torn_bytes or dropped else None
        done = writer.finish("recovered", lost)
    cut = tuple(interrupted), tuple(dense_left_out)
    counts = (done.rows, done.requests, closed, *cut, dropped, reader.torn_bytes)
    return Recovered(done.path, done.content_digest, *counts, False)


def _damage(entry: Entry, limits: Limits, seen: set[str]) -> str | None:
    try:
        check_rows(entry.table, limits)
        names = check_requests(entry.table, seen)
        if names != {entry.request_id}:
            raise RequestSplit(f"rows of {entry.request_id!r} alone", ", ".join(sorted(names)))
    except DflashError as error:
        return str(error)
    return None


def lacks_dense_rows(table: pa.Table) -> bool:
    """Whether a request has dense rows, but not one for each committed token but the last."""
    count = pc.sum(pc.equal(table["kind"], Kind.DENSE)).as_py()
    return bool(count) and count != pc.sum(table["emitted"]).as_py() - 1


def mark_interrupted(table: pa.Table) -> pa.Table:
    """The rows of an unfinished request, its newest round cut short by `interrupted`."""
    kind = table["kind"].to_numpy()
    decided = np.flatnonzero((kind == Kind.LIVE) | (kind == Kind.PREFILL))
    reasons = table["truncated_by"].to_pylist()
    if len(decided) and reasons[decided[-1]] == "none":
        reasons[decided[-1]] = "interrupted"
    position = table.column_names.index("truncated_by")
    return table.set_column(position, table.schema.field(position), pa.array(reasons, pa.string()))
