"""Requests whose dense rows are still on the device: they are closed once these have come off it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dflash.engine.lane import Lane
from dflash.engine.loop import Sink
from dflash.engine.recorder.unmade import Unmade, hand_over

# calls of `tend` after which what was queued before the first of them has run
SOON = 2


class _Late(NamedTuple):
    """A request that has ended, how to hand over its rows, and the call of `tend` that is to do it."""

    lane: Lane
    give: Callable[[], None]
    due: int


class LateSink:
    """A sink between an engine and its own sink, which closes a request when its last rows are there.

    Until then the lane may take the next prompt, but no request is opened in it.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._late: dict[int, _Late] = {}
        self._ended: list[int] = []
        self._tended = 0

    def later(self, lane: Lane, give: Callable[[], None]) -> None:
        """Take how the last rows of a request are handed over, which may have to wait for the device."""
        self._late[lane.index] = _Late(lane, give, self._tended + SOON)

    def opened(self, lane: Lane) -> None:
        """Close the request before it in this lane, then hand on."""
        self._close(lane.index)
        self.sink.opened(lane)

    def row(self, lane: Lane, row: dict[str, Any]) -> None:
        """Hand on."""
        self.sink.row(lane, row)

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """Hand on."""
        hand_over(self.sink, lanes, rows)

    def closed(self, lane: Lane) -> None:
        """Hand on, unless rows are to come."""
        if lane.index not in self._late:
            self.sink.closed(lane)

    def ended(self, order: int) -> None:
        """Hand on, after all requests that have ended before."""
        self._ended.append(order)
        self._tell_ended()

    def tend(self) -> None:
        """Close requests whose rows are there by now."""
        self._tended += 1
        for index in [index for index, late in self._late.items() if late.due <= self._tended]:
            self._close(index)

    def flush(self) -> None:
        """Close all that have ended."""
        for index in list(self._late):
            self._close(index)

    def _close(self, index: int) -> None:
        late = self._late.pop(index, None)
        if late is not None:
            late.give()
            self.sink.closed(late.lane)
            self._tell_ended()

    def _tell_ended(self) -> None:
        if not self._late:
            for order in self._ended:
                self.sink.ended(order)
            self._ended.clear()
