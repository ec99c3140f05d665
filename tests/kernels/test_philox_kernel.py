"""Philox on the device: published vectors, and the words of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.kernels.philox import philox
from dflash.policy.philox import philox4x32
from tests.kernels.accept_cases import philox_scalar, signed

pytestmark = pytest.mark.usefixtures("interpreted")

# Random123 1.14, tests/kat_vectors, philox4x32 10: counter, key, words
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def bits(rows: list[tuple[int, ...]]) -> torch.Tensor:
    return torch.tensor([[signed(word) for word in row] for row in rows], dtype=torch.int32)


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_published_vectors(impl: str) -> None:
    counters, keys, words = (bits([row[i] for row in KNOWN]) for i in range(3))
    assert torch.equal(philox(counters, keys, impl=impl), words)


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_the_same_words_as_numpy_and_as_plain_integers(impl: str) -> None:
    rng = np.random.default_rng(7)
    counters = rng.integers(0, 2**32, (300, 4), dtype=np.uint32)
    keys = rng.integers(0, 2**32, (300, 2), dtype=np.uint32)
    found = philox(
        torch.from_numpy(counters.view(np.int32)), torch.from_numpy(keys.view(np.int32)), impl=impl
    )
    words = found.numpy().view(np.uint32)
    assert np.array_equal(words, philox4x32(counters, keys))
    for row in range(0, 300, 37):
        key = (int(keys[row, 0]), int(keys[row, 1]))
        assert tuple(map(int, words[row])) == philox_scalar(tuple(map(int, counters[row])), key)
