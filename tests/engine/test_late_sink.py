"""Requests are closed in the order that a recorder needs, however late their last rows come."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from dflash.engine.dense.late import LateSink


class Heard:
    """A sink that notes what it is told, and holds it to a recorder's rules."""

    def __init__(self) -> None:
        self.open: dict[int, Any] = {}
        self.closed_orders: list[int] = []
        self.rows: dict[int, int] = {}

    def opened(self, lane: Any) -> None:
        assert lane.index not in self.open
        self.open[lane.index] = lane

    def row(self, lane: Any, row: Any) -> None:
        assert self.open[lane.index] is lane
        self.rows[lane.order] = self.rows.get(lane.order, 0) + row

    def closed(self, lane: Any) -> None:
        assert self.open.pop(lane.index) is lane
        assert self.rows[lane.order] == lane.expected
        self.closed_orders.append(lane.order)

    def ended(self, order: int) -> None:
        assert order in self.closed_orders


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_before_the_request_is_closed_and_its_conversation_ends(seed: int) -> None:
    rng, heard = random.Random(seed), Heard()
    late, busy, order = LateSink(heard), {}, 0
    for _ in range(200):
        index = rng.randrange(4)
        late.tend()
        if index not in busy:
            busy[index] = lane = SimpleNamespace(index=index, order=order, expected=0)
            order += 1
            late.opened(lane)
        lane = busy[index]
        late.row(lane, 1)
        lane.expected += 1
        if rng.random() < 0.4:
            if rng.random() < 0.7:
                lane.expected += 5
                late.later(lane, lambda lane=lane: heard.row(lane, 5))
            late.closed(lane)
            late.ended(lane.order)
            del busy[index]
    for lane in busy.values():
        late.closed(lane)
        late.ended(lane.order)
    late.flush()
    assert sorted(heard.closed_orders) == list(range(order))
    assert not heard.open
