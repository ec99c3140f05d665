"""The one small base of all drafter families: an anchor goes in, a proposal comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dflash.policy.context import DraftSampling
from dflash.policy.context import Proposal as ProposalKind

CUTS = ("length", "branches", "first_positions")
SCORED_CUTS = (*CUTS, "confidence", "survival", "nodes")


@dataclass(frozen=True, slots=True)
class DraftShape:
    """The largest tree to draft: `length` nodes deep, `branches` root-to-leaf paths."""

    length: int
    branches: int = 1


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where to draft from: a lane, the newest committed token's position, and the request's noise key.

    `trunk` is the prompt and every committed token; a drafter reads trunk[: position + 1] and nothing after
    it. `temperature` is the target's in this request.
    """

    lane: int
    position: int
    key: tuple[int, int]
    trunk: Sequence[int]
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotLaw:
    """q at one expanded slot: `tokens` [m] in order of probability and `log_q` [m]; nothing else can be
    drawn.
    """

    tokens: NDArray[np.int64]
    log_q: NDArray[np.float64]


@dataclass(slots=True)
class Proposal:
    """A drafted tree: parents before children, siblings in proposal order, one entry a node in each list.

    `source` says which of the run's drafters proposed a node.
    `law` holds q by parent (-1 = anchor) where tokens were drawn; `lse`, `topk_tokens` and `topk_logits` hold
    what a drafter saw at each slot that it expanded, by the same key.
    """

    tokens: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    rank: list[int | None] = field(default_factory=list)
    log_q: list[float] = field(default_factory=list)
    draft_gap: list[float | None] = field(default_factory=list)
    margin: list[float | None] = field(default_factory=list)
    confidence: list[float | None] = field(default_factory=list)
    law: dict[int, SlotLaw] = field(default_factory=dict)
    lse: dict[int, float] = field(default_factory=dict)
    topk_tokens: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    topk_logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        token: int,
        parent: int,
        *,
        log_q: float = 0.0,
        rank: int | None = None,
        draft_gap: float | None = None,
        margin: float | None = None,
        confidence: float | None = None,
        source: int = 0,
    ) -> int:
        """Append a node under `parent` (-1 = anchor); returns its index."""
        self.tokens.append(token)
        self.source.append(source)
        self.parents.append(parent)
        self.log_q.append(log_q)
        self.rank.append(rank)
        self.draft_gap.append(draft_gap)
        self.margin.append(margin)
        self.confidence.append(confidence)
        return len(self.tokens) - 1


class Drafter(ABC):
    """A drafter family. Lanes are opened with a prompt, told of every commit, and closed.

    Attributes:
        taps: Hugging Face `hidden_states` indices of the target that `see` must be given, in order.
        longest: The deepest draft that it can make; None for any.
    """

    name: str
    family: str
    branches = True
    taps: tuple[int, ...] = ()
    longest: int | None = None

    def __init__(self, kind: ProposalKind) -> None:
        self.kind = kind

    def open(self, lane: int) -> None:  # noqa: B027 (stateless drafters keep nothing)
        """Start a request in `lane`; whatever the lane held before is forgotten."""

    def see(self, lane: int, states: Tensor) -> None:  # noqa: B027 (most families read tokens alone)
        """Take the target's tapped hidden states [m, taps x hidden] of a lane's next m committed tokens."""

    def sampling_at(self, temperature: float) -> DraftSampling:
        """How q is made in a request of this target temperature."""
        return DraftSampling()

    @abstractmethod
    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """Draft one tree of `shape` from each anchor; several anchors may share a lane.

        The draft from an anchor depends on the trunk up to it and on the request's key, on nothing else.
        """

    def trunk_log_q(self, anchors: Sequence[Anchor], counts: Sequence[int]) -> list[list[float]] | None:
        """For each anchor of a request, log q of the `count` tokens after it, the drafter forced onto them.

        None for deterministic proposals, where q is no law.
        """
        return None

    def remark(self) -> str | None:
        """What its user should know once a run has ended."""
        return None

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """This drafter's entry in the header; empty for one that drafts nothing."""

    def headers(self) -> list[dict[str, Any]]:
        """The header's list of drafters, in the order of `node_source`."""
        own = self.header()
        return [own] if own else []


class NoDrafter(Drafter):
    """Drafts nothing: plain decoding, one token a round."""

    name = family = "none"

    def __init__(self) -> None:
        super().__init__(ProposalKind.DETERMINISTIC)

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """An empty tree for every anchor."""
        return [Proposal() for _ in anchors]

    def header(self) -> dict[str, Any]:
        """Never written: a run without a drafter lists none."""
        return {}


def entry(name: str, family: str, kind: ProposalKind, **facts: Any) -> dict[str, Any]:
    """A drafter's entry in the header, null where a family has nothing to say."""
    unknown = ("revision", "weights_digest", "config_digest", "dtype", "quantisation", "parameter_count")
    law = ("draft_temperature", "draft_top_k", "draft_top_p")
    known: dict[str, Any] = dict.fromkeys((*unknown, *law))
    return known | {"name": name, "family": family, "proposal": str(kind)} | facts
