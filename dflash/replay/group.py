"""One row group of a draft file, made ready for each way of replaying at most once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from dflash.draftfile.reader import DraftFile
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

    @property
    def in_order(self) -> bool:
        """Whether a row group is counted in the light of those before it, or written down."""

    def columns(self, file: DraftFile) -> set[str]:
        """Return the columns to read, beside those of the identity and the tree."""

    def add(self, group: Group) -> None:
        """Count one row group."""

    def forget(self) -> None:
        """Let go of what belongs to one file, so that only counts are left."""


def columns_read(file: DraftFile, counters: Sequence[Counter]) -> list[str]:
    """Return the columns that some counter reads, and the identity, in file order."""
    return read_columns(file, {name for counter in counters for name in counter.columns(file)})
