"""Calls that wait for the device reach a sink all, in order, once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dflash.engine.device.queued import QueuedSink


class Listing:
    """Notes its calls; one of them fails."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self._fails_at = fails_at

    def _note(self, *call: Any) -> None:
        if len(self.calls) == self._fails_at:
            self._fails_at = None
            raise RuntimeError("gone")
        self.calls.append(call)

    def opened(self, lane: Any) -> None:
        self._note("opened", lane)

    def row(self, lane: Any, row: Any) -> None:
        self._note("row", lane, row)

    def unmade(self, lanes: Any, rows: Any) -> None:
        self._note("unmade", lanes, rows)

    def closed(self, lane: Any) -> None:
        self._note("closed", lane)

    def ended(self, order: Any) -> None:
        self._note("ended", order)


def made(rng: random.Random, sink: Any, count: int) -> list[Any]:
    """Random calls, as a sink would note them."""
    found = []
    for number in range(count):
        name = rng.choice(["opened", "row", "unmade", "closed", "ended"])
        given = (number,) if name in ("opened", "closed", "ended") else (number, {"of": number})
        getattr(sink, name)(*given)
        found.append((name, *given))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_call_is_handed_on_once_and_in_order(seed: int) -> None:
    rng, sink = random.Random(seed), Listing()
    queued = QueuedSink(sink)
    expected: list[Any] = []
    for _ in range(rng.randrange(1, 6)):
        before = list(expected)
        expected += made(rng, queued, rng.randrange(8))
        assert sink.calls == before
        queued.flush()
        assert sink.calls == expected
    queued.flush()
    assert sink.calls == expected


def test_a_call_that_fails_is_not_made_again_and_those_after_it_are() -> None:
    sink = Listing(fails_at=2)
    queued = QueuedSink(sink)
    expected = made(random.Random(3), queued, 6)
    with pytest.raises(RuntimeError, match="gone"):
        queued.flush()
    queued.flush()
    assert sink.calls == expected[:2] + expected[3:]
