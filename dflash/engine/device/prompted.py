"""An engine whose prompts are read while rounds of other lanes run; each lane joins them at a set time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.prompt_records import PromptRecord
from dflash.engine.device.refill import PromptRound, Refill
from dflash.engine.device.round import DeviceRound
from dflash.engine.features import PromptFeatures
from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.loop import Engine, Sink, begun
from dflash.engine.recorder.unmade import hand_over
from dflash.target.native import NativeTrunk
from dflash.target.scratch import Scratch

# rows of prompts for which there is time under the rounds that are queued at once
ROWS_A_ROUND = 1024


class _Waiting(NamedTuple):
    """A prompt, and before which round it joins at the soonest."""

    refill: Refill
    round: int


class _Answered(NamedTuple):
    """Prompts whose first tokens were emitted, and that have no rows yet."""

    refill: Refill
    emissions: list[Emission]


class Refills:
    """Prompts that were queued, in order.

    Which of them are waited for before a round depends on their lengths and their places in the queue,
    never on how long they take: so a run repeats, whatever the device does meanwhile. Those that run behind
    queued rounds are not waited for before others are queued, or the device would run out of work.
    """

    def __init__(self, rows: int = ROWS_A_ROUND) -> None:
        self.rows = rows
        self._waiting: deque[_Waiting] = deque()
        self._credit = self._round = 0

    def add(self, refill: Refill) -> None:
        """Queue one more."""
        self._waiting.append(_Waiting(refill, self._round + 1 + refill.behind))

    def due(self, *, idle: bool) -> Iterator[Refill]:
        """Those that join before the next round.

        Args:
            idle: whether nothing else decodes, so that there is nothing to do but wait for the first.
        """
        self._credit += self.rows
        self._round += 1
        while self._waiting and (idle or self._is_due(self._waiting[0])):
            refill = self._waiting.popleft().refill
            self._credit, idle = max(0, self._credit - refill.rows), False
            yield refill
        if not self._waiting:
            self._credit = 0

    def _is_due(self, waiting: _Waiting) -> bool:
        return waiting.round <= self._round and waiting.refill.rows <= self._credit

    def drop(self) -> list[Refill]:
        """Forget all of them."""
        found = [waiting.refill for waiting in self._waiting]
        self._waiting.clear()
        self._credit = 0
        return found


class PromptedEngine(Engine):
    """Reads prompts on the device.

    Attributes:
        trunk: whose rows prompts fill.
        rounds: of the lanes that have begun.
        overlaps: whether prompts are read while other lanes' rounds run.
        refills: prompts that are being read.
        joins_unread: whether lanes may join the rounds of others before the host has their first tokens.
    """

    trunk: NativeTrunk
    rounds: DeviceRound
    quiet: bool

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.overlaps, self.joins_unread = True, False
        self.refills = Refills()
        self._written: set[int] = set()
        self._asked: list[int] = []
        self._answered: deque[_Answered] = deque()
        self._joining: deque[Refill] = deque()
        self._unsent: deque[Refill] = deque()

    @cached_property
    def prompts(self) -> PromptRound:
        """What reads them."""
        return PromptRound(self.trunk, self.drafter, self.rounds.plan, self.target.eos)

    def warm_up(self, context: int) -> None:
        """Make the buffers and graphs that the first prompt would wait for else."""
        self.prompts.warm_up(context)

    def _fill(self, lane: Lane, sink: Sink) -> None:
        if not self.overlaps:
            self._prefill(lane, sink)
            return
        self._ask(lane)
        if self.prompts.full:
            self._launch_prompts(rest=False)

    def _prefill(self, lane: Lane, sink: Sink) -> None:
        self._ask(lane)
        self._clear_asked()
        for refill in self.prompts.launch(rest=True):
            self._unsent.append(refill)
            self._answer_prompts(refill, sink)
        self._asked = []
        self._hold([lane])

    def _ask(self, lane: Lane) -> None:
        """Let a lane's prompt be read, together with those of other lanes."""
        # what is queued may still write where a request was cut short, or read what dense rows need
        in_turn = lane.index in self._written or self.dense is not None
        self._written.discard(lane.index)
        self._asked.append(lane.index)
        self.prompts.add(lane, in_turn=in_turn)

    def _clear_asked(self) -> None:
        if self._asked and self.rounds.shared.ring is not None:
            # taps that are kept of the requests before belong to nobody now
            self.rounds.shared.clear(self._asked)

    def _launch_prompts(self, *, rest: bool) -> None:
        self._clear_asked()
        for refill in self.prompts.launch(rest=rest):
            self._unsent.append(refill)
            self.refills.add(refill)
        if rest:
            self._asked = []

    def _join(self, lanes: Sequence[Lane], sink: Sink) -> None:
        if self._asked:
            self._launch_prompts(rest=True)
        held: list[Lane] = []
        idle = not any(begun(lane) for lane in lanes)
        for refill in self.refills.due(idle=idle):
            if self.joins_unread and not idle and all(lane.left > 1 for lane in refill.lanes):
                self._join_unread(refill)
                continue
            self._answer_prompts(refill, sink)
            held += refill.lanes
        if held:
            self._hold(held)

    def _answer_prompts(self, refill: Refill, sink: Sink) -> None:
        """Wait for prompts, and emit their first tokens; their rows can wait until rounds are queued."""
        for lane in refill.lanes:
            self.control.open(lane)
        self._emit_first(refill)
        for lane in refill.lanes:
            self._take_part(lane)
        if self.quiet:
            self._give_prompts(sink)

    def _join_unread(self, refill: Refill) -> None:
        """Let lanes take part in the rounds that are queued next; their first tokens are read after that."""
        for lane in refill.lanes:
            self.control.open(lane)
            self._take_part(lane)
        self._joining.append(refill)
        self._hold(refill.lanes, refill.record)

    def _answer_joined(self) -> None:
        """Wait for prompts whose lanes take part in rounds by now, and emit their first tokens."""
        while self._joining:
            refill = self._joining[0]
            self._emit_first(refill)
            self._joining.popleft()
            for lane in filter(_stopped, refill.lanes):
                self.wasted_rounds += min(self._still_queued(lane), lane.left)

    def _emit_first(self, refill: Refill) -> None:
        """Wait for first tokens, and emit them."""
        # first, so that lanes are opened even if whoever follows a text breaks this off
        self._answered.append(_Answered(refill, emissions := []))
        tokens = self.prompts.first_tokens(refill)
        for lane, token in zip(refill.lanes, tokens, strict=True):
            emissions.append(lane.emit([token]))

    def _goes(self, lane: Lane) -> bool:
        joins = any(lane is other for refill in self._joining for other in refill.lanes)
        return joins or super()._goes(lane)

    def _give_prompts(self, sink: Sink) -> None:
        """Give the sink the rows of prompts whose first tokens were emitted."""
        self._send_kept()
        while self._answered:
            refill, emissions = self._answered.popleft()
            for lane in filter(begun, refill.lanes):
                sink.opened(lane)
            if not self.quiet:
                self._give_rows(refill, emissions, sink)
            self.prompts.forget(refill)

    def _give_rows(self, refill: Refill, emissions: Sequence[Emission], sink: Sink) -> None:
        """Give the sink rows of prompts; of one whose first token was broken off there are none."""
        if refill.kept:
            columns = self.prompts.rows(refill), self._kept(refill)
            for lane, row, kept, emission in zip(refill.lanes, *columns, emissions, strict=False):
                self._give_prompt(lane, row, kept, emission, sink)
        elif emissions:
            rows = self.prompts.unmade(refill, emissions)
            hand_over(sink, {lane.index: lane for lane in refill.lanes}, rows)

    def _send_kept(self) -> None:
        """Send what is kept of prompts' hidden states to the host, behind all that was queued of prompts."""
        features = self.features
        while self._unsent:
            refill = self._unsent.popleft()
            taps = [each for each in refill.taps if each is not None]
            if features and not self.quiet and taps:
                with self.prompts.aside():
                    refill.kept.append(
                        features.sent(taps if features.whole else [each[-1:] for each in taps])
                    )

    def _kept(self, refill: Refill) -> Sequence[PromptFeatures | None]:
        """What is kept of the hidden states of each prompt, once it has arrived."""
        if not self.features:
            return [None] * len(refill.lanes)
        lines = refill.kept[0].lines()
        prompts = [lane.request.prompt_tokens for lane in refill.lanes]
        return list(map(self.features.prompt_of, prompts, lines))

    def _take_part(self, lane: Lane) -> None:
        """Let the host know where a lane's trunk ends on the device, that has its first token."""
        read = len(lane.request.prompt_tokens)
        self.trunk.scratch[lane.index] = Scratch(read)
        if isinstance(self.drafter, BlockFamily):
            self.drafter.moved(lane.index, read)
        self._joined(lane)

    def _joined(self, lane: Lane) -> None:
        """A lane takes part in rounds from now on, behind a first token that the host may not have."""
        raise NotImplementedError

    def _hold(self, lanes: Sequence[Lane], unread: PromptRecord | None = None) -> None:
        """Tell the device of lanes whose prompts are read, or will be: see `RoundShared.hold`."""
        raise NotImplementedError

    def _rest_lane(self, lane: Lane) -> None:
        """Let a lane rest on the device."""
        raise NotImplementedError

    def _still_queued(self, lane: Lane) -> int:
        """Rounds of a lane that are queued and that nobody has begun to read."""
        raise NotImplementedError

    def _close(self, lane: Lane, sink: Sink) -> None:
        self._give_prompts(sink)
        if lane.finish in (Truncation.STOP, Truncation.INTERRUPTED):
            self._written.add(lane.index)
        super()._close(lane, sink)

    def _drop_prompts(self) -> None:
        answered = [one.refill for one in self._answered]
        self._unsent = deque(one for one in self._unsent if any(one is other for other in answered))
        for refill in self._joining:
            # those that have no first token may not go on
            for lane in refill.lanes:
                self._rest_lane(lane)
            if not any(refill is other for other in answered):
                self.prompts.forget(refill)
        self._joining.clear()
        for refill in self.refills.drop():
            self.prompts.forget(refill)
        if self._asked:
            self.prompts.drop()
            self._asked = []


def _stopped(lane: Lane) -> bool:
    return lane.finish is Truncation.STOP
