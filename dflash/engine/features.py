"""Fingerprints of hidden states: a fixed random projection to 16 floats a token, for drift audits at little
cost.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.policy.philox import philox4x32

FINGERPRINT = 16
# a constant of the format, so that fingerprints of different runs compare
_KEY = (0xDF1A5401, 0x00000001)


def projection(width: int) -> NDArray[np.float32]:
    """Random signs over sqrt(width), shape [width, 16]; row t takes Philox counter (t, 0, 0, 0), one bit a
    column.
    """
    counter = np.zeros((width, 4), dtype=np.uint32)
    counter[:, 0] = np.arange(width)
    words = philox4x32(counter, np.array(_KEY, dtype=np.uint32))
    bits = (words[:, :1] >> np.arange(FINGERPRINT, dtype=np.uint32)) & 1
    signs = bits.astype(np.float32) * 2 - 1
    return (signs / np.sqrt(width)).astype(np.float32)


class Fingerprint:
    """Projects tapped hidden states; `taps` are Hugging Face `hidden_states` indices."""

    def __init__(self, taps: tuple[int, ...], hidden: int, device: torch.device) -> None:
        self.taps = taps
        self.matrix = torch.from_numpy(projection(len(taps) * hidden)).to(device)

    def of(self, states: torch.Tensor) -> NDArray[np.float32]:
        """Flat [tokens x 16] from `states` [tokens, taps x hidden]."""
        return (states.float() @ self.matrix).flatten().cpu().numpy()


def default_taps(layers: int) -> tuple[int, ...]:
    """The inputs of layers 1, L/2 and L-1, for drafters that tap nothing themselves."""
    return tuple(sorted({1, layers // 2, layers - 1} & set(range(layers)))) or (0,)
