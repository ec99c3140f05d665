"""Prompts on the native step: one lane's tokens in pieces of 64 rows, several pieces a forward.

A piece is a lane of the step whose trunk ends where the piece begins. All pieces are of one lane of the
cache: a layer's keys and values are written before anything attends to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES
from dflash.target.llama_step import LlamaStep, StepOutput
from dflash.target.model_step import ModelStep
from dflash.target.native_layers import KeyValue, StepSpace
from dflash.target.step_graphs import capture
from dflash.target.step_inputs import StepInputs, signed

# pieces of the forwards that there are
PIECES = (1, 2, 4, 8)
CHUNK = PIECES[-1] * MAX_NODES


class Chunk(NamedTuple):
    """Tokens of a prompt that one forward takes: so many from `start` on, in so many pieces."""

    start: int
    tokens: int
    pieces: int


class Behind(NamedTuple):
    """What else is computed right behind every forward.

    Attributes:
        memory: addresses that it reads or writes; other ones need other graphs.
        run: given the buffers and what the forward leaves; nothing in it may wait for the device.
    """

    memory: tuple[int, ...]
    run: Callable[[StepSpace, StepOutput], None]


class Prompt(NamedTuple):
    """What a prompt leaves: logits `[1, vocabulary]` of its last token until the next prompt, taps of all."""

    logits: Tensor
    taps: Tensor | None


@dataclass(frozen=True, slots=True)
class _Held:
    """Buffers of forwards of one size, and their graph."""

    space: StepSpace
    graph: torch.cuda.CUDAGraph | None
    output: StepOutput | None


class LanePrefill:
    """Computes a lane's prompt behind what its trunk has, without waiting for the device.

    The lane's part of the cache is one page, whose number is read on the device: so capacities must be
    powers of two from 16.
    """

    def __init__(self, step: LlamaStep | ModelStep) -> None:
        self.step = step
        self._memory: tuple[int, ...] = ()
        self._held: dict[int, _Held] = {}
        self._causal = torch.tensor([signed((2 << row) - 1) for row in range(MAX_NODES)])

    @staticmethod
    def takes(capacity: int) -> bool:
        """Whether caches of this capacity can be pages."""
        return capacity >= 16 and capacity & (capacity - 1) == 0

    @torch.inference_mode()
    def run(
        self, cache: Sequence[KeyValue], lane: int, length: int, tokens: Sequence[int], *,
        behind: Behind | None = None, keep_taps: bool = True,
    ) -> Prompt:  # fmt: skip
        """Compute tokens that follow `length` rows of a lane's trunk, and store their keys and values.

        Args:
            cache: one a layer, for all lanes, with room for whole pieces.
            lane: whose.
            length: rows of its trunk.
            tokens: of the prompt.
            behind: what follows every forward.
            keep_taps: whether the taps of all tokens are wanted.
        """
        taps, output = [], None
        for chunk in chunks(len(tokens)):
            held = self.ready(cache, chunk.pieces, behind)
            part = tokens[chunk.start : chunk.start + chunk.tokens]
            self._place(held.space, lane, length + chunk.start, part)
            output = self._run(held, cache, behind)
            if keep_taps and output.taps is not None:
                taps.append(output.taps[: chunk.tokens].clone())
        if output is None or output.logits is None:
            raise RuntimeError("a prompt needs a token and a step that leaves logits")
        return Prompt(output.logits, torch.cat(taps) if taps else None)

    def _run(self, held: _Held, cache: Sequence[KeyValue], behind: Behind | None) -> StepOutput:
        if held.graph is None or held.output is None:
            return self._compute(held.space, cache, behind)
        held.graph.replay()
        return held.output

    def _compute(self, space: StepSpace, cache: Sequence[KeyValue], behind: Behind | None) -> StepOutput:
        output = self.step.run(space, cache)
        if behind is not None:
            behind.run(space, output)
        return output

    def _place(self, space: StepSpace, lane: int, start: int, tokens: Sequence[int]) -> None:
        """Send the device a chunk's rows."""
        count, pieces = len(tokens), -(-len(tokens) // MAX_NODES)
        lanes, width = space.inputs.words.shape
        staged = StepInputs.make(lanes, width, pinned=space.hidden.is_cuda)
        rows = torch.arange(start, start + count, dtype=torch.int32)
        staged.tokens[:count] = torch.tensor(tokens, dtype=torch.int32)
        staged.positions[:count] = rows
        staged.places[:count, 0], staged.places[:count, 1] = lane, rows
        staged.words.view(-1)[:count] = self._causal.repeat(pieces)[:count]
        staged.lengths[:pieces] = rows[::MAX_NODES]
        space.inputs.flat.copy_(staged.flat, non_blocking=True)
        if space.pages is None or space.wanted is None:
            raise RuntimeError("the buffers of a prefill were not made")
        space.pages.fill_(lane)
        space.wanted.fill_(count - 1)

    @torch.inference_mode()
    def ready(self, cache: Sequence[KeyValue], pieces: int, behind: Behind | None = None) -> _Held:
        """Buffers, and a graph, of forwards of so many pieces over these caches."""
        first = cache[0].keys
        memory = (first.data_ptr(), *first.shape, *(() if behind is None else behind.memory))
        if memory != self._memory:
            # graphs of before may still run on what they hold
            if first.is_cuda:
                torch.cuda.synchronize(first.device)
            self._held.clear()
            self._memory = memory
            self.step.reserve(first.shape[2])
        if pieces not in self._held:
            self._held[pieces] = self._make(cache, pieces, behind)
        return self._held[pieces]

    def _make(self, cache: Sequence[KeyValue], pieces: int, behind: Behind | None) -> _Held:
        first = cache[0].keys
        pages = torch.zeros((pieces, 1), dtype=torch.int32, device=first.device)
        wanted = torch.zeros(1, dtype=torch.int64, device=first.device)
        space = self.step.space(pieces, MAX_NODES, MAX_NODES, cache, pages, wanted)
        if not first.is_cuda or self.step.way.impl != "triton":
            return _Held(space, None, None)
        # rows of a trial run are padding, and store nothing
        graph, output = capture(lambda: self._compute(space, cache, behind))
        return _Held(space, graph, output)


def chunks(tokens: int) -> Iterator[Chunk]:
    """The forwards of a prompt, the last one as small as it may be."""
    for start in range(0, tokens, CHUNK):
        count = min(CHUNK, tokens - start)
        needed = -(-count // MAX_NODES)
        yield Chunk(start, count, next(pieces for pieces in PIECES if pieces >= needed))


def rows_of(tokens: int) -> int:
    """Rows that a prompt's forwards compute, padding included."""
    return sum(chunk.pieces for chunk in chunks(tokens)) * MAX_NODES
