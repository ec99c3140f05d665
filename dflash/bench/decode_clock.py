"""Where the time of a decoding run goes: until the first token, prompts, decoding, until all is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import torch

from dflash.engine.device.engine import DeviceEngine
from dflash.engine.lane import Lane
from dflash.engine.loop import Engine, synchronise

_Wrap = Callable[[Callable[..., None]], Callable[..., None]]


class Part(NamedTuple):
    """The requests of one list of prompts.

    Attributes:
        decode: seconds from the end of the part before, or the first token, to its last token.
        tokens: first ones left out; `rounds` likewise of all its requests.
    """

    decode: float
    tokens: int
    rounds: int


class Run(NamedTuple):
    """One run of a side.

    Attributes:
        start: seconds until the first token, among them a recorder's start, and the prompt's where prompts
            are read while others decode.
        prefill: seconds that prompts took, up to their first tokens, where each is read by itself.
        decode: all other seconds until the last token.
        finish: likewise until everything was written.
        tokens: of all lanes, first ones left out.
        rounds: of all lanes.
        parts: of the lists of prompts.
    """

    start: float
    prefill: float
    decode: float
    finish: float
    tokens: int
    rounds: int
    parts: tuple[Part, ...]


class _Ended(NamedTuple):
    """A request that has ended, and the clock's seconds then."""

    lane: Lane
    at: float


class Clock:
    """Knows how long prompts took, and when each request ended; it stands still while a prompt is read alone.

    It begins when it is made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.prefill = 0.0
        self._stopped: float | None = None
        self._begun = perf_counter()
        self._first: tuple[float, float] | None = None
        self._ended: list[_Ended] = []

    def _now(self) -> float:
        now = perf_counter() if self._stopped is None else self._stopped
        return now - self._begun - self.prefill

    @contextmanager
    def watching(self, engine: Engine) -> Iterator[None]:
        """Time the prompts of an engine."""
        watched: Any = engine
        wraps: dict[str, _Wrap] = {"_prefill": self._alone}
        if isinstance(engine, DeviceEngine):
            wraps["_joined"] = self._noted
        for name, wrap in wraps.items():
            setattr(watched, name, wrap(getattr(watched, name)))
        try:
            yield
        finally:
            for name in wraps:
                delattr(watched, name)

    def _alone(self, prefill: Callable[..., None]) -> Callable[..., None]:
        """A prompt that is read by itself."""

        def call(*given: Any) -> None:
            synchronise(self.device)
            self._stopped = begun = perf_counter()
            prefill(*given)
            synchronise(self.device)
            self._note()
            self.prefill += perf_counter() - begun
            self._stopped = None

        return call

    def _noted(self, joined: Callable[..., None]) -> Callable[..., None]:
        """A lane that has its first token."""

        def call(*given: Any) -> None:
            self._note()
            joined(*given)

        return call

    def _note(self) -> None:
        if self._first is None:
            self._first = self._now(), perf_counter() - self._begun

    def end(self, lane: Lane) -> None:
        """A request has ended."""
        self._ended.append(_Ended(lane, self._now()))

    @property
    def first(self) -> float:
        """Seconds until the first token, its prompt and all.

        Raises:
            RuntimeError: nothing was decoded.
        """
        if self._first is None:
            raise RuntimeError("nothing was decoded")
        return self._first[1]

    def run(self, sizes: Sequence[int] = ()) -> Run:
        """What came of it, now that everything is written.

        Args:
            sizes: prompts of each list.
        """
        over = self._now()
        start = self._first[0] if self._first else over
        last = max((one.at for one in self._ended), default=start)
        parts, begun, low = [], start, 0
        for size in sizes:
            inside = [one for one in self._ended if low <= one.lane.request.order < low + size]
            end = max((one.at for one in inside), default=begun)
            parts.append(Part(end - begun, *_sums(inside)))
            begun, low = end, low + size
        tokens, rounds = _sums(self._ended)
        return Run(start, self.prefill, last - start, over - start, tokens, rounds, tuple(parts))


def _sums(ended: Sequence[_Ended]) -> tuple[int, int]:
    """Tokens, first ones left out, and rounds."""
    lanes = [one.lane for one in ended]
    return sum(len(lane.output) - 1 for lane in lanes), sum(lane.rounds for lane in lanes)
