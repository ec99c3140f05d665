"""Work on fixed buffers, captured once as a CUDA graph and replayed; on a CPU it simply runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Replayed:
    """A function without arguments that reads and writes fixed buffers; each call does its work once.

    On CUDA the first `warm` calls run it as it is, the next captures it, and from then on it is replayed.

    Args:
        work: What to do.
        device: Where the buffers are.
        generator: The source of the work's random numbers, if it draws any.
        pool: Memory shared with other graphs, of which one at a time is replayed and none leaves a value.
        warm: Calls before the capture, in which libraries set themselves up.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        generator: torch.Generator | None = None,
        pool: Any = None,
        warm: int = 2,
    ) -> None:
        self.work = work
        self.generator = generator
        self.pool = pool
        self.warm = warm
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work once."""
        if self._stream is None:
            self.work()
        elif self.warm > 0:
            self.warm -= 1
            self._aside(self._stream)
        else:
            if self._graph is None:
                self._graph = self._capture(self._stream)
            self._graph.replay()

    def _aside(self, stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.work()
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, stream=stream, pool=self.pool):
            self.work()
        return graph
