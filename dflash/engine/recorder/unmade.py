"""Rows that are handed over unmade: a maker makes columns of them where they are recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.rows import Column, columns_table

if TYPE_CHECKING:
    from dflash.engine.lane import Lane

Row = dict[str, Any]
Ints = NDArray[np.int64]


def now() -> int:
    """The time as rows are stamped with it, in microseconds since 1970."""
    # a `datetime` takes twenty times as long to pickle
    return time.time_ns() // 1000


class Maker(Protocol):
    """Makes columns of what was handed over; it must pickle."""

    def columns(self, parts: Sequence[Any], order: Ints | None = None) -> dict[str, Column]:
        """Columns of rows: `order` of those of all parts, one behind the other."""

    def counted(self, part: Any) -> dict[str, NDArray[Any]]:
        """What is counted of a part's rows, each `[rows]`.

        Returns:
            `kind`, which all are of; of live rows, also `emitted`, `nodes`, `accepted`, `draft_length`,
            `branches`, `step`, `draft_us` and `verify_us`; of prompts `emitted`, and tokens, `prompt_tokens`.
        """


@runtime_checkable
class Lent(Protocol):
    """A part that may hold what is written over later."""

    def owned(self) -> tuple[Any, ...]:
        """The same, to be kept."""


class Unmade(NamedTuple):
    """Rows of several lanes.

    Attributes:
        lanes: `[rows]` index of the lane of each.
        maker: Of one engine's rows.
        part: What the maker makes them of: arrays, and few other things that pickle.
        size: Bytes of it.
        started_at: When they were handed over, in microseconds since 1970.
    """

    lanes: Ints
    maker: Maker
    part: tuple[Any, ...]
    size: int
    started_at: int

    @classmethod
    def now(cls, lanes: Ints, maker: Maker, part: tuple[Any, ...], size: int) -> Unmade:
        """Rows as of now."""
        return cls(lanes, maker, part, size, now())

    def owned(self) -> Unmade:
        """The same, to be kept."""
        return self._replace(part=self.part.owned()) if isinstance(self.part, Lent) else self

    def rows(self) -> list[Row]:
        """The rows, made one by one."""
        columns = self.maker.columns([self.part])
        made: list[Row] = columns_table(columns, len(self.lanes), features=True).to_pylist()
        return made


class TakesUnmade(Protocol):
    """A sink that need not be given rows that are made already."""

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """Rounds of these lanes, by index, are over."""


class TakesRows(Protocol):
    """A sink as the engine knows it."""

    def row(self, lane: Lane, row: Row) -> None:
        """A round is over."""


def hand_over(sink: TakesRows | TakesUnmade, lanes: Mapping[int, Lane], rows: Unmade) -> None:
    """Give rows to a sink, made or as they are."""
    # what a protocol has to say takes longer
    if hasattr(sink, "unmade"):
        sink.unmade(lanes, rows)
        return
    for index, row in zip(rows.lanes.tolist(), rows.rows(), strict=True):
        sink.row(lanes[index], row)
