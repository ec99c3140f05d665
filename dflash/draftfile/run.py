"""A run: one draft file, or all the parts of one, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dflash.draftfile.errors import (
    DraftFileError,
    FileMissing,
    HeadersDiffer,
    NoDraftFiles,
    OutputIsInput,
    PartBeyond,
    PartMissing,
    PartRepeated,
    RequestRepeated,
    SeveralRuns,
    VerdictsGiven,
)
from dflash.draftfile.footer import open_parquet, read_pairs
from dflash.draftfile.header import Header
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.summary import Summary, merged

SUFFIX = ".parquet"
# keys that say when, where, by which share and in how much memory a part was recorded
OWN_KEYS = {"created_at", "host", "lanes", "memory", "shard"}


@dataclass(frozen=True, slots=True)
class Run:
    """All files of one run, by part."""

    files: tuple[DraftFile, ...]

    @property
    def header(self) -> Header:
        """The header of the first part; the others agree with it."""
        return self.files[0].header

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return self.files[0].run_id

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(file.rows for file in self.files)

    @property
    def requests(self) -> int:
        """Requests of all parts."""
        return sum(file.requests for file in self.files)

    @property
    def summary(self) -> Summary:
        """Counts of all parts together."""
        return merged(Summary.from_dict(file.summary) for file in self.files)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """One table per row group of every part, as `DraftFile.tables`.

        Raises:
            RequestRepeated: A request stands in two files (told only if `request_id` is read).
        """
        owner: dict[str, Path] = {}
        for file in self.files:
            for table in file.tables(columns):
                if "request_id" in table.column_names:
                    _claim(owner, table["request_id"].unique().to_pylist(), file.path)
                # as in `DraftFile.tables`
                held = [table]
                del table
                yield held.pop()


def open_run(paths: Sequence[Path | str]) -> Run:
    """Opens files and folders that together are one run.

    Raises:
        SeveralRuns: More than one run.
        RunError: Parts missing, repeated, or with unequal headers.
        OpenError, ColumnError: As `open_draft_file`.
    """
    runs = open_runs(paths)
    if len(runs) > 1:
        raise SeveralRuns([run.run_id for run in runs])
    return runs[0]


def open_runs(paths: Sequence[Path | str]) -> list[Run]:
    """Opens files and folders, grouped by run in the order of first appearance."""
    groups: dict[str, list[DraftFile]] = {}
    for path in draft_paths(paths):
        file = open_draft_file(path)
        groups.setdefault(file.run_id, []).append(file)
    return [_checked(files) for files in groups.values()]


def refuse_as_output(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Keep what is read from being written over, whoever says that it may be.

    Raises:
        OutputIsInput: An output is one of the inputs.
    """
    read = {path.resolve() for path in inputs}
    for path in outputs:
        if path is not None and path.resolve() in read:
            raise OutputIsInput(path)


def draft_paths(paths: Sequence[Path | str]) -> list[Path]:
    """The files themselves and every `*.parquet` right inside the folders but verdicts; each once.

    Raises:
        FileMissing: A path that does not exist.
        NoDraftFiles: A folder without draft files, or no paths at all.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileMissing(path)
        inside = [one for one in _inside(path) if not _holds_verdicts(one)] if path.is_dir() else [path]
        if not inside:
            raise NoDraftFiles(str(path))
        found += inside
    if not found:
        raise NoDraftFiles("the arguments")
    return list(dict.fromkeys(found))


def left_out(paths: Iterable[Path]) -> list[Path]:
    """The files of verdicts right inside the folders among the paths, which `draft_paths` leaves out."""
    return [path for folder in paths if folder.is_dir() for path in _inside(folder) if _holds_verdicts(path)]


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def _holds_verdicts(path: Path) -> bool:
    try:
        with open_parquet(path) as parquet:
            read_pairs(path, parquet)
    except VerdictsGiven:
        return True
    except DraftFileError:
        # whoever opens it says what is wrong
        return False
    return False


def _checked(files: list[DraftFile]) -> Run:
    ordered = sorted(files, key=lambda file: file.part)
    run_id = ordered[0].run_id
    for before, after in zip(ordered, ordered[1:], strict=False):
        if before.part == after.part:
            raise PartRepeated(run_id, after.part, before.path, after.path)
    _check_parts(run_id, ordered)
    for file in ordered[1:]:
        _check_header(run_id, ordered[0], file)
    return Run(tuple(ordered))


def _check_parts(run_id: str, ordered: list[DraftFile]) -> None:
    given = {file.part for file in ordered}
    claims = [file.parts for file in ordered if file.parts is not None]
    expected = max(claims, default=max(given) + 2)
    for part in range(expected):
        if part not in given:
            last = " (the last one)" if not claims and part > max(given) else ""
            raise PartMissing(run_id, f"{part}{last}")
    if max(given) >= expected:
        raise PartBeyond(run_id, expected, max(given))


def _check_header(run_id: str, first: DraftFile, other: DraftFile) -> None:
    for key in sorted({*first.header.raw, *other.header.raw} - OWN_KEYS):
        if first.header.raw.get(key) != other.header.raw.get(key):
            raise HeadersDiffer(run_id, key, first.path, other.path)


def _claim(owner: dict[str, Path], names: Sequence[str], path: Path) -> None:
    for name in names:
        if owner.setdefault(name, path) != path:
            raise RequestRepeated(name, owner[name], path)
