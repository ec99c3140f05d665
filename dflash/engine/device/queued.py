"""A sink whose calls wait until rounds are queued on the device, so that these never wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dflash.engine.lane import Lane
from dflash.engine.loop import Sink
from dflash.engine.recorder.unmade import Unmade, hand_over


class QueuedSink:
    """Hands on every call at the next `flush`, in order.

    What rows are made of must stay as it is until then.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._calls: deque[Callable[[], None]] = deque()

    def opened(self, lane: Lane) -> None:
        """Hand on later."""
        self._calls.append(partial(self.sink.opened, lane))

    def row(self, lane: Lane, row: dict[str, Any]) -> None:
        """Hand on later."""
        self._calls.append(partial(self.sink.row, lane, row))

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """Hand on later."""
        self._calls.append(partial(hand_over, self.sink, lanes, rows))

    def closed(self, lane: Lane) -> None:
        """Hand on later."""
        self._calls.append(partial(self.sink.closed, lane))

    def ended(self, order: int) -> None:
        """Hand on later."""
        self._calls.append(partial(self.sink.ended, order))

    def flush(self) -> None:
        """Hand on what there is; a call that fails is not made again."""
        while self._calls:
            self._calls.popleft()()
