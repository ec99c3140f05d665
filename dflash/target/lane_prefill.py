"""Prompts on the native step: tokens of one lane or several in pieces of 64 rows, several pieces a forward.

A piece is a lane of the step whose trunk ends where the piece begins. Several may be of one lane of the
cache: a layer's keys and values are written before anything attends to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES
from dflash.target.llama_step import LlamaStep, StepOutput
from dflash.target.model_step import ModelStep
from dflash.target.native_layers import KeyValue, StepSpace
from dflash.target.prompt_inputs import HostInputs, Piece, PromptInputs, pieces_of
from dflash.target.staging import Staging
from dflash.target.step_graphs import capture

# pieces of the forwards that there are
PIECES = (1, 2, 4, 8)
CHUNK = PIECES[-1] * MAX_NODES


class Chunk(NamedTuple):
    """Tokens of a prompt that one forward takes: so many from `start` on, in so many pieces."""

    start: int
    tokens: int
    pieces: int


class Around(NamedTuple):
    """What else is computed in every forward; nothing in it may wait for the device.

    Attributes:
        memory: addresses that it reads or writes; other ones need other graphs.
        before: given the words that it was told, int32 on the device.
        after: given the buffers, what the forward leaves, and the same words.
    """

    memory: tuple[int, ...]
    before: Callable[[Tensor], None]
    after: Callable[[StepSpace, StepOutput, Tensor], None]


class Prompt(NamedTuple):
    """What a prompt leaves: logits `[1, vocabulary]` of its last token until the next prompt, taps of all."""

    logits: Tensor
    taps: Tensor | None


@dataclass(frozen=True, slots=True)
class _Held:
    """Buffers of forwards of one size, and their graph."""

    inputs: PromptInputs
    space: StepSpace
    staging: Staging[HostInputs]
    graph: torch.cuda.CUDAGraph | None
    output: StepOutput | None


class LanePrefill:
    """Computes lanes' prompts behind what their trunks have, without waiting for the device.

    A lane's part of the cache is one page, whose number is read on the device: so capacities must be powers
    of two from 16.
    """

    def __init__(self, step: LlamaStep | ModelStep, ends: int = 1, words: int = 0) -> None:
        """Have nothing yet.

        Args:
            step: of the target.
            ends: prompts that may end in one forward, whose last logits it leaves.
            words: that are told to what is computed around it.
        """
        self.step, self.ends, self.words = step, ends, words
        self._memory: tuple[int, ...] = ()
        self._held: dict[int, _Held] = {}

    @staticmethod
    def takes(capacity: int) -> bool:
        """Whether caches of this capacity can be pages."""
        return capacity >= 16 and capacity & (capacity - 1) == 0

    def run(self, cache: Sequence[KeyValue], lane: int, length: int, tokens: Sequence[int]) -> Prompt:
        """Compute tokens that follow `length` rows of a lane's trunk, and store their keys and values.

        Args:
            cache: one a layer, for all lanes, with room for whole pieces.
            lane: whose.
            length: rows of its trunk.
            tokens: of the prompt.
        """
        taps, output = [], None
        for chunk in chunks(len(tokens)):
            part = tokens[chunk.start : chunk.start + chunk.tokens]
            output = self.forward(cache, pieces_of(lane, length + chunk.start, part))
            if output.taps is not None:
                taps.append(output.taps[: chunk.tokens].clone())
        if output is None or output.logits is None:
            raise RuntimeError("a prompt needs a token and a step that leaves logits")
        return Prompt(output.logits, torch.cat(taps) if taps else None)

    @torch.inference_mode()
    def forward(
        self, cache: Sequence[KeyValue], pieces: Sequence[Piece], around: Around | None = None,
        told: NDArray[np.int32] | None = None,
    ) -> StepOutput:  # fmt: skip
        """Compute pieces, the first of which are computed before or together with those that follow them.

        Args:
            cache: one a layer, for all lanes, with room for whole pieces.
            pieces: at most 8; of all the prompts that end here, the logits of the last rows are left.
            around: what else is computed.
            told: words to it.
        """
        held = self._ready(cache, size_of(len(pieces)), around)
        block = held.staging.take()
        block.form.fill(pieces, told)
        held.staging.send(block, held.inputs.flat)
        if held.graph is None or held.output is None:
            return self._compute(held.inputs, held.space, cache, around)
        held.graph.replay()
        return held.output

    def _compute(
        self, inputs: PromptInputs, space: StepSpace, cache: Sequence[KeyValue], around: Around | None
    ) -> StepOutput:
        if around is None:
            return self.step.run(space, cache)
        around.before(inputs.told)
        output = self.step.run(space, cache)
        around.after(space, output, inputs.told)
        return output

    @torch.inference_mode()
    def ready(self, cache: Sequence[KeyValue], pieces: int, around: Around | None = None) -> None:
        """Have buffers, and a graph, of forwards of so many pieces over these caches."""
        self._ready(cache, pieces, around)

    def _ready(self, cache: Sequence[KeyValue], pieces: int, around: Around | None) -> _Held:
        first = cache[0].keys
        memory = (first.data_ptr(), *first.shape, *(() if around is None else around.memory))
        if memory != self._memory:
            # graphs of before may still run on what they hold
            if first.is_cuda:
                torch.cuda.synchronize(first.device)
            self._held.clear()
            self._memory = memory
            self.step.reserve(first.shape[2])
        if pieces not in self._held:
            self._held[pieces] = self._make(cache, pieces, around)
        return self._held[pieces]

    def _make(self, cache: Sequence[KeyValue], pieces: int, around: Around | None) -> _Held:
        first = cache[0].keys
        sizes = pieces, self.ends, self.words
        words = PromptInputs.size(*sizes)
        inputs = PromptInputs.of(torch.zeros(words, dtype=torch.int32, device=first.device), *sizes)
        inputs.step.clear()
        space = self.step.space(pieces, MAX_NODES, MAX_NODES, cache, inputs.pages, inputs.wanted)
        # all that a forward reads comes in one copy
        space = replace(space, inputs=inputs.step)
        staging = Staging(words, lambda flat: HostInputs.of(PromptInputs.of(flat, *sizes)), first.device)
        if not first.is_cuda or self.step.way.impl != "triton":
            return _Held(inputs, space, staging, None, None)
        # rows of a trial run are padding, and store nothing
        graph, output = capture(lambda: self._compute(inputs, space, cache, around))
        return _Held(inputs, space, staging, graph, output)


def chunks(tokens: int) -> Iterator[Chunk]:
    """The forwards of a prompt by itself, the last one as small as it may be."""
    for start in range(0, tokens, CHUNK):
        count = min(CHUNK, tokens - start)
        yield Chunk(start, count, size_of(-(-count // MAX_NODES)))


def size_of(pieces: int) -> int:
    """Pieces of the smallest forward that takes so many."""
    return next(size for size in PIECES if size >= pieces)


def sizes_up_to(lanes: int, context: int) -> list[int]:
    """Pieces of the forwards that prompts of so many lanes, of up to `context` tokens each, may share."""
    most = lanes * -(-context // MAX_NODES)
    return [pieces for pieces in PIECES if pieces // 2 < most]
