"""What the device knows of an engine's requests, whatever shape their next round has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.engine.lane import Lane
from dflash.kernels.philox import word_bits
from dflash.kernels.round_cut import RoundLimits
from dflash.kernels.round_lanes import RoundLanes
from dflash.kernels.round_taps import TapRing


class RoundShared(NamedTuple):
    """Tensors that the graphs of all shapes read and write.

    Attributes:
        limits: of each lane's tree; None where every lane takes the whole.
        ring: taps that the drafter's context lacks; None where it never lacks any.
    """

    lanes: RoundLanes
    limits: RoundLimits | None = None
    ring: TapRing | None = None

    @classmethod
    def make(cls, lanes: int, device: torch.device) -> RoundShared:
        """Allocate for rounds of one shape."""
        return cls(RoundLanes.make(lanes, device))

    def hold(self, held: Sequence[Lane], draft_heat: Callable[[float], float]) -> None:
        """Let lanes stand at the newest token of their trunks, to decode on from there if they are not done.

        Args:
            held: the lanes.
            draft_heat: the drafter's temperature by the target's.
        """
        device, lanes = self.lanes.live.device, self.lanes
        index = sent([lane.index for lane in held], torch.int64, device)
        left = [lane.request.max_new_tokens - len(lane.output) for lane in held]
        live = [not lane.done for lane in held]
        ends = [(len(lane.trunk) - 1, lane.trunk[-1]) for lane in held]
        heats = [lane.request.sampling.temperature for lane in held]
        whole = sent([live, *zip(*ends, strict=True), left], torch.int32, device)
        floats = sent([heats, list(map(draft_heat, heats))], torch.float32, device)
        for goal, column in zip(lanes[:6], (*whole, *floats), strict=True):
            goal.index_copy_(0, index, column)
        bits = word_bits(torch.tensor([lane.request.key for lane in held])).tolist()
        lanes.keys.index_copy_(0, index, sent(bits, torch.int32, device))

    def rest(self, index: int) -> None:
        """Let a lane rest."""
        self.lanes.live[index] = 0


def sent(values: Sequence[object] | NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on its way to the device, for which nobody waits."""
    made = torch.as_tensor(values, dtype=dtype)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made
