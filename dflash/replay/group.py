"""One row group of a draft file, made ready for each way of replaying at most once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from dflash.draftfile.reader import DraftFile, ahead
from dflash.draftfile.summary import Kind
from dflash.replay.batch import Batch, decided_batch, read_columns
from dflash.replay.dense import DenseBatch, dense_batch


@dataclass(frozen=True)
class Group:
    """A row group as it was read."""

    file: DraftFile
    table: pa.Table

    @cached_property
    def live(self) -> Batch:
        """Its live rounds and prefills."""
        kind = self.table["kind"].to_numpy()
        return decided_batch(self.file, self.table, (kind == Kind.PREFILL) | (kind == Kind.LIVE))

    @cached_property
    def dense(self) -> DenseBatch:
        """Its dense rows and their trunk."""
        return dense_batch(self.file, self.table)


class Counter(Protocol):
    """Counts row groups for one way of replaying."""

    def columns(self, file: DraftFile) -> set[str]:
        """Return the columns to read, beside those of the identity and the tree."""

    def add(self, group: Group) -> None:
        """Count one row group."""

    def forget(self) -> None:
        """Let go of what belongs to one file, so that only counts are left."""


def groups(file: DraftFile, counters: Sequence[Counter]) -> Iterator[Group]:
    """Read the row groups of a file, once for all counters.

    Raises:
        RequestUnknown: a request does not say its key or its sampling.
    """
    columns = {name for counter in counters for name in counter.columns(file)}
    yield from ahead(_made(file, file.tables(read_columns(file, columns))))


def _made(file: DraftFile, tables: Iterator[pa.Table]) -> Iterator[Group]:
    for table in tables:
        group = Group(file, table)
        if not file.header.dense:
            # whoever reads ahead also parses the requests, which every counter of such a file needs
            _ = group.live
        yield group
