"""Probe: all that a row says of the target at one slot tells of the same law."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe, at_most, differing


@dataclass(slots=True)
class TargetLaw(ExactProbe):
    """Every stored opinion of the target about one slot tells of the same law."""

    name = "target law"
    question = "p is the processed softmax of the logits of its own slot"
    nothing = "no slot holds top logits"
    power = (
        "every value off by more than 32-bit rounding (about 1e-4 of log p, nothing for logits and tokens)"
    )

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield nodes, choices and the draft's tokens against the slot's top logits."""
        rounds = evidence.rounds
        slots = np.arange(len(evidence.slot_round))
        best = rounds["slot_topk_token"][:, :1].astype(np.float64)
        if best.size:
            argmax = rounds["slot_argmax"].astype(np.float64)
            yield differing(evidence, "slot_argmax", "slot", slots, best[:, 0], argmax)
        yield from _logits(evidence, "slot_choice_logit", "slot", slots, slots, rounds["slot_choice"])
        nodes = np.arange(len(rounds.node_parent))
        slots_above = rounds.parent_slot
        yield from _logits(evidence, "node_target_logit", "node", nodes, slots_above, rounds["node_token"])
        yield self._log_p(evidence, nodes)
        yield from _draft_tokens(evidence)
        yield from _normalisers(evidence, slots)
        if not evidence.context.temperature:
            choice, argmax = (rounds[name].astype(np.float64) for name in ("slot_choice", "slot_argmax"))
            yield differing(evidence, "slot_choice at temperature 0", "slot", slots, argmax, choice)

    def _log_p(self, evidence: Evidence, nodes: I64) -> Compared:
        rounds = evidence.rounds
        logit, slots = rounds["node_target_logit"], rounds.parent_slot
        if evidence.context.temperature:
            log_p = logit / evidence.scale - evidence.lse[slots]
            expected = np.where(logit < rounds["slot_cutoff"][slots], -np.inf, log_p)
        else:
            expected = np.where(rounds["node_token"] == rounds["slot_choice"][slots], 0.0, -np.inf)
        return differing(
            evidence, "node_logp", "node", nodes, expected, rounds["node_logp"], evidence.slack(slots, logit)
        )


def _logits(
    evidence: Evidence, column: str, unit: str, places: I64, slots: I64, tokens: I64
) -> Iterator[Compared]:
    """A token among the stored top ones has their logit; any other has no larger one than the last."""
    found = evidence.rounds[column]
    top_token, top = evidence.rounds["slot_topk_token"][slots], evidence.rounds["slot_topk_logit"][slots]
    hit = top_token == tokens[:, None]
    among = hit.any(axis=1)
    exact = np.where(among, np.where(hit, top, 0.0).sum(axis=1), np.nan)
    slack = 1e-6 * (1.0 + np.abs(found))
    yield differing(evidence, column, unit, places, exact, found, slack)
    last = np.where(among, np.nan, top.min(axis=1, initial=np.inf))
    yield at_most(evidence, column, unit, places, last, found, slack)


def _draft_tokens(evidence: Evidence) -> Iterator[Compared]:
    """The target's logits of the draft's best tokens are those of its own best, where both name a token."""
    rounds = evidence.rounds
    slots = np.flatnonzero(rounds.expanded_row >= 0)
    if not len(slots):
        return
    tokens, logits = rounds["draft_topk_token"], rounds["draft_topk_target_logit"]
    for column in range(tokens.shape[1]):
        hit = rounds["slot_topk_token"][slots] == tokens[:, column, None]
        own = np.where(hit, rounds["slot_topk_logit"][slots], 0.0).sum(axis=1)
        expected = np.where(hit.any(axis=1), own, np.nan)
        slack = 1e-6 * (1.0 + np.abs(logits[:, column]))
        what = "draft_topk_target_logit"
        yield differing(evidence, what, "slot", slots, expected, logits[:, column], slack)


def _normalisers(evidence: Evidence, slots: I64) -> Iterator[Compared]:
    """Where nothing is cut, the sum over all tokens at one temperature bounds the sum at another.

    Of the tokens that are not stored the raw mass is known, no logit exceeds the last stored one, and their
    number is: the sum of exp(l/T) lies between two powers of what is known (Hölder).
    """
    temperature = evidence.context.temperature
    top = evidence.rounds["slot_topk_logit"]
    if not temperature or not top.shape[1]:
        return
    here = slots[~(evidence.rounds["slot_cutoff"] > -np.inf)]
    top, raw = top[here], evidence.rounds["slot_lse"][here]
    others = max(1, evidence.file.header.padded_vocab_size - top.shape[1])
    scaled = np.logaddexp.reduce(top / temperature, axis=1)
    whole = np.exp(raw - top[:, 0])
    rest, rounding = whole - np.exp(top - top[:, :1]).sum(axis=1), 1e-6 * whole * (4.0 + np.abs(raw))
    found = evidence.lse[here]
    slack = evidence.top_slack(here)

    def bounds(mass: F64) -> tuple[F64, F64]:
        log_mass = np.log(np.maximum(mass, 1e-300)) + top[:, 0]
        none_above_the_last = log_mass + top[:, -1] * (1.0 / temperature - 1.0)
        all_alike = log_mass / temperature + np.log(others) * (1.0 - 1.0 / temperature)
        return none_above_the_last, all_alike

    lowest, highest = np.minimum(*bounds(rest - rounding)), np.maximum(*bounds(rest + rounding))
    what = "slot_lse_p at the temperature in force"
    yield at_most(evidence, what, "slot", here, np.logaddexp(scaled, highest), found, slack)
    yield at_most(evidence, what, "slot", here, -np.logaddexp(scaled, lowest), -found, slack)
