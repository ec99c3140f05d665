"""How long whole rounds on the device take, the host's part and all: step times for live control."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from dflash.bench.decode import PLAIN, SPECULATIVE, Decoder, DecodeSettings, NoSink, Side
from dflash.bench.decode_clock import Clock
from dflash.bench.decode_models import Subject
from dflash.bench.step import Setting
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.ladder import rung_lengths
from dflash.engine.lane import Lane
from dflash.engine.recorder.unmade import Unmade
from dflash.policy.step_time import Grid, StepTime

TOKENS, REPEATS = 128, 3
ASSUMPTIONS = (
    "a round takes as long for a lane without a request as for one with it",
    "a round takes as long at any context",
)


class RoundTime(NamedTuple):
    """Microseconds of a round of all lanes: drafting, and everything else until the next round begins."""

    draft_us: float
    rest_us: float


class _Timed(NoSink):
    """Keeps what rounds say of their times."""

    def __init__(self) -> None:
        self.draft_us: list[float] = []

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """Rounds are over."""
        counted = rows.maker.counted(rows.part)
        if "draft_us" in counted:
            self.draft_us += counted["draft_us"].tolist()


def lanes_of(most: int) -> list[int]:
    """Numbers of lanes to time: powers of 8, and the most."""
    powers = (8**power for power in range(most.bit_length()))
    return sorted({most, *(count for count in powers if count < most)})


def settings_of(length: int, branches: int, lanes: Sequence[int]) -> list[Setting]:
    """What is timed."""
    return [Setting(rung, branches if rung else 1, count) for count in lanes for rung in rung_lengths(length)]


def profile_rounds(
    subject: Subject,
    given: DecodeSettings,
    lanes: Sequence[int],
    say: Callable[[str], None] = lambda text: None,
) -> StepTime:
    """Decode a prompt a lane at every length that control runs in, and take the times of rounds.

    A length between two of them takes as long as the next one. Every lane of a round costs its time, whether
    it has a request or not: the batch of the profile is the number of lanes.

    Args:
        subject: what decodes.
        given: the longest draft, and its branches.
        lanes: engines' numbers of lanes, ascending.
    """
    given = replace(given, lists=(), policies=("match",), new_tokens=TOKENS, host=False)
    rungs, found = rung_lengths(given.length), {}
    for length, _, count in settings_of(given.length, given.branches, lanes):
        found[length, count] = _round_time(subject, given, length, count, say)
    lengths = range(given.length + 1)
    held = [min(rung for rung in rungs if rung >= length) for length in lengths]
    draft = [found[rung, count].draft_us for rung in held for count in lanes]
    rest = [found[rung, count].rest_us for rung in held for count in lanes]
    batches, context = tuple(map(float, lanes)), given.prompt_tokens + TOKENS / 2
    nodes = tuple(float(length * given.branches) for length in lengths)
    return StepTime(
        Grid((tuple(map(float, lengths)), (float(given.branches),), batches), tuple(draft)),
        Grid((nodes, batches, (context,)), tuple(rest)),
    )


def _round_time(
    subject: Subject, given: DecodeSettings, length: int, count: int, say: Callable[[str], None]
) -> RoundTime:
    say(f"{count} lanes: rounds of length {length}")
    given = replace(given, length=max(length, 1))
    decoder = Decoder(subject, Side(SPECULATIVE if length else PLAIN), count, given, Path())
    engine = decoder.session.engine
    if not isinstance(engine, DeviceEngine):
        raise RuntimeError("rounds that are profiled run on the device")
    whole = median([_seconds(decoder, NoSink()) for _ in range(1 + REPEATS)][1:])
    engine.quiet, timed = False, _Timed()
    _seconds(decoder, timed)
    draft = float(np.nanmedian([0.0, *timed.draft_us])) if length else 0.0
    return RoundTime(draft, max(0.0, 1e6 * whole - draft))


def _seconds(decoder: Decoder, sink: NoSink) -> float:
    """Seconds a round, those of lanes side by side counted once."""
    clock, most = Clock(decoder.session.target.device), 0
    with clock.watching(decoder.session.engine):
        for lane in decoder.session.engine.run(decoder.conversations(), sink):
            clock.end(lane)
            most = max(most, lane.rounds)
    return clock.run().decode / most
