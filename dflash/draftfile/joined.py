"""Row groups that were encoded apart, joined to the Parquet file that one writer would have made of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from dflash.draftfile.aside import Aside
from dflash.draftfile.layout import parquet_writer
from dflash.draftfile.metadata import MAGIC
from dflash.draftfile.thrift import I16, I32, I64, LIST, STRUCT, Items, Struct, decode, encode, fields, items

# numbers of fields in Parquet's `parquet.thrift`: of the file's metadata,
VERSION, SCHEMA, ROWS, GROUPS, PAIRS = 1, 2, 3, 4, 5
# of a row group, of its column chunks, of what is said of a chunk, and of where its pages are
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7
CHUNK_OFFSET, CHUNK, OFFSET_INDEX, OFFSET_INDEX_SIZE, COLUMN_INDEX, COLUMN_INDEX_SIZE = 2, 3, 4, 5, 6, 7
CHUNK_OFFSETS = (9, 10, 11)
PAGES, PAGE_OFFSET = 1, 1
END = encode({})
TAIL = struct.Struct("<I4s")


class Layout(NamedTuple):
    """How columns are laid out: as `parquet_writer` takes it."""

    schema: pa.Schema
    level: int
    codes: bool


class Encoded(NamedTuple):
    """A row group.

    Attributes:
        pieces: Its pages and their headers, in order.
        group: What a footer says of it, alone in a file.
        column_indexes: Of each column, as they are; None where extremes are too long for one.
        offset_indexes: Of each column: where its pages are.
    """

    pieces: list[bytes]
    rows: int
    group: Struct
    column_indexes: list[bytes | None]
    offset_indexes: list[Struct]


class _Memory:
    """A file of pieces, as they were written."""

    closed: bool = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep some bytes; of what is not Python's own, the memory may be written over."""
        self.pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""


def encoded(table: pa.Table, layout: Layout) -> Encoded:
    """Encode a table as one row group; other threads go on meanwhile.

    Raises:
        ValueError: The Parquet writer has laid it out otherwise than expected.
    """
    file = _Memory()
    with parquet_writer(file, layout.schema, layout.level, layout.codes) as parquet:
        parquet.write_table(table, row_group_size=max(1, table.num_rows))
        count = len(file.pieces)
    pieces, tail = file.pieces[1:count], b"".join(file.pieces[count:])
    size = len(MAGIC) + sum(map(len, pieces))
    (group,) = _footer(tail)[GROUPS][1].values
    chunks = group[COLUMNS][1].values
    first = min(
        chunk[place][1] for chunk in chunks for place in (COLUMN_INDEX, OFFSET_INDEX) if place in chunk
    )
    if file.pieces[0] != MAGIC or first != size:
        raise ValueError(f"expected the page index after {size} bytes of pages, found it at {first}")
    columns = [
        _part(tail, size, chunk, COLUMN_INDEX, COLUMN_INDEX_SIZE) if COLUMN_INDEX in chunk else None
        for chunk in chunks
    ]
    offsets = [decode(_part(tail, size, chunk, OFFSET_INDEX, OFFSET_INDEX_SIZE))[0] for chunk in chunks]
    return Encoded(pieces, table.num_rows, group, columns, offsets)


class Joined:
    """A Parquet file that grows by row groups.

    Args:
        file: Nobody else writes it meanwhile.
    """

    def __init__(self, file: BinaryIO | Aside, layout: Layout) -> None:
        self._file, self._layout = file, layout
        self._groups: list[_Group] = []
        self._rows = 0
        self._size = self._put(MAGIC)

    def add(self, group: Encoded) -> None:
        """Append a row group.

        Raises:
            OSError: The system refused to write.
        """
        shift = self._size - len(MAGIC)
        for piece in group.pieces:
            self._size += self._put(piece)
        self._groups.append(_Group.moved(group, shift, len(self._groups)))
        self._rows += group.rows

    def close(self, pairs: Mapping[str, str]) -> None:
        """Write page index and footer, the latter with these pairs.

        Raises:
            OSError: The system refused to write.
        """
        columns = [[self._placed(each) for each in group.column_indexes] for group in self._groups]
        offsets = [[self._placed(each) for each in group.offset_indexes] for group in self._groups]
        groups = [group.told(*places) for group, *places in zip(self._groups, offsets, columns, strict=True)]
        said = _said(self._layout, pairs)
        before = {number: said.pop(number) for number in (VERSION, SCHEMA)} | {ROWS: (I64, self._rows)}
        del said[ROWS], said[GROUPS]
        footer = _head(before, GROUPS, len(groups)) + b"".join(groups) + fields(said, GROUPS) + END
        self._put(footer + TAIL.pack(len(footer), MAGIC))

    def _placed(self, text: bytes | None) -> _Place | None:
        """Append a part of the page index; where it is."""
        if text is None:
            return None
        start = self._size
        self._size += self._put(text)
        return _Place(start, len(text))

    def _put(self, data: bytes) -> int:
        self._file.write(data)
        return len(data)


