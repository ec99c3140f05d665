"""Steps of a few fixed sizes, each captured once as a CUDA graph; without CUDA computed directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from dflash.target.native_layers import KeyValue, StepSpace, Way
from dflash.target.step_inputs import StepInputs

Fill = Callable[[StepInputs], None]
Output = TypeVar("Output")
Made = TypeVar("Made", covariant=True)


class Step(Protocol[Made]):
    """A forward of a fixed size over caches of keys and values."""

    way: Way

    def reserve(self, positions: int) -> None:
        """Be ready for positions below this."""

    def space(self, lanes: int, width: int, tail: int, cache: Sequence[KeyValue]) -> StepSpace:
        """Allocate the buffers of one size."""

    def run(self, space: StepSpace, cache: Sequence[KeyValue]) -> Made:
        """Compute what the inputs ask for, without waiting for the device."""


@dataclass(frozen=True, slots=True)
class _Captured(Generic[Output]):
    """A size's buffers, what fills them, and its graph."""

    space: StepSpace
    staged: StepInputs
    graph: torch.cuda.CUDAGraph | None = None
    output: Output | None = None
    copied: torch.cuda.Event | None = None


class StepGraphs(Generic[Output]):
    """Runs steps; one graph a (width, tail, capacity).

    A cache that moved to other memory makes all graphs anew.
    """

    def __init__(self, step: Step[Output]) -> None:
        self.step = step
        self._held: dict[tuple[int, int], _Captured[Output]] = {}
        self._memory: tuple[int, ...] = ()

    def run(self, cache: Sequence[KeyValue], width: int, tail: int, fill: Fill) -> Output:
        """Score rows.

        Args:
            cache: one a layer, for all lanes.
            width: rows a lane, padding included.
            tail: rows after the trunks that words speak of.
            fill: told to write the inputs, in host memory.

        Returns:
            What the step leaves, until the next of the same size.
        """
        lanes, capacity = cache[0].keys.shape[0], cache[0].keys.shape[2]
        memory = (capacity, *(store.data_ptr() for pair in cache for store in pair))
        if memory != self._memory:
            self._held.clear()
            self._memory = memory
            self.step.reserve(capacity)
        held = self._held.get((width, tail))
        if held is None:
            held = self._held[width, tail] = self._make(cache, lanes, width, tail)
        if held.copied is not None:
            held.copied.synchronize()
        held.staged.clear()
        fill(held.staged)
        held.space.inputs.flat.copy_(held.staged.flat, non_blocking=True)
        if held.graph is None:
            return self.step.run(held.space, cache)
        held.copied.record()
        held.graph.replay()
        return held.output

    def _make(self, cache: Sequence[KeyValue], lanes: int, width: int, tail: int) -> _Captured[Output]:
        space = self.step.space(lanes, width, tail, cache)
        on_device = space.hidden.is_cuda
        staged = StepInputs.make(lanes, width, pinned=on_device)
        if not on_device or self.step.way.impl == "reference":
            # PyTorch's selections of rows wait for the device
            return _Captured(space, staged)
        graph, output = capture(lambda: self.step.run(space, cache))
        return _Captured(space, staged, graph, output, torch.cuda.Event())


def capture(call: Callable[[], Output]) -> tuple[torch.cuda.CUDAGraph, Output]:
    """Run a call once, which compiles its kernels, then capture it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return graph, output
