"""Re-judging under a control: from the recorded states where it is the recorded one, else round by round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.policy.control.base import Asked, Frame
from dflash.policy.control.controller import Controller, frame_of
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.shape import Shape
from dflash.policy.step_time import StepTime
from dflash.replay.batch import Batch, Part
from dflash.replay.errors import StateMissing
from dflash.replay.lockstep import Places, Ran, follow, run_part
from dflash.replay.tally import Counts

STATE_COLUMNS = ("control_state",)


@dataclass(slots=True)
class Steered(Counts):
    """One policy of adaptive control on the live rounds of a run, each at its own recorded anchor.

    Attributes:
        policy: with the control.
        recorded: that decided the rounds.
        file: the first of the run.
        clipped: rounds for which the control wanted a larger shape than was drafted.
    """

    policy: Policy
    recorded: Policy
    file: DraftFile
    clipped: int = 0
    _engine: tuple[Path, Controller] | None = None

    def __post_init__(self) -> None:
        # refuses a control that lacks what it needs, before anything is read
        self.policy.control.scheduler(self.frame, 1)

    @property
    def known(self) -> bool:
        """Whether the recorded states are those of this policy."""
        same = self.policy.shape.filled(self.recorded.shape) == self.recorded.shape
        return self.policy.control == self.recorded.control and same

    @property
    def frame(self) -> Frame:
        """What the control may ask for."""
        largest = largest_shape(self.file) if self.recorded.control.adaptive else self.recorded.shape
        return frame_of(self.policy.rule, self.policy.shape, largest, step_time_of(self.file))

    @property
    def remark(self) -> str:
        """Say where the states came from."""
        if self.known:
            return "shapes are those of the recorded control states"
        clipped = f", {self.clipped} rounds clipped to what was drafted" if self.clipped else ""
        return f"the control sees the rounds of the recorded anchors, one after the other{clipped}"

    def forget(self) -> None:
        """Let go of the engine of one file."""
        self._engine = None

    def judge(self, batch: Batch, parts: Sequence[Part]) -> list[Ran]:
        """Decide the live rounds of one row group, part by part.

        Raises:
            StateMissing: a round does not say what its control asked for.
        """
        if not parts:
            return []
        asked = recorded_asked(batch) if self.known else self._asked(batch, parts)
        self.clipped += int(asked.clipped[batch.live].sum())
        return [
            run_part(self.policy, part, np.arange(len(part.rows)), asked.take(part.rows)) for part in parts
        ]

    def _asked(self, batch: Batch, parts: Sequence[Part]) -> Asked:
        """Ask round after round; rows without a round are asked for nothing."""
        owner, count = batch.owner, len(batch.requests)
        places = Places.of(len(owner), parts)
        live = np.bincount(owner[batch.live], minlength=count)
        first = np.searchsorted(owner, np.arange(count), side="right") - live
        anchors = batch.table["anchor_position"].combine_chunks().to_numpy(zero_copy_only=False)

        def step(rows: I64, ran: Ran) -> I64:
            return np.ones(len(rows), dtype=np.int64)

        couples = self.policy.control.couples
        visits = follow(
            self._controller(batch.file, count),
            self.file.header.lanes if couples else count,
            first,
            live,
            anchors + 1.0,
            places.runner(self.policy, parts, step),
        )
        return _spread(visits.rows, visits.asked, len(owner))

    def _controller(self, file: DraftFile, requests: int) -> Controller:
        """One for these requests alone, or that of the file: every part of a run has an engine of its own."""
        if not self.policy.control.couples:
            return Controller(self.policy.control, self.frame, requests)
        if self._engine is None or self._engine[0] != file.path:
            self._engine = file.path, Controller(self.policy.control, self.frame, self.file.header.lanes)
        return self._engine[1]


def largest_shape(file: DraftFile) -> Shape:
    """Return the shape that dense rows were drafted in, and that bounds every live round.

    Live rounds have it too unless their policy cuts it.
    """
    return Shape(int(file.header.shape["length"]), int(file.header.shape["branches"]))


def step_time_of(file: DraftFile) -> StepTime | None:
    """Return the profile that the recording was given, as its control read it.

    A round on the device takes as long however many lanes have requests.

    Raises:
        BadStepTime: it cannot be read.
    """
    profile = file.header.engine.get("step_time_profile")
    if profile is None:
        return None
    found = StepTime.from_dict(profile)
    return found.for_batch(file.header.lanes) if file.header.engine.get("rounds") == "device" else found


def recorded_asked(batch: Batch) -> Asked:
    """Return what the recorded control asked for in every live row, from `control_state`; nothing elsewhere.

    Raises:
        StateMissing: a live row has no state.
    """
    texts = batch.table["control_state"].combine_chunks().dictionary_encode()
    place = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    if (missing := np.flatnonzero(batch.live & (place < 0))).size:
        row = int(missing[0])
        raise StateMissing(
            batch.requests[int(batch.owner[row])].request_id, batch.table["round"][row].as_py()
        )
    return asked_of(texts.dictionary, np.flatnonzero(batch.live), place, len(place))


def asked_of(states: pa.Array, rows: I64, place: I64, count: int) -> Asked:
    """Read states.

    Args:
        states: their JSON.
        rows: `[k]` rows of a batch of `count` that have one, `place` which of them each row has.
    """
    read = [json.loads(text) for text in states.to_pylist()]
    length, branches = (
        np.array([state[name] for state in read], dtype=np.int64) for name in ("length", "branches")
    )
    survival = np.array([state.get("survival", 0.0) for state in read], dtype=np.float64)
    t = np.array([state.get("t", np.nan) for state in read], dtype=np.float64)
    clipped = np.array([state["clipped"] for state in read], dtype=bool)
    return _spread(rows, Asked(length, branches, survival, t, clipped).take(place[rows]), count)


def _spread(rows: I64, asked: Asked, count: int) -> Asked:
    """Return what was asked for by row of the batch, nothing where no round ran."""
    one = np.zeros(1, dtype=np.int64)
    nothing = Asked(one, one, np.zeros(1), np.full(1, np.nan), np.zeros(1, dtype=bool))
    place = np.full(count, len(rows), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return Asked.joined([asked, nothing]).take(place)
