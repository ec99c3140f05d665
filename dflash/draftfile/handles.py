"""Open ends of one Parquet file for several threads, each used by one of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.footer import open_parquet


class Handle(NamedTuple):
    """The file as Parquet and as bytes."""

    parquet: pq.ParquetFile
    raw: BinaryIO


class Handles:
    """Handles of one file, opened as they are needed and closed together.

    Whoever reads checks the checksums of column chunks, which cover pages and their headers.

    Args:
        pool: Where row groups are decoded to.
        coded: Columns to read as dictionaries.

    Raises:
        OpenError: No Parquet file, or a damaged or oversized footer.
    """

    def __init__(self, path: Path, pool: pa.MemoryPool, coded: Sequence[str] = ()) -> None:
        self._path = path
        self._pool = pool
        self._coded = coded
        self._stack = ExitStack()
        self._free: list[Handle] = []
        first = self._open()
        self.metadata: pq.FileMetaData = first.parquet.metadata
        self._free.append(first)

    def __enter__(self) -> Handles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def one(self) -> Iterator[Handle]:
        """A handle that no other thread uses meanwhile."""
        try:
            handle = self._free.pop()
        except IndexError:
            handle = self._open(self.metadata)
        try:
            yield handle
        finally:
            self._free.append(handle)

    def _open(self, metadata: pq.FileMetaData | None = None) -> Handle:
        usual = pa.default_memory_pool()
        # a reader takes the pool that is the default one when it is made
        pa.set_memory_pool(self._pool)
        try:
            parquet = self._stack.enter_context(
                open_parquet(self._path, metadata, pages=False, coded=self._coded)
            )
        finally:
            pa.set_memory_pool(usual)
        return Handle(parquet, self._stack.enter_context(self._path.open("rb")))
