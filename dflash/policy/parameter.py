"""The kinds of value that a policy's parameters may have: a range, and how it is read from text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash.policy.errors import BadParameter


@dataclass(frozen=True, slots=True)
class Number:
    """A finite float within a range."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    @property
    def expected(self) -> str:
        """Describe the range in words."""
        low = "" if self.low == -math.inf else f" {'above' if self.open_low else 'of at least'} {self.low:g}"
        high = "" if self.high == math.inf else f" and at most {self.high:g}"
        return f"a finite number{low}{high}"

    def read(self, name: str, value: object) -> float:
        """Return the value as a float.

        Raises:
            BadParameter: it is not a number, not finite, or out of range.
        """
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise BadParameter(name, value, self.expected) from None
        outside = number < self.low or number > self.high or (self.open_low and number == self.low)
        if isinstance(value, bool) or not math.isfinite(number) or outside:
            raise BadParameter(name, value, self.expected)
        return number


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer of at least `low`."""

    low: int = 0
    high: int = 2**31 - 1

    @property
    def expected(self) -> str:
        """Describe the range in words."""
        return f"a whole number of at least {self.low}"

    def read(self, name: str, value: object) -> int:
        """Return the value as an int.

        Raises:
            BadParameter: it is not a whole number, or out of range.
        """
        text = str(value)
        digits = text.removeprefix("-").isdecimal() and text.isascii()
        if not digits or not self.low <= int(text) <= self.high:
            raise BadParameter(name, value, self.expected)
        return int(text)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        """List the words."""
        return f"one of {', '.join(self.words)}"

    def read(self, name: str, value: object) -> str:
        """Return the word.

        Raises:
            BadParameter: it is none of them.
        """
        if str(value) not in self.words:
            raise BadParameter(name, value, self.expected)
        return str(value)
