"""What can be wrong with a draft file, one class per situation.

DraftFileError
├── WriteError    the output: exists, is busy, its folder refuses; columns or values do not fit
├── OpenError     no complete draft file that this version reads: magic, caps, version, seal, digests, header
├── ColumnError   a column is missing, of another type or field id
├── DataError     a page or a row breaks the format; see `violations`
└── RunError      the files given are not one whole run
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dflash.errors import DflashError


class DraftFileError(DflashError):
    """Root of everything that can be wrong with a draft file."""


class WriteError(DraftFileError):
    """The file cannot be written."""


class OutputIsInput(WriteError):
    """An output is one of the files that are read for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is one of the files that are read; choose another output.")


class OutputExists(WriteError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists already; choose another output or pass --overwrite.")


class JournalExists(OutputExists):
    """An earlier recording of the same output broke off, and what it had is not saved yet."""

    def __init__(self, path: Path) -> None:
        Exception.__init__(
            self,
            f"{path} holds a recording that broke off: `dflash recover {path}` makes a draft file of it, "
            "--resume goes on with it, --overwrite throws it away.",
        )


class EmptyJournalExists(JournalExists):
    """An earlier recording of the same output broke off before anything of it was written."""

    def __init__(self, path: Path) -> None:
        Exception.__init__(
            self,
            f"{path} is an empty journal: a recording broke off before anything was written, so there is "
            "nothing to recover; pass --overwrite to record anew.",
        )


class OutputIsFolder(WriteError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"Expected the name of a file to write, found the folder {path}.")


class WriteFailed(WriteError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"Writing {path} failed: {reason}; nothing was published.")


class OutputBusy(WriteError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is being written by another process; choose another output or wait for it.")


class FolderNotWritable(WriteError):
    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"Cannot write into the folder {folder}: {reason}; choose another output.")


class UnknownColumn(WriteError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else "; a column of your own starts with x_."
        super().__init__(f"Expected a column of the draft file, found {name!r}{hint}")


class ValueOutOfType(WriteError):
    def __init__(self, column: str, kind: str, reason: str) -> None:
        super().__init__(f"Column {column} holds {kind}, and a value does not fit: {reason}.")


class SchemaRefused(WriteError):
    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Expected the columns of the draft file and of this run's first request, found {reason}."
        )


class OpenError(DraftFileError):
    """The file is not a complete draft file that this version can read."""


class FileMissing(OpenError):
    def __init__(self, path: Path, expected: str = "a draft file") -> None:
        super().__init__(f"{path} does not exist; expected {expected}.")


class JournalGone(FileMissing):
    """The journal is not there any more, and the draft file that it was to become is."""

    def __init__(self, path: Path, own: Path, run_status: str) -> None:
        told = "was recovered already" if run_status == "recovered" else "was written out"
        Exception.__init__(
            self,
            f"{path} does not exist, and {own} does: the recording {told}, so there is nothing to recover.",
        )


class NotAFile(OpenError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a regular file; expected a draft file.")


class FileUnreadable(OpenError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}.")


class FileEmpty(OpenError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is empty (0 bytes); expected a draft file.")


class JournalEmpty(FileEmpty):
    """The journal of a recording that broke off before anything of it was written."""

    def __init__(self, path: Path) -> None:
        Exception.__init__(
            self,
            f"{path} is an empty journal (0 bytes): the recording broke off before anything was written, so "
            "there is nothing to recover; delete it, or record anew with --overwrite.",
        )


class FileTruncated(OpenError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} begins like a Parquet file but its end is missing ({reason}); copy it again."
        )


class TrailingBytes(OpenError):
    def __init__(self, path: Path, count: int) -> None:
        super().__init__(
            f"{path} is a whole Parquet file with {count} bytes more after its end; cut them off, or copy it "
            "again."
        )


class NotParquet(OpenError):
    def __init__(self, path: Path, found: bytes) -> None:
        super().__init__(f"{path} is not a Parquet file: expected it to begin with b'PAR1', found {found!r}.")


class JournalGiven(NotParquet):
    """A journal where a draft file is expected."""

    def __init__(self, path: Path) -> None:
        Exception.__init__(
            self, f"{path} is a journal, not a draft file; `dflash recover {path}` makes a draft file of it."
        )


class JournalUnreadable(OpenError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is no journal, or one that broke off before its first round, so there is nothing "
            f"to recover ({reason})."
        )


class NotADraftFile(OpenError):
    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is a Parquet file but no draft file: the key dflash.format_version is missing. If it "
            "was made of a draft file, the program that wrote it has dropped what that says of itself."
        )


class VerdictsGiven(NotADraftFile):
    """What `replay -o` wrote, where a draft file is expected."""

    def __init__(self, path: Path) -> None:
        Exception.__init__(
            self,
            f"{path} holds verdicts of `replay -o`, not a draft file; give the draft files it was made of.",
        )


class MetadataTooLarge(OpenError):
    def __init__(self, path: Path, found: int, limit: int) -> None:
        super().__init__(
            f"{path}: the footer claims {found} bytes, expected at most {limit}; the file is damaged."
        )


class FooterCorrupt(OpenError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: the Parquet footer cannot be read ({reason}); copy the file again.")


class NewerFormat(OpenError):
    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, this toolkit reads up to {known}; update dflash-toolkit."
        )


class UnknownCapability(OpenError):
    def __init__(self, path: Path, name: str, since: str | None, known: Iterable[str]) -> None:
        version = f"dflash-toolkit {since} or newer" if since else "a newer dflash-toolkit"
        super().__init__(
            f"{path} requires the capability {name!r}, this toolkit knows {', '.join(known)}; use {version}."
        )


class Incomplete(OpenError):
    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is not complete: expected the key dflash.complete, found none; try `dflash recover`."
        )


