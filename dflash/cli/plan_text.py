"""The text form of a plan: every number with its formula, the grid of shapes, the assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render(document: Mapping[str, Any], console: Console) -> None:
    """Print the quantities, the grid, what was measured, and what must hold."""
    given = document["inputs"]
    console.print(
        f"alpha {given['alpha']:.4g}, length {given['length']}, branches {given['branches']}", soft_wrap=True
    )
    console.print(_quantities(document))
    for key, name in (("tau", "tau"), ("speed_up", "speed-up")):
        if document["grid"][0][key] is not None:
            console.print(_grid(document["grid"], key, name))
    if document["measured"] is not None:
        _measured(document["measured"], console)
    console.print()
    assumptions = dict.fromkeys(text for item in document["quantities"] for text in item["assumptions"])
    for text in assumptions:
        console.print(f"assumes: {text}", soft_wrap=True, style="dim")
    for name, text in document["definitions"].items():
        console.print(f"{name}: {text}", soft_wrap=True, style="dim")


def size(count: float) -> str:
    """Return bytes in words, by powers of 1024."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.4g} {_UNITS[unit]}"


def _quantities(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify="right" if justify == "right" else "left")
    for item in document["quantities"]:
        text = size(item["value"]) if item["unit"] == "bytes" else f"{item['value']:.4g} {item['unit']}"
        table.add_row(item["name"], text, f"= {item['formula']}")
    return table


def _grid(cells: list[Mapping[str, Any]], key: str, name: str) -> Table:
    lengths = sorted({cell["length"] for cell in cells})
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{name} by branches, length")
    for length in lengths:
        table.add_column(str(length), justify="right")
    for branches in sorted({cell["branches"] for cell in cells}):
        values = {cell["length"]: cell[key] for cell in cells if cell["branches"] == branches}
        table.add_row(str(branches), *(f"{values[length]:.2f}" for length in lengths))
    return table


def _measured(measured: Mapping[str, Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"recorded under {measured['policy']}", overflow="fold")
    for name in ("measured tau", "95 %", "by formula"):
        table.add_column(name, justify="right")
    for item in measured["tau"]:
        interval = "-" if item["interval"] is None else "{:.3f} to {:.3f}".format(*item["interval"])
        tau = "-" if item["measured"] is None else f"{item['measured']:.3f}"
        table.add_row(item["name"], tau, interval, f"{item['formula']:.3f}")
    console.print(table)
    shown = [
        f"{item['position']}: {'-' if item['conditional'] is None else format(item['conditional'], '.3f')}"
        f" of {item['tried']}"
        for item in measured["positions"]
    ]
    console.print(f"accepted by position, of those tried: {', '.join(shown)}", soft_wrap=True)