class _Place(NamedTuple):
    """Where a part of the page index is."""

    start: int
    size: int

    def fields(self, offset: int, size: int) -> Struct:
        """As fields of these numbers."""
        return {offset: (I64, self.start), size: (I32, self.size)}


class _Group(NamedTuple):
    """A row group in its place in a file.

    Attributes:
        chunks: What is said of each column, without where its page index is.
        after: Fields behind the columns.
        column_indexes, offset_indexes: As in `Encoded`.
    """

    chunks: list[bytes]
    after: bytes
    column_indexes: list[bytes | None]
    offset_indexes: list[bytes]

    @classmethod
    def moved(cls, found: Encoded, shift: int, ordinal: int) -> _Group:
        """A group that begins so many bytes later than in a file of its own."""
        group = _moved(found.group, shift, GROUP_OFFSET)
        # writers may leave it out
        group |= {ORDINAL: (I16, ordinal)} if ORDINAL in group else {}
        _, chunks = group.pop(COLUMNS)
        told = [
            _moved(chunk, shift, CHUNK_OFFSET)
            | {CHUNK: (STRUCT, _moved(chunk[CHUNK][1], shift, *CHUNK_OFFSETS))}
            for chunk in chunks.values
        ]
        return cls(
            [fields({number: chunk[number] for number in (CHUNK_OFFSET, CHUNK)}) for chunk in told],
            fields(group, COLUMNS),
            found.column_indexes,
            [encode(_moved_pages(pages, shift)) for pages in found.offset_indexes],
        )

    def told(self, offsets: Sequence[_Place | None], columns: Sequence[_Place | None]) -> bytes:
        """What a footer says of it, its page indexes being there."""
        found = [_head({}, COLUMNS, len(self.chunks))]
        for text, pages, extremes in zip(self.chunks, offsets, columns, strict=True):
            index = pages.fields(OFFSET_INDEX, OFFSET_INDEX_SIZE) if pages else {}
            index |= extremes.fields(COLUMN_INDEX, COLUMN_INDEX_SIZE) if extremes else {}
            found += text, fields(index, CHUNK), END
        return b"".join((*found, self.after, END))


def _head(before: Struct, number: int, count: int) -> bytes:
    """Fields, and the begin of one more: a list of so many structs."""
    return fields({**before, number: (LIST, Items(STRUCT, []))})[:-1] + items(STRUCT, count)


def _moved(found: Struct, shift: int, *numbers: int) -> Struct:
    """The same with more added to offsets that are told; zero is none."""
    told = [(number, *found[number]) for number in numbers if number in found]
    return found | {number: (kind, offset + shift) for number, kind, offset in told if offset}


def _moved_pages(pages: Struct, shift: int) -> Struct:
    kind, (each, places) = pages[PAGES]
    return pages | {PAGES: (kind, Items(each, [_moved(place, shift, PAGE_OFFSET) for place in places]))}


def _part(tail: bytes, start: int, chunk: Struct, offset: int, size: int) -> bytes:
    """A part of a page index, which begins after `start` bytes of the file."""
    begin = chunk[offset][1] - start
    return tail[begin : begin + chunk[size][1]]


def _footer(tail: bytes) -> Struct:
    size, _ = TAIL.unpack(tail[-TAIL.size :])
    return decode(tail, len(tail) - TAIL.size - size)[0]


def _said(layout: Layout, pairs: Mapping[str, str]) -> Struct:
    """What the footer says of a file of this layout without rows."""
    file = _Memory()
    with parquet_writer(file, layout.schema, layout.level, layout.codes) as parquet:
        parquet.add_key_value_metadata(dict(pairs))
    return _footer(b"".join(file.pieces))