class BytesChanged(OpenError):
    """A digest over bytes or pairs of the file does not match.

    Attributes:
        what: The part of the file that the digest covers.
    """

    what = "bytes"

    def __init__(self, path: Path, expected: str, found: str) -> None:
        digests = f"expected digest {expected[:12]}, found {found[:12]}"
        super().__init__(
            f"{path}: {self.what} were changed after writing ({digests}): the file was damaged, or another "
            "program has written it anew; copy the original again."
        )


class SealBroken(BytesChanged):
    what = "the dflash.* metadata"


class FooterChanged(BytesChanged):
    what = "bytes of the footer"


class BodyChanged(BytesChanged):
    what = "bytes before the footer"


class MetadataInvalid(OpenError):
    def __init__(self, path: Path, key: str, reason: str) -> None:
        super().__init__(f"{path}: the metadata key {key} is wrong: {reason}.")


class HeaderInvalid(OpenError):
    def __init__(self, where: str, reason: str, path: Path | None = None) -> None:
        place = f"{path}: " if path else ""
        super().__init__(f"{place}the header is not valid at {where}: {reason}.")


class ColumnError(DraftFileError):
    """The columns are not those of the format."""


class ColumnMissing(ColumnError):
    def __init__(self, path: Path, name: str) -> None:
        super().__init__(f"{path}: expected the column {name}, found none of that name.")


class ColumnUnknown(ColumnError):
    def __init__(self, path: Path, name: str, known: Sequence[str]) -> None:
        near = get_close_matches(name, known, 1)
        super().__init__(f"{path} has no column {name!r}" + (f"; did you mean {near[0]}?" if near else "."))


class ColumnType(ColumnError):
    def __init__(self, path: Path, name: str, expected: Any, found: Any) -> None:
        super().__init__(f"{path}: expected column {name} to be {expected}, found {found}.")


class ColumnFieldId(ColumnError):
    def __init__(self, path: Path, name: str, expected: int, found: int | None) -> None:
        super().__init__(f"{path}: expected field id {expected} for {name}, found {found}.")


class DataError(DraftFileError):
    """A value, or the shape of the rows, is wrong.

    Attributes:
        path, row_group, row: Where, as far as known; the row counts within its row group.
    """

    def __init__(
        self,
        expected: str,
        found: str,
        path: Path | None = None,
        row_group: int | None = None,
        row: int | None = None,
    ) -> None:
        self.expected, self.found = expected, found
        self.path, self.row_group, self.row = path, row_group, row
        parts = [str(path) if path else "", f"row group {row_group}" if row_group is not None else ""]
        where = ", ".join([part for part in [*parts, f"row {row}" if row is not None else ""] if part])
        super().__init__(f"{where + ': ' if where else ''}expected {expected}, found {found}.")


class PageCorrupt(DataError):
    """A page fails its checksum or cannot be decoded."""


class RowsDisagree(DataError):
    """The footer, the metadata and the data count differently."""


class DigestMismatch(DataError):
    """Recomputed digests differ from the stored ones."""


class RunError(DraftFileError):
    """The files given are not one whole run."""


class NoDraftFiles(RunError):
    def __init__(self, where: str) -> None:
        super().__init__(f"Expected draft files (*.parquet), found none in {where}.")


class SeveralRuns(RunError):
    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"Expected the files of one run, found {len(ids)} runs: {', '.join(ids)}.")


class PartMissing(RunError):
    def __init__(self, run_id: str, part: str) -> None:
        super().__init__(
            f"Run {run_id}: expected every part once, part {part} is missing; give all files of the run."
        )


class PartBeyond(RunError):
    def __init__(self, run_id: str, parts: int, found: int) -> None:
        super().__init__(
            f"Run {run_id}: expected {parts} parts, found part {found}; check that all files belong."
        )


class PartRepeated(RunError):
    def __init__(self, run_id: str, part: int, first: Path, second: Path) -> None:
        super().__init__(
            f"Run {run_id}: expected every part once, found part {part} in both {first} and {second}."
        )


class HeadersDiffer(RunError):
    def __init__(self, run_id: str, key: str, first: Path, second: Path) -> None:
        super().__init__(
            f"Run {run_id}: expected one header, found another {key} in {second} than in {first}."
        )


class RequestRepeated(RunError):
    def __init__(self, request_id: str, first: Path, second: Path) -> None:
        super().__init__(
            f"Expected every request in one file, found {request_id!r} in both {first} and {second}."
        )
