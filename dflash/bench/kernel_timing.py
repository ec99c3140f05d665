"""Device time of a call: many instances over rotating buffers in one CUDA graph, replayed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

COLD_BYTES = 200 << 20
MIN_INSTANCES = 20
SECONDS = 0.3


class Timing(NamedTuple):
    """Microseconds a call."""

    median_us: float
    low_us: float
    high_us: float


def rotations(bytes_a_call: int) -> int:
    """Buffer sets that outgrow the L2 cache of 60 MB by far, so that every call reads cold memory."""
    return max(2, -(-COLD_BYTES // max(bytes_a_call, 1 << 20)))


def _milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Time of one replay, after one to warm up."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return max(begin.elapsed_time(end), 1e-3)


def time_graph(calls: Sequence[Callable[[], object]], replays: int = 50) -> Timing:
    """Time calls that differ in their buffers only.

    Args:
        calls: one for each buffer set; each is captured at least once, twenty instances in all.
        replays: of the graph at most, within `SECONDS`; each gives one sample.

    Returns:
        Median, 10 % and 90 % quantiles of microseconds a call.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    instances = -(-max(MIN_INSTANCES, len(calls)) // len(calls)) * len(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(instances):
            calls[i % len(calls)]()
    replays = max(5, min(replays, int(SECONDS * 1000 / _milliseconds(graph))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    samples = sorted(a.elapsed_time(b) * 1000 / instances for a, b in zip(marks, marks[1:], strict=False))
    return Timing(statistics.median(samples), samples[len(samples) // 10], samples[-1 - len(samples) // 10])
