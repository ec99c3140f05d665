"""Thrift's compact protocol, as far as Parquet's footers and page indexes take it: bytes to fields and back.

What was read is written as the same bytes (https://github.com/apache/thrift, `thrift-compact-protocol.md`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

STOP, TRUE, FALSE, BYTE, I16, I32, I64, BINARY, LIST, STRUCT = 0, 1, 2, 3, 4, 5, 6, 8, 9, 12
INTEGERS = (I16, I32, I64)
# a list of fifteen or more says its size apart, a field fifteen or more behind the last one its number
SHORT = 15


class Items(NamedTuple):
    """A list; all of it is of one kind."""

    kind: int
    values: list[Any]


# kind and value by field number: bool, int, bytes, `Items`, or another `Struct`
Struct = dict[int, tuple[int, Any]]


def decode(data: bytes, start: int = 0) -> tuple[Struct, int]:
    """The struct that begins there, and where it ends.

    Raises:
        ValueError: A kind that Parquet does not use.
        IndexError: The bytes end before the struct does.
    """
    found: Struct = {}
    number = 0
    while head := data[start]:
        kind = head & 0xF
        start += 1
        if head >> 4:
            number += head >> 4
        else:
            number, start = _integer(data, start)
        value, start = (kind == TRUE, start) if kind in (TRUE, FALSE) else _value(data, start, kind)
        found[number] = kind, value
    return found, start + 1


def encode(struct: Struct) -> bytes:
    """The bytes of a struct."""
    return fields(struct) + b"\0"


def fields(struct: Struct, last: int = 0) -> bytes:
    """The bytes of fields that follow the one of number `last`, without the end of their struct."""
    found = bytearray()
    for number, (kind, value) in struct.items():
        step = number - last
        found += bytes([step << 4 | kind]) if 0 < step <= SHORT else bytes([kind]) + _zigzag(number)
        if kind not in (TRUE, FALSE):
            found += _bytes(kind, value)
        last = number
    return bytes(found)


def items(kind: int, count: int) -> bytes:
    """What comes before the elements of a list."""
    if count < SHORT:
        return bytes([count << 4 | kind])
    return bytes([SHORT << 4 | kind]) + varint(count)


def varint(value: int) -> bytes:
    """A number from 0, seven bits a byte, the low ones first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _value(data: bytes, start: int, kind: int) -> tuple[Any, int]:
    if kind in INTEGERS:
        return _integer(data, start)
    if kind == BINARY:
        size, start = _varint(data, start)
        if start + size > len(data):
            raise IndexError(f"{size} bytes at {start} of {len(data)}")
        return data[start : start + size], start + size
    if kind == STRUCT:
        return decode(data, start)
    if kind == LIST:
        return _items(data, start)
    # of booleans in lists, each is a byte
    if kind in (TRUE, FALSE, BYTE):
        return data[start], start + 1
    raise ValueError(f"expected a kind that Parquet uses, found {kind}")


def _items(data: bytes, start: int) -> tuple[Items, int]:
    kind, count = data[start] & 0xF, data[start] >> 4
    start += 1
    if count == SHORT:
        count, start = _varint(data, start)
    values = []
    for _ in range(count):
        value, start = _value(data, start, kind)
        values.append(value)
    return Items(kind, values), start


def _bytes(kind: int, value: Any) -> bytes:
    if kind in INTEGERS:
        return _zigzag(value)
    if kind == BINARY:
        return varint(len(value)) + bytes(value)
    if kind == STRUCT:
        return encode(value)
    if kind == LIST:
        return items(value.kind, len(value.values)) + b"".join(
            _bytes(value.kind, each) for each in value.values
        )
    return bytes([value])


def _integer(data: bytes, start: int) -> tuple[int, int]:
    value, start = _varint(data, start)
    return value >> 1 ^ -(value & 1), start


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value, shift = data[start] & 0x7F, 7
    while data[start] >= 0x80:
        start += 1
        value |= (data[start] & 0x7F) << shift
        shift += 7
    return value, start + 1


def _zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)
