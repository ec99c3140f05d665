"""What a recording fixes for every rule: temperatures, how drafts were drawn, where coins come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from dflash.policy.noise import F64, coins
from dflash.policy.rounds import Rounds

CoinSource = Callable[[Rounds], F64]


class Proposal(StrEnum):
    """What law the drafted tokens were drawn from."""

    DETERMINISTIC = "deterministic"
    SHARED = "shared"
    INDEPENDENT = "independent"
    IID = "iid"

    @property
    def with_replacement(self) -> bool:
        """Whether siblings are drawn independently, so that one token may be drawn twice."""
        return self is Proposal.IID


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How q is made of the draft logits; 0 and 1.0 cut nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def derived_coins(rounds: Rounds) -> F64:
    """Return the acceptance coin of every node from the request's key; `[N]`."""
    return coins(rounds.key, rounds.anchor_position, rounds.node_round, rounds.node_depth, rounds.path_hash)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """The facts that a rule reads beside the rounds.

    Attributes:
        temperature: of the target, 0 for greedy decoding.
        proposal: the law of the drafts.
        q_complete: whether the stored draft top-k holds all of q.
        draft: how q was made.
        recorded_rule: the rule whose residual tokens `node_residual_token` holds; None if it holds none.
        coins: gives `[N]` numbers in (0, 1); laws integrate them instead of drawing them.
    """

    temperature: float
    proposal: Proposal = Proposal.DETERMINISTIC
    q_complete: bool = True
    draft: DraftSampling = field(default_factory=DraftSampling)
    recorded_rule: str | None = None
    coins: CoinSource = derived_coins

    @property
    def sampled(self) -> bool:
        """Whether drafts follow a law q and the target one that is not one-hot."""
        return self.temperature > 0 and self.proposal is not Proposal.DETERMINISTIC
