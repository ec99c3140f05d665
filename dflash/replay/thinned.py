"""A draft file of which only every n-th request is read on: the early rungs of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.requests import request_starts
from dflash.draftfile.threads import Threads


@dataclass(frozen=True, slots=True)
class Thinned(DraftFile):
    """A draft file that yields the requests 0, stride, 2 x stride, ... of all that it holds."""

    stride: int

    @classmethod
    def of(cls, file: DraftFile, stride: int) -> Thinned:
        """Thin a file."""
        known = {item.name: getattr(file, item.name) for item in fields(DraftFile)}
        return cls(**known, stride=stride)

    def tables(
        self, columns: Sequence[str] | None = None, threads: Threads | None = None
    ) -> Iterator[pa.Table]:
        """One table per row group, the requests left out removed; see `DraftFile.tables`."""
        before = 0
        # a slotted dataclass has another class than the one that super() would look up
        for table in DraftFile.tables(self, columns, threads):
            starts = request_starts(table)
            number = before + np.searchsorted(starts, np.arange(table.num_rows), side="right") - 1
            before += len(starts)
            yield table.filter(pa.array(number % self.stride == 0))
