"""What a chain of rounds came to, for all lanes at once: their tokens and their ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.engine.device.rows import REASONS
from dflash.engine.lane import Lane, Truncation
from dflash.kernels.round_finish import EOS, GOES_ON, LENGTH

CODES = {Truncation(name): place for place, name in enumerate(REASONS)}
_TRUNCATIONS = [Truncation(name) for name in REASONS]
_NONE, _EOS, _LENGTH, _STOP = (CODES[Truncation(name)] for name in ("none", "eos", "length", "stop"))
_OF_DEVICE = np.zeros(3, np.int64)
_OF_DEVICE[[GOES_ON, EOS, LENGTH]] = _NONE, _EOS, _LENGTH

Ints = NDArray[np.int64]


class Stopped(NamedTuple):
    """A lane that met its stop string in a round, and the rounds that it ran on."""

    lane: Lane
    after: int
    goes_on: bool


class LandedRows(NamedTuple):
    """The first of `RoundNumbers`."""

    record: Ints
    lane: Ints
    round: Ints
    emitted: Ints
    reason: Ints


class Landing:
    """A chain of R rounds of L lanes that is read, with the tokens that each emits.

    Attributes:
        lanes: that were open before it.
        first: index of the first of the L.
        open: `[R, L]` rounds that belong to a request of theirs.
        count: `[R, L]` accepted nodes.
        emitted: `[R, L]` tokens that were kept; `reason` why no more, a place among `REASONS`.
    """

    def __init__(
        self,
        records: Mapping[str, NDArray[Any]],
        lanes: Sequence[Lane],
        left: Ints,
        eos: Collection[int],
        first: int = 0,
    ) -> None:
        """Read records.

        Args:
            records: of the chain.
            lanes: that were open before it.
            left: `[L]` tokens that each might still emit then.
            eos: tokens that end a request.
            first: index of the first of the L.

        Raises:
            RuntimeError: the device has ended a request where plain decoding would not have.
        """
        self.lanes, self.first = lanes, first
        held = np.zeros(records["live"].shape[1], bool)
        held[self._places_of(lanes)] = True
        self.open = (records["live"] > 0) & held
        # lanes that rest leave what was there before
        self.count, self.emitted = (
            np.where(self.open, records[name], 0).astype(np.int64) for name in ("count", "emitted")
        )
        self.reason = _OF_DEVICE[records["reason"]]
        self._tokens = _tokens(records, self.count)
        self._offsets = np.arange(self._tokens.shape[2])
        self._listening = [lane for lane in lanes if lane.listening]
        self._check(left, eos)

    def _places_of(self, lanes: Sequence[Lane]) -> list[int]:
        """Where lanes are among the L."""
        return [lane.index - self.first for lane in lanes]

    def _check(self, left: Ints, eos: Collection[int]) -> None:
        """Hold the device's ends against what plain decoding would have kept."""
        left = left - self.emitted.cumsum(0) + self.emitted
        kept = np.minimum(self.count + 1, left)
        ends = np.zeros(self._tokens.shape, bool)
        for token in eos:
            ends |= self._tokens == token
        ends &= self._offsets < kept[..., None]
        ended = ends.any(2)
        emitted = np.where(ended, ends.argmax(2) + 1, kept)
        reason = np.where(ended, _EOS, np.where(left <= self.count + 1, _LENGTH, _NONE))
        wrong = self.open & ((emitted != self.emitted) | (reason != self.reason))
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            found, expected = (
                f"{REASONS[why[place]]} after {size[place]} tokens"
                for size, why in ((self.emitted, self.reason), (emitted, reason))
            )
            raise RuntimeError(f"the device ended a round by {found}, the host by {expected}")

    def listen(self, place: int) -> list[Stopped]:
        """Give the tokens of a round to lanes whose text somebody follows; returns those that stop there."""
        stopped = []
        for lane, column in zip(self._listening, self._places_of(self._listening), strict=True):
            here = place, column
            if not self.open[here]:
                continue
            found = lane.emit(self._tokens[here][: self.count[here] + 1].tolist())
            lane.rounds += 1
            if found.truncated_by is Truncation.STOP:
                after = self.open[place + 1 :, column]
                goes_on = bool(after.all()) and self.reason[here] == _NONE
                stopped.append(Stopped(lane, int(after.sum()), goes_on))
                after[:] = False
                self.emitted[here], self.reason[here] = found.emitted, _STOP
        return stopped

    def settle(self, rounds: int) -> None:
        """Commit the first rounds to all other lanes; the rest of them count for nothing."""
        self.open[rounds:] = False
        self.emitted[~self.open] = 0
        tokens = self._tokens.swapaxes(0, 1)[self._offsets < self.emitted.T[..., None]].tolist()
        sizes, ran = self.emitted.sum(0), self.open.sum(0)
        ends, last = sizes.cumsum(), self.reason[np.maximum(ran - 1, 0), np.arange(len(ran))]
        by_lane = list(zip((ends - sizes).tolist(), ends.tolist(), ran.tolist(), last.tolist(), strict=True))
        listening = {lane.index for lane in self._listening}
        for lane, column in zip(self.lanes, self._places_of(self.lanes), strict=True):
            begin, end, times, reason = by_lane[column]
            if times and lane.index not in listening:
                lane.take(tokens[begin:end], times, _TRUNCATIONS[reason])

    def rows(self) -> LandedRows:
        """What rows know of the rounds that count and are settled, those of one round behind each other."""
        place, lane = self.open.nonzero()
        begun = np.zeros(self.open.shape[1], np.int64)
        begun[self._places_of(self.lanes)] = [one.rounds for one in self.lanes]
        number = (begun - self.open.sum(0))[lane] + place
        return LandedRows(place, lane, number, self.emitted[place, lane], self.reason[place, lane])


def _tokens(records: Mapping[str, NDArray[Any]], count: Ints) -> NDArray[np.int32]:
    """Tokens `[rounds, lanes, nodes + 1]`: accepted nodes, the target's own, then nothing that counts."""
    path, nodes, bonus = (records[name] for name in ("path", "node_token", "bonus"))
    tokens = np.empty((*count.shape, path.shape[2] + 1), np.int32)
    tokens[..., -1] = -1
    if path.shape[2]:
        tokens[..., :-1] = np.take_along_axis(nodes, np.maximum(path, 0), 2)
    np.copyto(tokens, bonus[..., None], where=np.arange(tokens.shape[2]) == count[..., None])
    return tokens
