"""Noise of exponential races over a vocabulary in Triton: words as in dflash/policy/noise.py, and log E."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

from dflash.kernels.philox_triton import coin_word, unit64


@triton.jit
def words_of_ids(ids, position, purpose, path, k0, k1):
    """The word of each token id: word id % 4 of counter (position, purpose, path, id // 4)."""
    return coin_word(position, purpose, path, ids + 1, k0, k1)


@triton.jit
def words_of_tile(start, position, purpose, path, k0, k1, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr):
    """The words [BLOCK_V, BLOCK_N] of ids start…; start is a multiple of 4, and four ids share one call."""
    zero = tl.zeros([BLOCK_V // 4, BLOCK_N], tl.uint32)
    block = (start // 4 + tl.arange(0, BLOCK_V // 4)).to(tl.uint32)[:, None] + zero
    w0, w1, w2, w3 = philox_impl(
        zero + position[None, :], zero + purpose[None, :], zero + path[None, :], block,
        zero + k0[None, :], zero + k1[None, :],
    )  # fmt: skip
    four = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(tl.permute(four, (0, 2, 3, 1)), [BLOCK_V, BLOCK_N])


@triton.jit
def near_uniform(word):
    """u to a float32's precision; E = -log(1 - u) is never less."""
    return (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10


@triton.jit
def near_log_exponential(word):
    """log E to 1e-4: good enough for a shortlist."""
    u = near_uniform(word)
    small = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
    return tl.log(tl.where(u < 0.015625, small, -tl.log(1.0 - u)))


@triton.jit
def log_exponential(word):
    """log E as the CPU has it: float64 from a uniform that was rounded to float32, then float32."""
    u = unit64(word).to(tl.float32).to(tl.float64)
    # 1 - u is exact from 2**-29 on
    small = u + 0.5 * u * u
    return tl.log(tl.where(u < 1.862645149230957e-09, small, -tl.log(1.0 - u))).to(tl.float32)
