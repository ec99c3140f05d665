"""The speculative loop: draft a tree, score it in one target forward, accept, commit, emit, record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from dflash.drafters.base import Anchor, Drafter, Proposal
from dflash.engine.control import LaneControl, Result, Turn, propose_each
from dflash.engine.dense.dense_pass import DenseRows, anchor_at, tree_rows
from dflash.engine.features import Features, PromptFeatures
from dflash.engine.heap import give_back
from dflash.engine.judge import Judge, Row
from dflash.engine.lane import Emission, Lane
from dflash.engine.request import Request
from dflash.policy.context import RuleContext
from dflash.policy.rounds import Rounds
from dflash.target.load import Target
from dflash.target.model import Rows, TrunkModel
from dflash.target.sampling import Sampling

PREFILL, LIVE = 2, 0
ROUNDS_BETWEEN_RETURNS = 64
WARM_TOKENS = 64


class Conversation(Protocol):
    """A source of requests, one after the other: each may depend on the answers before it.

    `order` is its place in the list of prompts.
    """

    order: int

    def next(self, answer: str | None) -> Request | None:
        """The next request, given the answer to the last one (None at the start), or None at the end."""


@runtime_checkable
class Arriving(Protocol):
    """Conversations that may be long in coming."""

    def arrived(self) -> bool:
        """Whether the next one is there, or the end."""


class Sink(Protocol):
    """Takes what the loop produces."""

    def opened(self, lane: Lane) -> None:
        """A request starts."""

    def row(self, lane: Lane, row: Row) -> None:
        """A round is over; `row` holds its columns."""

    def closed(self, lane: Lane) -> None:
        """A request has ended."""

    def ended(self, order: int) -> None:
        """The conversation at this place in the list has no more requests."""


class Engine:
    """Decodes requests in `lanes` lanes with one target, at most one drafter and one policy, whose
    control may change it from round to round.

    A lane that finishes takes the next request. The same code runs one lane on a laptop and many on a GPU.

    Attributes:
        wasted_rounds: Rounds that were begun after their request had ended, and discarded.
        before_rest: Called once before the dense rows of requests that were broken off are computed.
    """

    def __init__(
        self,
        target: Target,
        trunk: TrunkModel,
        drafter: Drafter,
        control: LaneControl,
        context: RuleContext,
        judge: Judge,
        features: Features | None,
        dense: DenseRows | None = None,
    ) -> None:
        self.target = target
        self.trunk = trunk
        self.drafter = drafter
        self.control = control
        self.context = context
        self.judge = judge
        self.features = features
        self.dense = dense
        self.wasted_rounds = 0
        self.before_rest: Callable[[], None] = lambda: None
        self._step = 0

    def run(
        self,
        conversations: Iterable[Conversation],
        sink: Sink,
        on_text: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Iterator[Lane]:
        """Decode every request of every conversation; yields each lane as its request ends.

        Between rounds `stopping` is asked whether to give up. Then, and when the generator is closed or an
        exception passes through it, the open requests are interrupted and handed to the sink with what they
        have. No lane waits for conversations that are `Arriving` while another one is busy.
        """
        source = iter(conversations)
        arrived = source.arrived if isinstance(source, Arriving) else lambda: True
        busy: dict[int, tuple[Lane, Conversation]] = {}
        free = list(range(self.trunk.cache.lanes))
        try:
            while not stopping():
                if not busy:
                    self._rest(sink)
                while free and (not busy or arrived()) and (found := next(source, None)) is not None:
                    self._begin(free, busy, found, None, sink, on_text)
                if not busy:
                    return
                done = [index for index, (lane, _) in busy.items() if lane.done]
                for index in done:
                    lane, conversation = busy.pop(index)
                    free.append(index)
                    self._close(lane, sink)
                    yield lane
                    self._begin(free, busy, conversation, lane.text, sink, on_text)
                # a lane that became free takes its next prompt before the others go on
                if not done:
                    self._join([lane for lane, _ in busy.values()], sink)
                    going = [lane for lane, _ in busy.values() if self._goes(lane)]
                    if going:
                        self.round(going, sink)
                    else:
                        self._rest(sink)
        finally:
            self._drop_prompts()
            # a prompt without a first token was not answered at all
            rest = [lane for lane, _ in busy.values() if begun(lane)]
            if rest and self.dense is not None:
                self.before_rest()
            for lane in rest:
                if not lane.done:
                    lane.interrupt()
                self._close(lane, sink)

    def warm_up(self, context: int) -> None:
        """Do once what the first prompt would wait for else; all lanes must be empty.

        Args:
            context: tokens that the longest trunk may come to.
        """
        prompt = [0] * min(WARM_TOKENS, context)
        rows = self.trunk.append(0, prompt)
        temperature = self.context.temperature
        anchor = Anchor(0, len(prompt) - 1, (0, 0), prompt, temperature)
        self.judge.row(anchor, Proposal(), rows.logits, Sampling(temperature))
        if rows.taps is not None:
            self.drafter.see(0, rows.taps)
        self.trunk.reset(0)
        self.drafter.open(0)

    def _close(self, lane: Lane, sink: Sink) -> None:
        """Draft from every committed position if asked, then end the request."""
        if self.dense is not None:
            self.dense.give(lane, sink)
        sink.closed(lane)

    def _begin(
        self,
        free: list[int],
        busy: dict[int, tuple[Lane, Conversation]],
        conversation: Conversation,
        answer: str | None,
        sink: Sink,
        on_text: Callable[[str], None] | None,
    ) -> None:
        """Give a free lane the conversation's next request, or tell the sink that there is none."""
        request = conversation.next(answer)
        if request is None:
            sink.ended(conversation.order)
            return
        index = free.pop(0)
        lane = Lane.start(index, request, self.target.eos, self.target.tokenizer, on_text)
        busy[index] = (lane, conversation)
        self._fill(lane, sink)

    def _fill(self, lane: Lane, sink: Sink) -> None:
        """Begin with a prompt. Rounds of the lane draft from its first token on."""
        self._prefill(lane, sink)

    def _join(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """Before a round of these lanes: let those take part whose prompts were only begun."""

    def _goes(self, lane: Lane) -> bool:
        """Whether a lane takes part in the next round."""
        return begun(lane) and not lane.done

    def _rest(self, sink: Sink) -> None:
        """Hold nothing back: no lane decodes, and the next conversation may be long in coming."""

    def _drop_prompts(self) -> None:
        """Forget prompts that were only begun, and rounds that were queued and will not be read."""

    def _prefill(self, lane: Lane, sink: Sink) -> None:
        """Compute a prompt's keys and values and emit the first token."""
        request, index = lane.request, lane.index
        self.trunk.reset(index)
        self.drafter.open(index)
        started = perf_counter()
        rows = self.trunk.append(index, request.prompt_tokens)
        anchor = anchor_at(lane, len(lane.trunk) - 1)
        row = self.judge.row(anchor, Proposal(), rows.logits, request.sampling)
        verify_us = (perf_counter() - started) * 1e6
        kept = None
        if rows.taps is not None:
            self.drafter.see(index, rows.taps)
            if self.features:
                kept = self.features.prompt(request.prompt_tokens, rows.taps)
        row |= {"verify_us": verify_us, "round_us": (perf_counter() - started) * 1e6}
        self._answer(lane, row, kept, sink)

    def _answer(self, lane: Lane, row: Row, kept: PromptFeatures | None, sink: Sink) -> None:
        """Begin a lane's answer with the choice behind its prompt.

        Args:
            lane: which.
            row: what the target says there.
            kept: of the prompt's hidden states.
            sink: for its rows.
        """
        sink.opened(lane)
        self.control.open(lane)
        emission = lane.emit([int(row["slot_choice"][0])])
        self._give_prompt(lane, row, kept, emission, sink)

    def _give_prompt(
        self, lane: Lane, row: Row, kept: PromptFeatures | None, emission: Emission, sink: Sink
    ) -> None:
        """Give the sink the rows of a request's prompt, whose first token was emitted."""
        request = lane.request
        row |= {
            "kind": PREFILL,
            "round": -1,
            "accepted_nodes": [],
            "bonus_token": int(row["slot_choice"][0]),
            "emitted": emission.emitted,
            "truncated_by": str(emission.truncated_by),
            "draft_length": 0,
            "branches": 0,
            "context_length": len(request.prompt_tokens),
            "batch_size": 1,
            "prompt_tokens": request.prompt_tokens,
            "prompt_text": request.prompt_text,
            "request_info": request.info_json(),
        }
        sink.row(lane, row if kept is None else row | kept.columns)
        for extra in () if kept is None else kept.rows:
            sink.row(lane, extra)

    def round(self, lanes: Sequence[Lane], sink: Sink) -> None:
        """One round of every open lane: their trees share one target forward."""
        started = perf_counter()
        anchors = [anchor_at(lane, len(lane.trunk) - 1) for lane in lanes]
        turns = self.control.turns(lanes)
        proposals = propose_each(self.drafter, anchors, [turn.shape for turn in turns])
        proposals = self.control.admit(anchors, proposals, turns)
        synchronise(self.target.device)
        drafted = perf_counter()
        scored = self.trunk.score(
            [tree_rows(anchor, proposal) for anchor, proposal in zip(anchors, proposals, strict=True)]
        )
        synchronise(self.target.device)
        verified = perf_counter()
        rows = [
            self.judge.row(anchor, proposal, seen.logits, lane.request.sampling)
            for lane, anchor, proposal, seen in zip(lanes, anchors, proposals, scored, strict=True)
        ]
        results = []
        for lane, row, seen, turn in zip(lanes, rows, scored, turns, strict=True):
            results.append(self._settle(lane, row, seen, turn))
            row |= {
                "draft_us": (drafted - started) * 1e6,
                "verify_us": (verified - drafted) * 1e6,
                "round_us": (perf_counter() - started) * 1e6,
                "step": self._step,
                "batch_size": len(lanes),
            }
            sink.row(lane, row)
        self.control.tell(lanes, turns, results)
        self._step += 1
        if self._step % ROUNDS_BETWEEN_RETURNS == 0:
            give_back()

    def _settle(self, lane: Lane, row: Row, seen: Rows, turn: Turn) -> Result:
        """Decide from the row as stored, commit the accepted path, emit."""
        rounds = Rounds.from_row(row, lane.request.key)
        decision = turn.rule.decide(rounds, self._context(lane.request))
        path, bonus = decision.path(0), int(decision.bonus[0])
        tokens = [int(row["node_token"][node]) for node in path]
        row |= {
            "kind": LIVE,
            "round": lane.rounds,
            "accepted_nodes": np.array(path, dtype=np.int16),
            "bonus_token": bonus,
            "draft_length": int(rounds.node_depth.max(initial=0)),
            "branches": _leaves(row["node_parent"]),
            "context_length": len(lane.trunk),
            "control_state": turn.text,
        }
        kept = [0, *(node + 1 for node in path)]
        self.trunk.commit(lane.index, kept)
        emission = lane.emit([*tokens, bonus])
        row |= {"emitted": emission.emitted, "truncated_by": str(emission.truncated_by)}
        if seen.taps is not None:
            self.drafter.see(lane.index, seen.taps[kept])
            if self.features:
                row |= self.features.of(seen.taps[kept])
        lane.rounds += 1
        return Result(len(path), row["draft_length"])

    def _context(self, request: Request) -> RuleContext:
        """What the rule must know in this request, whose temperature may differ from the run's."""
        temperature = request.sampling.temperature
        if temperature == self.context.temperature:
            return self.context
        return replace(self.context, temperature=temperature, draft=self.drafter.sampling_at(temperature))


def begun(lane: Lane) -> bool:
    """Whether the host has a lane's first token, behind which drafting begins."""
    return len(lane.trunk) > len(lane.request.prompt_tokens)


def _leaves(parents: Any) -> int:
    """Root-to-leaf paths of a tree."""
    return len(parents) - len(set(np.asarray(parents).tolist()) - {-1})


def synchronise(device: torch.device) -> None:
    """Wait for a CUDA device, so that a clock read after it means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
