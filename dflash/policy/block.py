"""The rule `block`: accept the longest prefix whose joint ratio passes, replace from the scaled residual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.decision import Decision, end_at
from dflash.policy.errors import IndependentOnly
from dflash.policy.match import equal_to
from dflash.policy.noise import F64, I64, Purpose, race
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import COIN_TIE, replacements, unknown_residuals
from dflash.policy.topology import Bool, segment_max

SAMPLED_COLUMNS = ("node_logp", "node_logq", "node_residual_mass", "slot_choice", "node_residual_token")


@dataclass(frozen=True, slots=True)
class Block(Rule):
    """Accept up to the largest depth whose coin is within h, else draw from norm(max(0, P p - q))."""

    name = "block"
    summary = "accept the longest prefix that passes as a whole, else emit a draw from norm(max(0, P p - q))"
    lossless = Lossless.ALWAYS
    lossless_note = "emitted tokens follow p on chains of independent drafts"
    exactness = Exactness.PATH
    exactness_note = "on deterministic drafts; law-exact on sampled chains of fixed length"
    columns = ("node_token", *SAMPLED_COLUMNS)
    trees = False
    temperature_zero = "the same as greedy"
    source = "block verification, Sun et al., arXiv 2403.10444"

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`.

        Raises:
            ChainsOnly: a sampled tree branches.
            IndependentOnly: drafts share noise with the target or with each other's rounds.
        """
        self.refuse(context, rounds.trees.branching)
        if not context.sampled:
            return equal_to(rounds, rounds["slot_choice"])
        excess = context.coins(rounds, Purpose.BLOCK) - pass_probability(rounds, context.sampled)
        emitted = replacements(rounds, context.recorded_rule == self.name)
        return largest_passing(rounds, excess <= 0, emitted, excess)

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Tokens and choices on deterministic drafts, probabilities on sampled ones; see `Rule.needs`."""
        return SAMPLED_COLUMNS if context.sampled else ("node_token", "slot_choice")

    def refuse(self, context: RuleContext, branching: bool) -> None:
        """Sampled drafts must be independent; see `Rule.refuse`."""
        if context.sampled and context.proposal is not Proposal.INDEPENDENT:
            raise IndependentOnly(self.name, str(context.proposal))
        Rule.refuse(self, context, branching)

    def judges_trees(self, context: RuleContext) -> bool:
        """Deterministic ones, where it is match; see `Rule.judges_trees`."""
        return not context.sampled

    def judges_q(self, context: RuleContext) -> bool:
        """On sampled drafts; see `Rule.judges_q`."""
        return context.sampled

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Depends on how drafts were drawn; see `Rule.exactness_in`."""
        if not context.sampled:
            return Exactness.PATH
        return Exactness.REJUDGE if trees else Exactness.LAW

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return unknown_residuals(not context.sampled or context.recorded_rule == self.name)


def capped_ratios(rounds: Rounds) -> F64:
    """Return P = min(1, P(parent) p/q) at every node of a batch of chains; `[N]`."""
    ratio = np.exp(rounds.present("node_logp") - rounds.present("node_logq"))
    capped: F64 = np.minimum(1.0, ratio)
    counts, first = rounds.trees.counts, rounds.node_offsets[:-1]
    width = rounds.trees.width
    if width:
        columns, ratios = capped.reshape(-1, width), ratio.reshape(-1, width)
        for below in range(1, width):
            columns[:, below] = np.minimum(1.0, columns[:, below - 1] * ratios[:, below])
        return capped
    for below in range(1, int(counts.max(initial=0))):
        nodes = first[counts > below] + below
        capped[nodes] = np.minimum(1.0, capped[nodes - 1] * ratio[nodes])
    return capped


def pass_probability(rounds: Rounds, sampled: bool) -> F64:
    """Return h of every node of a chain: Z/(Z + 1 - P) with the mass Z of the next node, P at the last one.

    Args:
        rounds: chains.
        sampled: whether the masses are stored; for a one-hot q they follow from p.
    """
    capped = capped_ratios(rounds)
    if sampled:
        mass = rounds.present("node_residual_mass")[1:]
    else:
        mass = capped[:-1] * -np.expm1(rounds.present("node_logp")[1:])
    whole = mass + 1.0
    whole -= capped[:-1]
    h = np.ones(len(capped))
    np.divide(mass, whole, out=h[:-1], where=whole > 0)
    # what follows a last node belongs to another round
    last = rounds.node_offsets[1:][rounds.trees.counts > 0] - 1
    h[last] = capped[last]
    return h


def largest_passing(rounds: Rounds, ok: Bool, slot_token: I64, excess: F64) -> Decision:
    """Accept every chain down to its deepest `ok` node, whatever failed before it.

    Args:
        rounds: R chains with N nodes.
        ok: `[N]` whether the coin of each node is within h.
        slot_token: `[N + R]` bonus token of each slot.
        excess: `[N]` by how much each coin lies over h.
    """
    trees = rounds.trees
    deepest = segment_max(np.where(ok, rounds.node_depth, 0), rounds.node_offsets, 0)
    last = np.where(deepest > 0, rounds.node_offsets[:-1] + deepest - 1, -1)
    tie = np.zeros(len(rounds), dtype=bool)
    near = np.flatnonzero(np.abs(excess) < COIN_TIE)
    # coins before the accepted depth decide nothing
    owner = trees.round_of(near)
    tie[owner[near - rounds.node_offsets[owner] + 1 >= deepest[owner]]] = True
    return end_at(rounds, last, slot_token, tie)


def block_residual_token(capped: float, p: F64, q: F64, exponential: F64, choice: int) -> int:
    """Draw what is emitted where a block ends before a node.

    Args:
        capped: P at the node's parent, 1 at the anchor.
        p: `[V]` target law at the parent's slot; `q` the draft law there.
        exponential: `[V]` noise of purpose residual at the node's depth under its parent's path.
        choice: taken where the residual is empty, which only rounding can bring about.
    """
    token = race(exponential, np.maximum(0.0, capped * p - q))
    return token if token >= 0 else choice
