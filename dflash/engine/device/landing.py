"""What a chain of rounds came to, for all lanes at once: their tokens and their ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.engine.device.arrays import Arrays
from dflash.engine.device.rows import REASONS
from dflash.engine.lane import Lane, Truncation
from dflash.kernels.round_finish import EOS, GOES_ON, LENGTH

CODES = {Truncation(name): place for place, name in enumerate(REASONS)}
_TRUNCATIONS = [Truncation(name) for name in REASONS]
_OF_DEVICE = np.zeros(3, np.int64)
_OF_DEVICE[[GOES_ON, EOS, LENGTH]] = [CODES[Truncation(name)] for name in ("none", "eos", "length")]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Stopped(NamedTuple):
    """A lane that met its stop string in a round: its place in the landing, and the rounds that it ran on."""

    lane: int
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
        lanes: those that were open before it.
        where: `[L]` their indices.
        open: `[R, L]` rounds that belong to a request.
        count: `[R, L]` accepted nodes.
        emitted: `[R, L]` tokens that were kept; `reason` why no more, a place among `REASONS`.
        begun: `[L]` rounds of each request before.
    """

    def __init__(self, records: Arrays, lanes: Sequence[Lane], eos: Collection[int]) -> None:
        self.lanes = lanes
        self.where = np.array([lane.index for lane in lanes], np.int64)
        self.open = records["live"][:, self.where] > 0
        # lanes that rest leave what was there before
        self.count = np.where(self.open, records["count"][:, self.where], 0).astype(np.int64)
        self.emitted = records["emitted"][:, self.where].astype(np.int64)
        self.reason = _OF_DEVICE[records["reason"][:, self.where]]
        self.begun = np.array([lane.rounds for lane in lanes], np.int64)
        self._tokens = _tokens(records, self.where, self.count)
        self._listening = [place for place, lane in enumerate(lanes) if lane.listening]
        self._check(eos)

    def _check(self, eos: Collection[int]) -> None:
        """Hold the device's ends against what plain decoding would have kept.

        Raises:
            RuntimeError: they differ.
        """
        left = np.array([lane.left for lane in self.lanes], np.int64)
        spent = np.where(self.open, self.emitted, 0).cumsum(0)
        left = left - spent + np.where(self.open, self.emitted, 0)
        kept = np.minimum(self.count + 1, left)
        ends = (self._tokens[..., None] == np.array(sorted(eos), np.int64)).any(3)
        ends &= np.arange(self._tokens.shape[2]) < kept[..., None]
        ended = ends.any(2)
        emitted = np.where(ended, ends.argmax(2) + 1, kept)
        by_length = np.where(left <= self.count + 1, CODES[Truncation.LENGTH], CODES[Truncation.NONE])
        reason = np.where(ended, CODES[Truncation.EOS], by_length)
        wrong = self.open & ((emitted != self.emitted) | (reason != self.reason))
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            found, expected = (
                (int(kept[place]), REASONS[why[place]])
                for kept, why in ((self.emitted, self.reason), (emitted, reason))
            )
            raise RuntimeError(f"the device ended a round by {found}, the host by {expected}")

    def listen(self, place: int) -> list[Stopped]:
        """Give the tokens of a round to lanes whose text somebody follows; returns those that stop there."""
        stopped = []
        for lane in self._listening:
            if not self.open[place, lane]:
                continue
            found = self.lanes[lane].emit(self._tokens[place, lane, : self.count[place, lane] + 1].tolist())
            self.lanes[lane].rounds += 1
            if found.truncated_by is Truncation.STOP:
                after = self.open[place + 1 :, lane]
                goes_on = bool(after.all()) and self.reason[place, lane] == CODES[Truncation.NONE]
                stopped.append(Stopped(lane, int(after.sum()), goes_on))
                self.open[place + 1 :, lane] = False
                self.emitted[place, lane], self.reason[place, lane] = found.emitted, CODES[Truncation.STOP]
        return stopped

    def rows(self) -> LandedRows:
        """What rows know of the rounds that count, those of one round behind each other."""
        place, lane = self.open.nonzero()
        ends = self.emitted[place, lane], self.reason[place, lane]
        return LandedRows(place, self.where[lane], self.begun[lane] + place, *ends)

    def settle(self, rounds: int) -> None:
        """Commit the first rounds to all other lanes; the rest of them count for nothing."""
        self.open[rounds:] = False
        kept = self.open.T[..., None] & (np.arange(self._tokens.shape[2]) < self.emitted.T[..., None])
        tokens = self._tokens.swapaxes(0, 1)[kept].tolist()
        ran = self.open.sum(0)
        last = self.reason[np.maximum(ran - 1, 0), np.arange(len(ran))]
        given = zip(self.lanes, ran.tolist(), kept.sum((1, 2)).tolist(), last.tolist(), strict=True)
        start, listening = 0, set(self._listening)
        for place, (lane, times, size, reason) in enumerate(given):
            if times and place not in listening:
                lane.take(tokens[start : start + size], times, _TRUNCATIONS[reason])
            start += size


def _tokens(records: Arrays, where: Ints, count: Ints) -> Ints:
    """Tokens `[rounds, lanes, nodes + 1]`: accepted nodes, the target's own, then nothing that counts."""
    path, nodes = records["path"][:, where], records["node_token"][:, where]
    tokens = np.zeros((*count.shape, path.shape[2] + 1), np.int64)
    if path.shape[2]:
        tokens[..., :-1] = np.take_along_axis(nodes, np.maximum(path, 0), 2)
    np.put_along_axis(tokens, count[..., None], records["bonus"][:, where, None], 2)
    return tokens
