"""Prompts on the native step: rows of one lane at a time, in chunks of one size, one graph for all lanes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash.kernels.ancestors import MAX_NODES
from dflash.target.llama_step import LlamaStep, StepOutput
from dflash.target.native_layers import KeyValue, StepSpace
from dflash.target.step_graphs import capture
from dflash.target.step_inputs import LaneRow, StepInputs


class LanePrefill:
    """Computes chunks of a lane's prompt behind what its trunk has.

    The lane's part of the cache is one page, whose number is read on the device: so capacities must be
    powers of two from 16.
    """

    def __init__(self, step: LlamaStep) -> None:
        self.step = step
        self._key: tuple[int, ...] = ()
        self._space: StepSpace | None = None
        self._staged: StepInputs | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output: StepOutput | None = None
        self._copied: torch.cuda.Event | None = None

    @staticmethod
    def takes(capacity: int) -> bool:
        """Whether caches of this capacity can be pages."""
        return capacity >= 16 and capacity & (capacity - 1) == 0

    @torch.inference_mode()
    def run(self, cache: Sequence[KeyValue], lane: int, length: int, tokens: Sequence[int]) -> StepOutput:
        """Compute up to 64 tokens that follow `length` rows of a lane's trunk, and store their K/V.

        Args:
            cache: one a layer, for all lanes.
            lane: whose.
            length: rows of its trunk.
            tokens: of the chunk.

        Returns:
            What the step leaves, of 64 rows, until the next chunk.
        """
        space = self._ready(cache)
        if self._staged is None or space.pages is None:
            raise RuntimeError("the buffers of a prefill were not made")
        if self._copied is not None:
            self._copied.synchronize()
        self._staged.clear()
        rows = [
            LaneRow(token, length + row, length + row, (2 << row) - 1) for row, token in enumerate(tokens)
        ]
        self._staged.set_lane(0, length, rows)
        self._staged.places[: len(rows), 0] = lane
        space.inputs.flat.copy_(self._staged.flat, non_blocking=True)
        space.pages.fill_(lane)
        if self._graph is None or self._output is None or self._copied is None:
            return self.step.run(space, cache)
        self._copied.record()
        self._graph.replay()
        return self._output

    def _ready(self, cache: Sequence[KeyValue]) -> StepSpace:
        first = cache[0].keys
        key = (first.data_ptr(), *first.shape)
        if self._space is None or key != self._key:
            self._key, self._graph = key, None
            self._space = self._make(cache)
        return self._space

    def _make(self, cache: Sequence[KeyValue]) -> StepSpace:
        on_device = cache[0].keys.is_cuda
        self.step.reserve(cache[0].keys.shape[2])
        pages = torch.zeros((1, 1), dtype=torch.int32, device=cache[0].keys.device)
        space = self.step.space(1, MAX_NODES, MAX_NODES, cache, pages)
        self._staged = StepInputs.make(1, MAX_NODES, pinned=on_device)
        if on_device and self.step.way.impl == "triton":
            # rows of a trial run are padding, and store nothing
            self._graph, self._output = capture(lambda: self.step.run(space, cache))
            self._copied = torch.cuda.Event()
        return space
