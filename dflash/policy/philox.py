"""Philox4x32-10, the counter-based generator behind every random number of a run, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_ROUNDS = 10

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Lanes = tuple[U64, U64, U64, U64]


def philox_lanes(c0: U64, c1: U64, c2: U64, c3: U64, k0: U64, k1: U64) -> Lanes:
    """Run the ten rounds over separate counter words; overwrites the four counters.

    Args:
        c0: uint64 arrays of one shape, each element below 2**32; likewise `c1`, `c2`, `c3`.
        k0: uint64 key words, broadcastable to that shape; likewise `k1`.

    Returns:
        Four uint64 arrays of that shape, each element below 2**32.
    """
    high = np.empty_like(c0)
    for step in range(_ROUNDS):
        if step:
            k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
        np.multiply(c0, _MULTIPLY[0], out=c0)
        np.multiply(c2, _MULTIPLY[1], out=c2)
        np.right_shift(c2, 32, out=high)
        c1 ^= high
        c1 ^= k0
        np.right_shift(c0, 32, out=high)
        c3 ^= high
        c3 ^= k1
        c0 &= _LOW
        c2 &= _LOW
        c0, c1, c2, c3 = c1, c2, c3, c0
    return c0, c1, c2, c3


def philox4x32(counter: U32, key: U32) -> U32:
    """Return the four random words of each counter (Salmon et al. 2011, Random123, 10 rounds).

    Args:
        counter: uint32 `[..., 4]`.
        key: uint32 `[..., 2]`, broadcast against the leading shape of `counter`.

    Returns:
        uint32 `[..., 4]`.
    """
    shape = np.broadcast_shapes(counter.shape[:-1], key.shape[:-1])
    words = np.broadcast_to(counter, (*shape, 4)).astype(np.uint64)
    keys = key.astype(np.uint64)
    c0, c1, c2, c3 = (words[..., i].copy() for i in range(4))
    lanes = philox_lanes(c0, c1, c2, c3, keys[..., 0], keys[..., 1])
    return np.stack(lanes, axis=-1).astype(np.uint32)
