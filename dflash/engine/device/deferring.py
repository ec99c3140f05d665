"""A sink whose calls wait until rounds are queued on the device, so that these never wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from dflash.engine.lane import Lane
from dflash.engine.loop import Sink
from dflash.engine.recorder.unmade import Unmade, hand_over


class _Call(NamedTuple):
    """A call that waits, and the lane that it opens or closes."""

    make: Callable[[], None]
    opens: int | None = None
    closes: int | None = None


class DeferringSink:
    """Hands on every call at the next `flush`, in order.

    What rows are made of must stay as it is until then. Once a call has failed, nothing comes after it but
    the ends of requests that were opened before: the sink's calls are those of a run that broke off there.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._calls: deque[_Call] = deque()
        self._open: set[int] = set()
        self._broken = False

    def opened(self, lane: Lane) -> None:
        """Hand on later."""
        self._calls.append(_Call(partial(self.sink.opened, lane), opens=lane.index))

    def row(self, lane: Lane, row: dict[str, Any]) -> None:
        """Hand on later."""
        self._calls.append(_Call(partial(self.sink.row, lane, row)))

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """Hand on later."""
        self._calls.append(_Call(partial(hand_over, self.sink, lanes, rows)))

    def closed(self, lane: Lane) -> None:
        """Hand on later."""
        self._calls.append(_Call(partial(self.sink.closed, lane), closes=lane.index))

    def ended(self, order: int) -> None:
        """Hand on later."""
        self._calls.append(_Call(partial(self.sink.ended, order)))

    def flush(self) -> None:
        """Hand on what there is; a call that fails is not made again."""
        while self._calls:
            call = self._calls.popleft()
            if self._broken and call.closes not in self._open:
                continue
            try:
                call.make()
            except BaseException:
                self._broken = True
                raise
            if call.opens is not None:
                self._open.add(call.opens)
            if call.closes is not None:
                self._open.discard(call.closes)
