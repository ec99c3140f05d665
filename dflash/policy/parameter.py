"""The kinds of value that a policy's parameters may have: a range, and how it is read and written as text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Protocol

from dflash.policy.errors import BadParameter


class Kind(Protocol):
    """What a parameter may be: it says so in words, and reads it from text, from JSON or from TOML."""

    @property
    def expected(self) -> str: ...
    def read(self, name: str, value: object) -> Any: ...


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


@dataclass(frozen=True, slots=True)
class Falling:
    """Several numbers from 0 to 1, none above the one before it; written with slashes in the short form."""

    @property
    def expected(self) -> str:
        """Describe the list in words."""
        return "numbers from 0 to 1 that do not rise, as 0.8/0.6/0.5"

    def read(self, name: str, value: object) -> tuple[float, ...]:
        """Return the numbers.

        Raises:
            BadParameter: there is none, one is out of range, or they rise.
        """
        items = value.split("/") if isinstance(value, str) else value
        if not isinstance(items, Iterable):
            raise BadParameter(name, value, self.expected)
        one = Number(0.0, 1.0)
        try:
            numbers = tuple(one.read(name, item) for item in items)
        except BadParameter:
            raise BadParameter(name, value, self.expected) from None
        if not numbers or any(later > earlier for earlier, later in zip(numbers, numbers[1:], strict=False)):
            raise BadParameter(name, value, self.expected)
        return numbers


def parameter(kind: Kind, default: Any = MISSING, *, shown: Any = None) -> Any:
    """Declare a parameter as a dataclass field.

    Args:
        kind: what it may be.
        default: left out where there is none, so that every policy must give it.
        shown: what None stands for.
    """
    metadata = {"type": kind, "shown": shown}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def parameters(part: object) -> tuple[Field[Any], ...]:
    """Return the parameters of a rule, a shape or a control: dataclass fields with their `type`."""
    return fields(part)  # type: ignore[arg-type]


def text_of(value: object) -> str:
    """Write a value as the short form has it."""
    if isinstance(value, tuple):
        return "/".join(text_of(item) for item in value)
    return value if isinstance(value, str) else repr(value)
