"""How far the values of each row have come in all programs of `lm_head_topk`, so that most need no search.

Programs are dealt into as many groups as values are wanted, and each group keeps the largest that any of its
programs has met. All groups have met one at least that is no lower than the lowest of these: what is lower is
not wanted. What a program reads here depends on who ran before it, what comes out in the end does not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.sort_keys import value_of


@triton.jit
def reach(Borders, rows, live, order, part, stride, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """Tell the other programs that `part` has met this order in each row."""
    tl.atomic_max(Borders + rows * stride + FIRST + part % GROUPS, order, mask=live, sem="relaxed")


@triton.jit
def reached(Borders, rows, stride, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """The order of each row that GROUPS values at least have reached, the lowest for none."""
    group = tl.arange(0, GROUPS)[None, :]
    return tl.min(tl.load(Borders + rows[:, None] * stride + FIRST + group, cache_modifier=".cg"), 1)


@triton.jit
def floor_of(order):
    """A score by which nothing of this order is lost, though scores be off by 1e-4; NaN of the lowest."""
    score = value_of(order)
    return score - (1e-3 + 1e-5 * tl.abs(score))
