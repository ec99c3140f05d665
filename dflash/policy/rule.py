"""The base of every acceptance rule: what it states about itself, and `decide`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.decision import Decision
from dflash.policy.errors import ChainsOnly, MixedProposals
from dflash.policy.rounds import Rounds


class Exactness(StrEnum):
    """How a closed-loop replay of a rule relates to a live run of it."""

    PATH = "path-exact"
    LAW = "law-exact"
    REJUDGE = "re-judge"


class Lossless(StrEnum):
    """When the emitted tokens follow the target's own law."""

    ALWAYS = "always"
    GREEDY = "temperature 0"
    NEVER = "never"


class Rule(ABC):
    """An acceptance rule; its dataclass fields are its parameters.

    Attributes:
        name: in policies.
        summary: one sentence.
        lossless: for the default parameters.
        lossless_note: when and why, in words.
        exactness: the best class that the rule can have.
        exactness_note: when it has a lesser one.
        columns: draft-file columns that it may read.
        trees: whether it judges trees, beside chains.
        live: whether the engine can decide by it, not replay alone.
        preset: whether it is one engine's semantics, to the letter.
        processing: how that engine makes p and q of logits, held against what files store.
        temperature_zero: what it does at temperature 0.
        source: where the rule comes from.
    """

    __slots__ = ()
    name: ClassVar[str]
    summary: ClassVar[str]
    lossless: ClassVar[Lossless]
    lossless_note: ClassVar[str]
    exactness: ClassVar[Exactness]
    exactness_note: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    trees: ClassVar[bool] = True
    live: ClassVar[bool] = True
    preset: ClassVar[bool] = False
    processing: ClassVar[str | None] = None
    temperature_zero: ClassVar[str]
    source: ClassVar[str]

    @abstractmethod
    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round on its own, in float64, from the values as stored.

        Raises:
            MissingColumns: the rounds lack a column of `needs`.
            DflashError: what `refuse` raises.
        """

    def refuse(self, context: RuleContext, branching: bool) -> None:
        """Raise what no batch of this context can be judged for.

        Args:
            context: of the rounds.
            branching: whether any of them branches.

        Raises:
            ChainsOnly: a round branches, and the rule judges chains.
            MixedProposals: the rule takes q for the law of the drafts, which follow several.
        """
        if branching and not self.judges_trees(context):
            raise ChainsOnly(self.name)
        if context.proposal is Proposal.MIXED and self.judges_q(context):
            raise MixedProposals(self.name)

    def judges_trees(self, context: RuleContext) -> bool:
        """Return whether the rule judges trees in this context, beside chains."""
        return self.trees

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Return the columns that `decide` reads in this context."""
        return self.columns

    def is_lossless(self, context: RuleContext) -> bool:
        """Return whether emitted tokens follow the target's law in this context."""
        return self.lossless is Lossless.ALWAYS or (
            self.lossless is Lossless.GREEDY and context.temperature == 0
        )

    def runs_live(self) -> bool:
        """Return whether the engine can decide by the rule with these parameters."""
        return self.live

    def judges_q(self, context: RuleContext) -> bool:
        """Return whether the decision takes `node_logq` for the law that each draft was drawn from.

        Then a cut may not look at the token that it cuts.
        """
        return False

    def draws_residuals(self, context: RuleContext) -> bool:
        """Return whether a token that replaces a failed draft is drawn anew, instead of being the choice."""
        return self.judges_q(context)

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Return how a walk under this rule would relate to a live run.

        Args:
            context: of the recording.
            trees: whether any round branches.
        """
        return self.exactness

    def remark(self, context: RuleContext) -> str | None:
        """Return what a reader of the result must know in this context, if anything."""
        return None
