"""What rounds leave for the packing of features: taps, and what was accepted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tests.kernels.accept_cases import draw, longest_match


class Round(NamedTuple):
    """What a round leaves: taps, and what was accepted."""

    taps: Tensor
    count: Tensor
    path: Tensor

    @property
    def rows(self) -> Tensor:
        """The taps that are committed, lane by lane."""
        kept = []
        for lane, count in enumerate(self.count.tolist()):
            if count >= 0:
                kept += [self.taps[lane, 0], *(self.taps[lane, n + 1] for n in self.path[lane, :count])]
        return torch.stack(kept) if kept else self.taps[0, :0]


def make_round(lanes: int, nodes: int, width: int, dtype: torch.dtype, seed: int = 0) -> Round:
    """Random trees, accepted by matching; the taps of what is rejected are NaN."""
    g = torch.Generator().manual_seed(seed)
    case = draw(lanes, max(nodes, 1), seed)
    path = torch.full((lanes, nodes), -1, dtype=torch.int32)
    count = torch.zeros(lanes, dtype=torch.int32)
    taps = torch.full((lanes, nodes + 1, width), torch.nan)
    for lane in range(lanes):
        accepted = longest_match(case, lane, False)[0] if nodes else []
        count[lane] = len(accepted) if lane % 4 != 2 else -1
        path[lane, : len(accepted)] = torch.tensor(accepted, dtype=torch.int32)
        for slot in [0, *(node + 1 for node in accepted)]:
            taps[lane, slot] = torch.randn(width, generator=g) * torch.rand(width, generator=g).exp()
    return Round(taps.to(dtype), count, path)
