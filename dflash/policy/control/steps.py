"""Parameters that hold several numbers: draft lengths to choose from, and lengths by batch size."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from dflash.policy.errors import BadParameter


@dataclass(frozen=True, slots=True)
class Steps:
    """Ascending lengths, written `1/3/5/7`."""

    expected = "ascending lengths of at least 0, such as 1/3/5/7"

    def read(self, name: str, value: object) -> tuple[int, ...]:
        """Return the lengths.

        Raises:
            BadParameter: there is none, one is no length, or they do not ascend.
        """
        items = value if isinstance(value, list | tuple) else str(value).split("/")
        lengths = _whole(name, value, self.expected, [str(item) for item in items])
        if not lengths or any(one >= other for one, other in pairwise(lengths)):
            raise BadParameter(name, value, self.expected)
        return tuple(lengths)


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Lengths from a batch size on, written `1:5/9:3/33:0`."""

    expected = "lengths by smallest batch size, the first of them 1, such as 1:5/9:3/33:0"

    def read(self, name: str, value: object) -> str:
        """Return the text if it can be read.

        Raises:
            BadParameter: it cannot.
        """
        pairs = [piece.split(":") for piece in str(value).split("/")]
        if any(len(pair) != 2 for pair in pairs):
            raise BadParameter(name, value, self.expected)
        _whole(name, value, self.expected, [length for _, length in pairs])
        sizes = _whole(name, value, self.expected, [size for size, _ in pairs])
        if sizes[0] != 1 or any(one >= other for one, other in pairwise(sizes)):
            raise BadParameter(name, value, self.expected)
        return str(value)


def table_of(text: str) -> list[tuple[int, int]]:
    """Return `(smallest batch size, length)` of a text that `BatchTable` has read."""
    pairs = (piece.split(":") for piece in text.split("/"))
    return [(int(size), int(length)) for size, length in pairs]


def _whole(name: str, value: object, expected: str, pieces: list[str]) -> list[int]:
    if not all(piece.isascii() and piece.isdecimal() for piece in pieces):
        raise BadParameter(name, value, expected)
    return [int(piece) for piece in pieces]
