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


class HostInputs(NamedTuple):
    """The same in host memory; rows are `[pieces, 64]`."""

    flat: NDArray[np.int32]
    words: NDArray[np.int64]
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    places: NDArray[np.int32]
    lengths: NDArray[np.int32]
    pages: NDArray[np.int32]
    wanted: NDArray[np.int64]
    told: NDArray[np.int32]

    @classmethod
    def of(cls, inputs: PromptInputs) -> HostInputs:
        """Views of inputs in host memory."""
        step = inputs.step
        by_piece = (-1, MAX_NODES)
        return cls(
            inputs.flat.numpy(),
            step.words.numpy(),
            step.tokens.numpy().reshape(by_piece),
            step.positions.numpy().reshape(by_piece),
            step.places.numpy().reshape(*by_piece, 2),
            step.lengths.numpy(),
            inputs.pages.numpy(),
            inputs.wanted.numpy(),
            inputs.told.numpy(),
        )

    def fill(self, pieces: Sequence[Piece], told: NDArray[np.int32] | None = None) -> None:
        """Write pieces; the rest is padding, which stores nothing."""
        count = len(pieces)
        self.flat[:] = 0
        self.places[..., 0] = -1
        known = np.array([(piece.lane, piece.start, len(piece.tokens)) for piece in pieces])
        lanes, starts, sizes = known.T[..., None]
        there = sizes > _ROWS
        for tokens, piece in zip(self.tokens, pieces, strict=False):
            tokens[: len(piece.tokens)] = piece.tokens
        self.positions[:count] = (starts + _ROWS) * there
        self.places[:count, :, 0] = np.where(there, lanes, -1)
        self.places[:count, :, 1] = self.positions[:count]
        self.words[:count] = _CAUSAL * there
        self.lengths[:count] = starts[:, 0]
        self.pages[:count] = lanes
        ends = [place * MAX_NODES + len(piece.tokens) - 1 for place, piece in enumerate(pieces) if piece.last]
        self.wanted[: len(ends)] = ends
        if told is not None:
            self.told[:] = told


def _up(words: int) -> int:
    return -(-words // _ALIGN) * _ALIGN
