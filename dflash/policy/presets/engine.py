"""What the presets share: coins on an engine's grid, the test of a chain by p/q, and how exact that is."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dflash.policy.block import largest_passing, pass_probability
from dflash.policy.context import Proposal, RuleContext, stored_coins
from dflash.policy.decision import Decision
from dflash.policy.errors import IndependentOnly
from dflash.policy.noise import F64, Purpose
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness, Lossless, Rule
from dflash.policy.sequential import first_passing, replacements, residuals_known, unknown_residuals
from dflash.policy.topology import Bool, along_path

CHAIN_COLUMNS = ("node_token", "node_logp", "node_logq", "slot_choice", "node_residual_token")
GREEDY_COLUMNS = ("node_token", "slot_argmax")
_GRID = 2.0**24


class Preset(Rule):
    """A rule with one engine's inequalities, coin range and tie-break.

    Its coins are the engine's own where the file stores them, else those of this project, rounded to the
    engine's range. Either way a live run of the engine draws others, so that only re-judging is exact.
    """

    __slots__ = ()
    preset: ClassVar[bool] = True
    live: ClassVar[bool] = False
    lossless: ClassVar[Lossless] = Lossless.ALWAYS
    exactness: ClassVar[Exactness] = Exactness.PATH
    exactness_note: ClassVar[str] = (
        "at temperature 0; re-judge above it, where the engine draws its own coins"
    )

    def tosses(self, context: RuleContext) -> bool:
        """Return whether coins decide, not equality with the target's token."""
        return context.temperature > 0

    def draws_residuals(self, context: RuleContext) -> bool:
        """Where coins decide; see `Rule.draws_residuals`."""
        return self.tosses(context)

    def judges_q(self, context: RuleContext) -> bool:
        """Where coins decide on sampled drafts; see `Rule.judges_q`."""
        return self.tosses(context) and context.sampled

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Path-exact without coins; see `Rule.exactness_in`."""
        return Exactness.REJUDGE if self.tosses(context) else Exactness.PATH

    def remark(self, context: RuleContext) -> str | None:
        """Say where emitted tokens are unknown; see `Rule.remark`."""
        return unknown_residuals(not self.tosses(context) or residuals_known(self.name, context))


def half_open_coins(rounds: Rounds, context: RuleContext, purpose: Purpose = Purpose.ACCEPT) -> F64:
    """Return coins as a float32 generator of [0, 1) has them, 24 bits each; `[N]`."""
    coin = context.coins(rounds, purpose)
    return coin if context.coins is stored_coins else np.floor(coin * _GRID) / _GRID


def half_closed_coins(rounds: Rounds, context: RuleContext, purpose: Purpose = Purpose.ACCEPT) -> F64:
    """Return coins as a float32 generator of (0, 1] has them, 24 bits each; `[N]`."""
    coin = context.coins(rounds, purpose)
    return coin if context.coins is stored_coins else (np.floor(coin * _GRID) + 1.0) / _GRID


def refuse_shared(rule: str, context: RuleContext, blocks: bool) -> None:
    """Raise `IndependentOnly` where whole blocks of drafts would be verified that are not independent."""
    if blocks and context.sampled and context.proposal is not Proposal.INDEPENDENT:
        raise IndependentOnly(rule, str(context.proposal))


def chain(rule: str, rounds: Rounds, context: RuleContext, ok: Bool, excess: F64) -> Decision:
    """Accept a chain while its drafts are `ok`, pads never, and replace from norm(max(0, p - q))."""
    emitted = replacements(rounds, residuals_known(rule, context))
    return first_passing(rounds, ok & (rounds["node_token"] >= 0), emitted, excess)


def block(rule: str, rounds: Rounds, context: RuleContext, coin: F64, *, strict: bool) -> Decision:
    """Verify whole blocks, with coins within h or, if `strict`, below it."""
    excess = coin - pass_probability(rounds, context.sampled)
    drafted = along_path(rounds.parent_node, rounds["node_token"] >= 0)
    ok = (excess < 0 if strict else excess <= 0) & drafted
    return largest_passing(rounds, ok, replacements(rounds, _block_known(rule, context)), excess)


def block_remark(rule: Rule, context: RuleContext) -> str | None:
    """Say where the tokens are unknown that replace a draft after whole blocks were verified."""
    return unknown_residuals(context.temperature == 0 or _block_known(rule.name, context))


def _block_known(rule: str, context: RuleContext) -> bool:
    return context.recorded_rule == rule or (context.sampled and context.recorded_rule == "block")
