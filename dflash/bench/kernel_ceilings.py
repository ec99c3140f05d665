"""What this card does at best: read and copy bandwidth, and the cost of a launch in a graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from dflash.bench.kernel_timing import time_graph

_BYTES = 1 << 31


class Ceilings(NamedTuple):
    """Measured in this process; bandwidths in TB/s, times in microseconds."""

    read_tbs: float
    copy_tbs: float
    launch_us: float
    launch_pdl_us: float


@triton.jit
def _read(Source, Out, steps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * steps * BLOCK
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for step in tl.range(0, steps, num_stages=4):
        total ^= tl.load(Source + start + step * BLOCK + offsets)
    tl.store(Out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _nothing(Out, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tl.store(Out, 1)


def _read_rate(data: torch.Tensor) -> float:
    out = torch.empty(1 << 16, dtype=torch.int32, device="cuda")
    best = 0.0
    for block, steps in ((4096, 64), (8192, 32), (4096, 16)):
        programs = data.numel() // (block * steps)
        timing = time_graph(
            [lambda p=programs, b=block, s=steps: _read[(p,)](data, out, s, BLOCK=b, num_warps=8)], 5
        )
        best = max(best, programs * block * steps * 4 / timing.median_us / 1e6)
    return best


def measure_ceilings() -> Ceilings:
    """Measure; takes a few seconds and 4 GiB."""
    data = torch.randint(0, 1000, (_BYTES // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(data)
    copy = time_graph([lambda: torch.bitwise_not(data, out=target)], 5).median_us
    one = torch.zeros(16, dtype=torch.int32, device="cuda")
    plain = time_graph([lambda: _nothing[(1,)](one, PDL=False)] * 100)
    chained = time_graph([lambda: _nothing[(1,)](one, PDL=True, launch_pdl=True)] * 100)
    return Ceilings(_read_rate(data), 2 * _BYTES / copy / 1e6, plain.median_us, chained.median_us)
