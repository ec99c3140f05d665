"""What a forward of prompts reads: rows by piece, pages, wanted rows, and words beside, in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES
from dflash.target.step_inputs import StepInputs, signed

_ALIGN = 4
_ROWS = np.arange(MAX_NODES)
_CAUSAL = np.array([signed((2 << row) - 1) for row in range(MAX_NODES)])


class Piece(NamedTuple):
    """Up to 64 tokens of a prompt, int32, whose first one is row `start` of a lane's trunk.

    Attributes:
        last: whether the prompt ends here.
    """

    lane: int
    start: int
    tokens: NDArray[np.int32]
    last: bool


def pieces_of(lane: int, length: int, tokens: Sequence[int]) -> list[Piece]:
    """The pieces of a prompt that follows `length` rows of a lane's trunk."""
    whole, count = np.array(tokens, np.int32), len(tokens)
    return [
        Piece(lane, length + start, whole[start : start + MAX_NODES], start + MAX_NODES >= count)
        for start in range(0, count, MAX_NODES)
    ]


class PromptInputs(NamedTuple):
    """Inputs of so many pieces; all are views of `flat`, int32."""

    flat: Tensor
    step: StepInputs
    pages: Tensor
    """int32 `[pieces, 1]`: the cache's lane of each."""
    wanted: Tensor
    """int64 `[ends]`: the last row of each prompt that ends here, in their order; then rows of no meaning."""
    told: Tensor
    """int32 `[words]`: for what is computed around the forward."""

    @classmethod
    def of(cls, flat: Tensor, pieces: int, ends: int, words: int) -> PromptInputs:
        """Inputs that lie in int32 `[size(...)]`."""
        step = StepInputs.of(flat, pieces, MAX_NODES)
        wanted = len(step.flat)
        pages = wanted + _up(2 * ends)
        told = pages + _up(pieces)
        return cls(
            flat,
            step,
            flat[pages : pages + pieces].view(pieces, 1),
            flat[wanted : wanted + 2 * ends].view(torch.int64),
            flat[told : told + words],
        )

    @staticmethod
    def size(pieces: int, ends: int, words: int) -> int:
        """Words of all of them."""
        return StepInputs.room(pieces, MAX_NODES) + _up(2 * ends) + _up(pieces) + _up(words)

    def fill(self, pieces: Sequence[Piece], told: NDArray[np.int32] | None = None) -> None:
        """Write pieces, in host memory; the rest is padding, which stores nothing."""
        count, width = len(pieces), MAX_NODES
        self.flat.numpy()[:] = 0
        rows = self.step
        tokens, positions = (tensor.numpy().reshape(-1, width) for tensor in (rows.tokens, rows.positions))
        places = rows.places.numpy().reshape(-1, width, 2)
        known = np.array([(piece.lane, piece.start, len(piece.tokens)) for piece in pieces])
        lanes, starts, sizes = known.T[..., None]
        there = sizes > _ROWS
        places[..., 0] = -1
        for place, piece in enumerate(pieces):
            tokens[place, : len(piece.tokens)] = piece.tokens
        positions[:count] = np.where(there, starts + _ROWS, 0)
        places[:count, :, 0] = np.where(there, lanes, -1)
        places[:count, :, 1] = positions[:count]
        rows.words.numpy()[:count] = np.where(there, _CAUSAL, 0)
        rows.lengths.numpy()[:count] = starts[:, 0]
        self.pages.numpy()[:count] = lanes
        ends = [place * width + len(piece.tokens) - 1 for place, piece in enumerate(pieces) if piece.last]
        self.wanted.numpy()[: len(ends)] = ends
        if told is not None:
            self.told.numpy()[:] = told


def _up(words: int) -> int:
    return -(-words // _ALIGN) * _ALIGN
