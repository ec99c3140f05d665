"""Examines a draft file to the end: every problem in one run, instead of the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dflash.draftfile.digest import TableDigest, content_digest
from dflash.draftfile.errors import (
    BodyChanged,
    DataError,
    DigestMismatch,
    DraftFileError,
    PageCorrupt,
    RowsDisagree,
)
from dflash.draftfile.footer import check_body, open_parquet, read_pairs
from dflash.draftfile.invariants import row_problems
from dflash.draftfile.metadata import group_chunks
from dflash.draftfile.other_settings import OtherSettings
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.requests import check_requests
from dflash.draftfile.summary import Summary
from dflash.draftfile.view import Limits, Place


def examine(path: Path | str, *, deep: bool = False) -> list[DraftFileError]:
    """All problems of a file that opens; empty if it is sound.

    Args:
        deep: Recompute the column and content digests, too.

    Raises:
        OpenError, ColumnError: It does not open; there is nothing to examine.
    """
    return list(problems(open_draft_file(path), deep=deep))


def problems(file: DraftFile, *, deep: bool = False) -> Iterator[DraftFileError]:
    """The problems of an open file, one by one; memory is bounded by a row group."""
    yield from _changed_bytes(file)
    limits, seen = Limits.of(file.header), set[str]()
    summary, digest, whole = Summary(), TableDigest(), True
    others = OtherSettings(file.header)
    for group in range(file.row_groups):
        table, damages = _read(file, group)
        yield from damages
        broken = [] if table is None else row_problems(table, limits, Place(file.path, group))
        yield from broken
        if table is None or broken:
            whole = False
            continue
        try:
            seen |= check_requests(table, seen, Place(file.path, group))
        except DataError as error:
            yield error
        summary.add(table)
        others.add(table)
        if deep:
            digest.update(table)
    if whole:
        yield from _miscounted(file, summary, len(seen))
        if file.other_settings not in (None, others.to_dict()):
            told = f"requests with other settings {dict(file.other_settings or {})} in the metadata"
            yield RowsDisagree(told, f"{others.to_dict()}", file.path)
        yield from _digests(file, digest) if deep else ()


def _changed_bytes(file: DraftFile) -> Iterator[DraftFileError]:
    with open_parquet(file.path) as parquet:
        pairs = read_pairs(file.path, parquet)
    try:
        check_body(file.path, pairs)
    except BodyChanged as error:
        yield error


def _read(file: DraftFile, group: int) -> tuple[pa.Table | None, list[PageCorrupt]]:
    """One row group, or every damaged column in it."""
    found: list[PageCorrupt] = []
    with open_parquet(file.path) as parquet, file.path.open("rb") as raw:
        for chunk in group_chunks(parquet.metadata, group):
            try:
                file.check_chunk(raw, chunk, group)
            except PageCorrupt as error:
                found.append(error)
        if found:
            return None, found
        try:
            return file.read_group(parquet, group, file.schema), []
        except PageCorrupt as error:
            return None, [error]


def _miscounted(file: DraftFile, summary: Summary, requests: int) -> Iterator[DraftFileError]:
    if requests != file.requests:
        yield RowsDisagree(f"{file.requests} requests", str(requests), file.path)
    for name, counted in summary.to_dict().items():
        if counted != file.summary[name]:
            yield RowsDisagree(f"{name} {file.summary[name]} in the summary", str(counted), file.path)


def _digests(file: DraftFile, digest: TableDigest) -> Iterator[DraftFileError]:
    found = digest.column_digests()
    for key in sorted({*found, *file.column_digests}):
        if (stored := file.column_digests.get(key)) != found.get(key):
            yield DigestMismatch(f"digest {stored} of column {key}", str(found.get(key)), file.path)
    if content_digest(found) != file.content_digest:
        yield DigestMismatch(f"content digest {file.content_digest}", content_digest(found), file.path)
