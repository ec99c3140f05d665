"""What the device knows of an engine's requests, whatever shape their next round has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.engine.device.prompt_records import PromptRecord
from dflash.engine.lane import Lane
from dflash.kernels.round_cut import RoundLimits
from dflash.kernels.round_lanes import RoundLanes
from dflash.kernels.round_taps import TapRing
from dflash.target.staging import Staging

# words of a lane: six numbers, a key of two words, and what the drafter's context has
_NUMBERS, _KEY, _WORDS = 6, 6, 9
_LIVE, _LENGTH, _ANCHOR, _KNOWN = 0, 1, 2, 8
_ALIGN = 4

Ints = NDArray[np.int64]


class RoundShared:
    """Tensors that the graphs of all shapes read and write.

    Attributes:
        lanes: of the requests.
        first: index of the first of these lanes.
        limits: of each lane's tree; None where every lane takes the whole.
        ring: taps that the drafter's context lacks; None where it never lacks any.
    """

    def __init__(
        self,
        lanes: int,
        device: torch.device,
        limits: RoundLimits | None = None,
        ring: TapRing | None = None,
        first: int = 0,
    ) -> None:
        """Allocate; rounds of several shapes have limits, and a ring where some of them draft nothing."""
        # each number of all lanes begins on 16 bytes
        self._apart = -(-lanes // _ALIGN) * _ALIGN
        self._flat = torch.zeros(_WORDS * self._apart, dtype=torch.int32, device=device)
        rows = self._flat.view(_WORDS, self._apart)[:, :lanes]
        keys = self._flat[_KEY * self._apart :][: 2 * lanes].view(lanes, 2)
        heats = [row.view(torch.float32) for row in rows[4:_NUMBERS]]
        self.lanes = RoundLanes(*rows[:4], *heats, keys)
        self.limits, self.first = limits, first
        self.ring = None if ring is None else ring._replace(known=rows[_KNOWN])
        # a place in 64 bits and a word
        most = 3 * _WORDS * lanes
        self._arrived = torch.empty(most, dtype=torch.int32, device=device)
        self._staging = Staging(most, Tensor.numpy, device)
        starts = np.arange(_WORDS)[:, None] * self._apart
        starts[_KEY + 1] = starts[_KEY] + 1
        self._starts = starts
        self._steps = np.ones((_WORDS, 1), np.int64)
        self._steps[_KEY : _KEY + 2] = 2

    def hold(
        self, held: Sequence[Lane], draft_heat: Callable[[float], float], *, fresh: bool = False,
        unread: PromptRecord | None = None,
    ) -> None:  # fmt: skip
        """Let lanes stand at the newest token of their trunks, to decode on from there if they are not done.

        Args:
            held: the lanes.
            draft_heat: the drafter's temperature by the target's.
            fresh: whether the drafter's contexts end there, too.
            unread: of their prompts in this order, whose first tokens only the device knows, or will know
                before it goes on; each lane has more to emit than that.
        """
        heats = [lane.request.sampling.temperature for lane in held]
        words = np.empty((_WORDS if fresh and self.ring is not None else _WORDS - 1, len(held)), np.int32)
        ahead = unread is not None
        words[:4] = np.array(
            [(not lane.done, len(lane.trunk) - 1 + ahead, lane.trunk[-1], lane.left - ahead) for lane in held]
        ).T
        words[4:_NUMBERS] = np.array([heats, [draft_heat(heat) for heat in heats]], np.float32).view(np.int32)
        words[_KEY : _KEY + 2] = key_bits([lane.request.key for lane in held]).T
        words[_KNOWN:] = words[_LENGTH]
        fields = slice(len(words))
        places = self._write(fields, [lane.index for lane in held], words)
        if unread is not None:
            there = places[_LIVE : _ANCHOR + 1 : _ANCHOR - _LIVE].flatten()
            with unread.taking() as begins:
                self._flat.index_copy_(0, there, begins[:, : len(held)].flatten())

    def clear(self, indices: Sequence[int]) -> None:
        """Let lanes have no trunk, so that nothing of them is taken into a drafter's context."""
        self._write(slice(_LENGTH, _LENGTH + 1), indices, np.zeros((1, len(indices)), np.int32))

    def rest(self, index: int) -> None:
        """Let a lane rest."""
        self.lanes.live[index - self.first] = 0

    def _write(self, fields: slice, indices: Sequence[int], words: NDArray[np.int32]) -> Tensor:
        """Store words `[fields, lanes]`, in one copy and one launch; returns their places, until the next."""
        places = self._starts[fields] + self._steps[fields] * (np.array(indices) - self.first)
        block, size = self._staging.take(), words.size
        block.form[: 2 * size].view(np.int64)[:] = places.ravel()
        block.form[2 * size : 3 * size] = words.ravel()
        arrived = self._arrived[: 3 * size]
        self._staging.send(block, arrived)
        at = arrived[: 2 * size].view(torch.int64)
        self._flat.index_copy_(0, at, arrived[2 * size :])
        return at.view(words.shape)


def key_bits(keys: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Philox keys as int32 `[keys, 2]` with the same bits."""
    return np.array(keys, np.uint32).view(np.int32)
