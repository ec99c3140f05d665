"""What can be wrong with the question that is put to `diff`: one class per situation."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from dflash.errors import UsageError


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."


class MetricUnknown(UsageError):
    """A threshold on something that is not measured."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"No metric is called {name!r}. {_nearest(name, known)}")


class AcceptPosition(UsageError):
    """A threshold on acceptance at no position of a draft."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Expected accept@N with a whole N >= 1 and < 10000, found {name!r}.")


class ThresholdSyntax(UsageError):
    """A threshold that is not METRIC:[+|-]X[%]."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Expected a threshold as METRIC:[+|-]X[%], such as tau:-1%, found {text!r}.")


class ThresholdRelative(UsageError):
    """A percentage of a metric that is 0 when nothing has changed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is 0 between equal files, so nothing can be a percentage of it; give a plain number."
        )


class ColumnNotCompared(UsageError):
    """A column that neither file has."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"Neither file has a column {name!r}. {_nearest(name, known)}")


class ColumnNotNumeric(UsageError):
    """A tolerance for a column that holds no floats."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"A tolerance needs a column of floats, found {name!r}. {_nearest(name, known)}")


class ToleranceSyntax(UsageError):
    """A tolerance that is not [COL=]X with a finite X of at least 0."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Expected a tolerance as [COL=]X with a finite X of at least 0, found {text!r}.")
