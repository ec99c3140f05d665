"""Policies and numbers as cells of a table: a policy breaks between its parts, never within one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from dflash.replay.statistics import Interval

_WIDTH = 16


def policy_cell(policy: str) -> str:
    """Return a policy in lines that hold whole parts."""
    lines = [""]
    for part in policy.replace(",", ",\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def add_numbers(table: Table, columns: Mapping[str, Sequence[str]]) -> None:
    """Add columns of numbers, wide enough that none of them is cut.

    Args:
        columns: the cells of each, by its heading.
    """
    for name, cells in columns.items():
        widest = max((len(word) for cell in cells for word in cell.split()), default=0)
        table.add_column(name, justify="right", min_width=widest)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, which takes an s."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def without_intervals(columns: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the columns, called what they are where none of their cells has an interval."""
    if any(" to " in cell for cells in columns.values() for cell in cells):
        return dict(columns)
    return {name.removesuffix(" (95 %)"): cells for name, cells in columns.items()}


def estimate_cell(value: float | None, interval: Interval | None, form: str = ".3f") -> str:
    """Return a number with its interval below it, `-` for none."""
    shown = number_cell(value, form=form)
    return shown if interval is None else f"{shown}\n{interval_cell(interval)}"


def number_cell(value: float | None, interval: Interval | None = None, form: str = ".3f") -> str:
    """Return a number and its interval, `-` for none."""
    shown = "-" if value is None else format(value, form)
    return shown if interval is None else f"{shown} ({interval_cell(interval)})"


def interval_cell(interval: Interval | None) -> str:
    """Return an interval, `-` for none."""
    return "-" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"
