"""Calls that wait for the device reach a sink all, in order, once."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from dflash.engine.device.deferring import DeferringSink


class Lane(NamedTuple):
    """What a sink looks at of one."""

    index: int


class Listing:
    """Notes its calls; the one of a place fails."""

    def __init__(self, fails_at: int | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.calls: list[Any] = []
        self._fails_at, self._error, self._count = fails_at, error, 0

    def _note(self, *call: Any) -> None:
        self._count += 1
        if self._count - 1 == self._fails_at:
            raise self._error
        self.calls.append(call)

    def opened(self, lane: Any) -> None:
        self._note("opened", lane.index)

    def row(self, lane: Any, row: Any) -> None:
        self._note("row", lane.index, row)

    def unmade(self, lanes: Any, rows: Any) -> None:
        self._note("unmade", lanes, rows)

    def closed(self, lane: Any) -> None:
        self._note("closed", lane.index)

    def ended(self, order: Any) -> None:
        self._note("ended", order)


def made(rng: random.Random, sinks: list[Any], count: int, busy: set[int]) -> None:
    """Random calls as an engine makes them, to several sinks alike."""
    for number in range(count):
        index = rng.randrange(3)
        name = rng.choice(["row", "unmade", "closed"]) if index in busy else "opened"
        busy ^= {index} if name in ("opened", "closed") else set()
        for sink in sinks:
            if name == "unmade":
                sink.unmade({index: Lane(index)}, number)
            else:
                getattr(sink, name)(Lane(index), *([{"of": number}] if name == "row" else []))
            if name == "closed":
                sink.ended(number)


@pytest.mark.parametrize("seed", range(20))
def test_every_call_is_handed_on_once_and_in_order(seed: int) -> None:
    rng, direct, late = random.Random(seed), Listing(), Listing()
    deferring, busy = DeferringSink(late), set[int]()
    for _ in range(rng.randrange(1, 6)):
        before = list(direct.calls)
        made(rng, [direct, deferring], rng.randrange(8), busy)
        assert late.calls == before
        deferring.flush()
        assert late.calls == direct.calls
    deferring.flush()
    assert late.calls == direct.calls


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError])
@pytest.mark.parametrize("fails_at", range(25))
def test_after_a_call_that_fails_come_only_ends_of_what_was_opened(
    fails_at: int, error: type[BaseException]
) -> None:
    rng, direct, late = random.Random(fails_at), Listing(), Listing(fails_at, error)
    deferring, busy = DeferringSink(late), set[int]()

    def until_it_fails() -> None:
        while True:
            made(rng, [direct, deferring], 6, busy)
            deferring.flush()

    with pytest.raises(error):
        until_it_fails()
    handed_on = list(late.calls)
    assert handed_on == direct.calls[:fails_at]
    opened = [call[1] for call in handed_on if call[0] == "opened"]
    for call in handed_on:
        if call[0] == "closed":
            opened.remove(call[1])
    # an engine closes what is busy, and is asked for more rows before
    for index in sorted(busy):
        deferring.row(Lane(index), {})
        deferring.closed(Lane(index))
    deferring.flush()
    after = late.calls[fails_at:]
    assert {name for name, *_ in after} <= {"closed"}
    closed, failed = [call[1] for call in after], direct.calls[fails_at]
    assert len(set(closed)) == len(closed)
    assert set(opened) - set(closed) <= ({failed[1]} if failed[0] == "closed" else set())
    assert set(closed) <= set(opened)
