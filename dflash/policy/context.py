"""What a recording fixes for every rule: temperatures, how drafts were drawn, where coins come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dflash.policy.noise import F64, Purpose
from dflash.policy.rounds import Rounds

CoinSource = Callable[[Rounds, Purpose], F64]
STORED_COINS = "stored"


class Proposal(StrEnum):
    """What law the drafted tokens were drawn from; `mixed` where those of a union follow no single law."""

    DETERMINISTIC = "deterministic"
    SHARED = "shared"
    INDEPENDENT = "independent"
    IID = "iid"
    MIXED = "mixed"

    @property
    def with_replacement(self) -> bool:
        """Whether siblings are drawn independently, so that one token may be drawn twice."""
        return self is Proposal.IID

    @classmethod
    def of_union(cls, kinds: Iterable[Proposal]) -> Proposal:
        """Return the kind of a tree to which drafters of these kinds add their nodes, duplicates merged.

        Siblings of two sampled drafters are drawn from two laws, even where both are of one kind.
        """
        each = list(kinds)
        if all(kind is cls.DETERMINISTIC for kind in each):
            return cls.DETERMINISTIC
        return each[0] if len(each) == 1 else cls.MIXED


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How q is made of the draft logits; 0 and 1.0 cut nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def derived_coins(rounds: Rounds, purpose: Purpose) -> F64:
    """Return the coin of every node for a purpose, from the request's key; `[N]`."""
    return rounds.coins(purpose)


def stored_coins(rounds: Rounds, purpose: Purpose) -> F64:
    """Return the coins that another engine drew, whatever their purpose; `[N]`.

    Raises:
        NullColumn: they were not stored.
    """
    return rounds.present("node_uniform")


@dataclass(frozen=True, slots=True)
class RuleContext:
    """The facts that a rule reads beside the rounds.

    Attributes:
        temperature: of the target, 0 for greedy decoding.
        proposal: the law of the drafts.
        q_complete: whether the stored draft top-k holds all of q.
        draft: how q was made.
        recorded_rule: the rule whose residual tokens `node_residual_token` holds; None if it holds none.
        coins: gives `[N]` numbers in (0, 1) for a purpose; laws integrate them instead of drawing them.
        slot_confidence: whether `node_confidence` was fixed before the node's token was drawn.
    """

    temperature: float
    proposal: Proposal = Proposal.DETERMINISTIC
    q_complete: bool = True
    draft: DraftSampling = field(default_factory=DraftSampling)
    recorded_rule: str | None = None
    coins: CoinSource = derived_coins
    slot_confidence: bool = False

    @property
    def sampled(self) -> bool:
        """Whether drafts follow a law q and the target one that is not one-hot."""
        law = self.proposal is not Proposal.DETERMINISTIC and self.draft.temperature > 0
        return self.temperature > 0 and law


def context_from_header(header: Mapping[str, Any], temperature: float | None = None) -> RuleContext:
    """Return what a draft file's header fixes.

    Args:
        header: the decoded header.
        temperature: of one request, where it differs from the run's.
    """
    target = float(header["sampling"]["temperature"] if temperature is None else temperature)
    drafters = header["drafters"]
    rule = header["policy"].get("rule", {})
    return RuleContext(
        temperature=target,
        proposal=Proposal.of_union(Proposal(drafter["proposal"]) for drafter in drafters),
        q_complete=bool(header["q_complete"]),
        draft=_draft_sampling(drafters[0], target) if drafters else DraftSampling(),
        recorded_rule=rule.get("name"),
        slot_confidence=slot_confidence(drafters),
        coins=stored_coins if header["rng"]["scheme"] == STORED_COINS else derived_coins,
    )


def slot_confidence(drafters: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every drafter of a header states confidences before it draws."""
    return bool(drafters) and all(drafter.get("confidence") == "slot" for drafter in drafters)


def _draft_sampling(drafter: Mapping[str, Any], target: float) -> DraftSampling:
    own = drafter.get("draft_temperature")
    if drafter.get("draft_follows_target"):
        own = None
    top_p = drafter.get("draft_top_p")
    return DraftSampling(
        target if own is None else float(own),
        int(drafter.get("draft_top_k") or 0),
        1.0 if top_p is None else float(top_p),
    )
