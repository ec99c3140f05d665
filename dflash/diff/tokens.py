"""Where the outputs of equal prompts part, and by what margin the tokens there had won."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dflash.diff.flat import Block
from dflash.diff.thresholds import Metric
from dflash.diff.trunk import Emission, Parting, sources
from dflash.policy.noise import F64


class Parted(NamedTuple):
    """The first difference of one request.

    Attributes:
        position: in the trunk, 0-based.
        output: the same among the output tokens.
        gap_a, gap_b: `slot_gap` at the slot that the token was taken from.
        near_tie: whether the smaller of them lies under the tie tolerance.
    """

    request_a: str
    request_b: str
    position: int
    output: int
    token_a: int
    token_b: int
    gap_a: float | None
    gap_b: float | None
    near_tie: bool


@dataclass(slots=True)
class Tokens:
    """Counts over aligned requests.

    Attributes:
        other_prompts: requests whose prompts are aligned but not the same tokens.
        parted: requests in which a token differs.
        ended: requests in which one output is longer and nothing differs before.
        near_ties: parted requests whose first difference is a near-tie.
        total: output tokens, of the longer side of each request.
        shared: output tokens before the first difference.
    """

    limit: int
    requests: int = 0
    other_prompts: int = 0
    parted: int = 0
    ended: int = 0
    near_ties: int = 0
    total: int = 0
    shared: int = 0
    listed: list[Parted] = field(default_factory=list)

    def add(
        self, a: Block, b: Block, left: Emission, right: Emission, parting: Parting, tolerance: F64
    ) -> None:
        """Take aligned requests; `tolerance[r]` is what counts as a near-tie in `slot_gap`."""
        self.requests += len(parting.shared)
        self.other_prompts += int((~parting.prompts).sum())
        self.parted += int(parting.differs.sum())
        self.ended += int(parting.ended.sum())
        self.total += int(np.maximum(left.counts, right.counts).sum())
        self.shared += int(parting.shared.sum())
        requests = np.flatnonzero(parting.differs)
        places = parting.shared[requests]
        gaps = []
        for block, emission in ((a, left), (b, right)):
            found = block.flat("slot_gap").take(*sources(block, emission, requests, places))
            gaps.append(np.where(found.valid, found.value.astype(np.float64), np.nan))
        near = np.fmin(*gaps) < tolerance[requests]
        self.near_ties += int(near.sum())
        for index, request in enumerate(requests[: max(0, self.limit - len(self.listed))]):
            place = int(places[index])
            self.listed.append(
                Parted(
                    str(a.ids()[a.starts[request]]),
                    str(b.ids()[b.starts[request]]),
                    int(parting.limit[request]),
                    place,
                    int(left.token[left.starts[request] + place]),
                    int(right.token[right.starts[request] + place]),
                    _finite(gaps[0][index]),
                    _finite(gaps[1][index]),
                    bool(near[index]),
                )
            )

    @property
    def metric(self) -> Metric:
        """The share of tokens before a difference."""
        return Metric(1.0, self.shared / self.total) if self.total else Metric(None, None)

    @property
    def differ(self) -> bool:
        return bool(self.other_prompts or self.parted or self.ended)

    def to_dict(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "same": self.requests - self.other_prompts - self.parted - self.ended,
            "other_prompts": self.other_prompts,
            "parted": self.parted,
            "one_is_longer": self.ended,
            "near_ties": self.near_ties,
            "output_tokens": self.total,
            "shared_tokens": self.shared,
            "listed": [parted._asdict() for parted in self.listed],
        }


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
