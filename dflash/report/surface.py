"""The speed-up surface over (branches, length) as a PNG; drawn by matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dflash.errors import DflashError
from dflash.replay.tuned import Cell


class PlotsMissing(DflashError):
    """A figure is asked for without the library that draws it."""

    def __init__(self) -> None:
        super().__init__(
            "A PNG needs matplotlib, which is not installed. Install `dflash-toolkit[plot]`, or leave the "
            "figure out: the terminal shows the same surface."
        )


class NotPng(DflashError):
    """A figure is to go to a file that is called otherwise than what it holds."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"Expected a figure's file to end in .png, found {path.name!r}.")


def require_plots(path: Path) -> None:
    """Find out whether a figure can be drawn to this file, before anything long begins.

    Raises:
        NotPng: its name says that it holds something else.
        PlotsMissing: nothing can be drawn.
    """
    if path.suffix.lower() != ".png":
        raise NotPng(path)
    if find_spec("matplotlib") is None:
        raise PlotsMissing


def draw_surface(cells: Sequence[Cell], title: str, file: BinaryIO) -> None:
    """Draw one square a shape: its speed-up in colour and figures, its interval below; the best is framed.

    Args:
        file: for the figure, as PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    lengths = sorted({cell.length for cell in cells})
    branches = sorted({cell.branches for cell in cells})
    values = np.full((len(branches), len(lengths)), np.nan)
    figure = Figure(figsize=(1.8 + 0.95 * len(lengths), 1.9 + 0.7 * len(branches)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = {cell: (branches.index(cell.branches), lengths.index(cell.length)) for cell in cells}
    for cell, place in places.items():
        values[place] = cell.speed_up
    spread = max(0.05, float(np.nanmax(np.abs(values - 1.0))))
    # white is one-token decoding: red shapes lose time, blue ones gain it
    image = axes.imshow(
        values, cmap="RdBu", norm=TwoSlopeNorm(1.0, 1.0 - spread, 1.0 + spread), origin="lower"
    )
    best = max(cells, key=lambda cell: cell.speed_up)
    for cell, (row, column) in places.items():
        dark = abs(cell.speed_up - 1.0) > 0.6 * spread
        text = f"{cell.speed_up:.2f}"
        if cell.interval is not None:
            text += f"\n{cell.interval.low:.2f}–{cell.interval.high:.2f}"
        weight = "bold" if cell is best else "normal"
        colour = "white" if dark else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour, fontweight=weight)
    row, column = places[best]
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, linewidth=2))
    axes.set(xlabel="length", ylabel="branches", title=title)
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(range(len(branches)), [str(count) for count in branches])
    figure.colorbar(image, ax=axes, label="speed-up, 95 % interval over requests", shrink=0.9)
    figure.savefig(file, format="png", dpi=150, metadata={"Software": "dflash-toolkit"})
