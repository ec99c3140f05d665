"""Where requests wait for their partner: compressed, in a file."""

from __future__ import annotations

from typing import IO, NamedTuple

import pyarrow as pa
import zstandard

from dflash.diff.keys import Key


class _Stay(NamedTuple):
    name: str
    offset: int
    size: int


class WaitingRoom:
    """Requests of one run that the other run has not shown yet.

    Args:
        file: empty, to read and write; kept by the caller.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stays: dict[Key, _Stay] = {}
        self._end = 0
        self._pack = zstandard.ZstdCompressor(level=1)
        self._unpack = zstandard.ZstdDecompressor()
        self._schema: pa.Schema | None = None

    def __contains__(self, key: Key) -> bool:
        return key in self._stays

    @property
    def names(self) -> list[str]:
        """The requests still waiting, in the order they came."""
        return [stay.name for stay in self._stays.values()]

    def put(self, key: Key, name: str, rows: pa.Table) -> None:
        """Take the rows of a request; all tables of a room have one schema."""
        self._schema = rows.schema
        packed = self._pack.compress(rows.combine_chunks().to_batches()[0].serialize())
        self._file.seek(self._end)
        self._file.write(packed)
        self._stays[key] = _Stay(name, self._end, len(packed))
        self._end += len(packed)

    def take(self, key: Key) -> tuple[str, pa.Table]:
        """Give back the name and the rows of a request, which then waits no longer."""
        stay = self._stays.pop(key)
        self._file.seek(stay.offset)
        data = pa.py_buffer(self._unpack.decompress(self._file.read(stay.size)))
        batch = pa.ipc.read_record_batch(data, self._schema)
        return stay.name, pa.Table.from_batches([batch])
