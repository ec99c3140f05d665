"""The kernel behind `stamp`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_clock(Time, here):
    """Write the global timer where `here` holds."""
    tl.store(Time, tl.extra.cuda.globaltimer(), mask=here)


@triton.jit(do_not_specialize=["place"])
def write_time(Times, place, Unless, ASKS: tl.constexpr, PDL: tl.constexpr):
    """Write the global timer; grid (1)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if ASKS:
        write_clock(Times + place, tl.load(Unless) == 0)
    else:
        tl.store(Times + place, tl.extra.cuda.globaltimer())
