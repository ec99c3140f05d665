"""Recorded drafts under another target temperature, as far as the stored top logits tell p there.

With a = 1/T and M the sum of e^l over the n tokens that were not stored, none of which is above the lowest
stored logit l, their part of the normaliser lies between n^(1 - a) M^a and M e^((a - 1) l).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.policy.block import Block
from dflash.policy.noise import F64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.siblings import SIBLING_COLUMNS
from dflash.replay.batch import Part
from dflash.replay.errors import TemperatureUnknown, TooLittleMass

TEMPERED_COLUMNS = ("node_target_logit", "slot_topk_logit", "slot_lse", "slot_lse_p", "slot_cutoff")
MOST_UNKNOWN = 0.01

_KNOWN = frozenset(
    (
        *("node_token", "node_logp", "node_logq", "node_residual_token", "slot_choice"),
        *SIBLING_COLUMNS,
        *TEMPERED_COLUMNS,
    )
)


def require_tempered(policies: Sequence[Policy], file: DraftFile) -> None:
    """Refuse policies that read what holds at the recorded temperature alone.

    Raises:
        TemperatureUnknown: a rule does, or the target cut its tokens.
    """
    sampling = file.header.sampling
    for policy in policies:
        if sampling.get("top_k") or (sampling.get("top_p") or 1.0) < 1.0:
            raise TemperatureUnknown(policy.rule.name, "what top-k or top-p kept")
        columns = sorted(set(policy.rule.columns) - _KNOWN)
        if isinstance(policy.rule, Block) or columns:
            raise TemperatureUnknown(policy.rule.name, ", ".join(columns))


def tempered(part: Part, temperature: float, vocabulary: int) -> Part:
    """Return the rounds as the target would judge them at a temperature above 0; the drafts stay.

    Args:
        part: with `TEMPERED_COLUMNS`.
        vocabulary: tokens that have a logit.

    Raises:
        TooLittleMass: more than `MOST_UNKNOWN` of p may lie outside of the stored top logits at some slot.
    """
    if temperature == part.context.temperature:
        return part
    rounds = part.rounds
    normaliser = _normaliser(rounds, temperature, vocabulary)
    values = {
        "slot_lse_p": normaliser,
        "slot_cutoff": np.full(len(normaliser), -np.inf),
        "node_logp": rounds.present("node_target_logit") / temperature - normaliser[rounds.parent_slot],
    }
    return part._replace(
        rounds=rounds.with_values(values), context=replace(part.context, temperature=temperature)
    )


def _normaliser(rounds: Rounds, temperature: float, vocabulary: int) -> F64:
    """Log of the sum of e^(l/T) at every slot, what is unknown of it taken from the middle; `[N + R]`."""
    top, total = rounds.present("slot_topk_logit"), rounds.present("slot_lse")
    power, topk = 1.0 / temperature, top.shape[1]
    left = np.log(max(1, vocabulary - topk))
    with np.errstate(divide="ignore"):
        rest = total + np.log(np.maximum(0.0, -np.expm1(np.logaddexp.reduce(top, axis=1) - total)))
    ends = ((1.0 - power) * left + power * rest, rest + (power - 1.0) * top.min(axis=1, initial=np.inf))
    known = np.logaddexp.reduce(top * power, axis=1)
    low, high = (np.logaddexp(known, end(*ends)) for end in (np.minimum, np.maximum))
    worst = float(-np.expm1((low - high)[rounds.parent_slot].min(initial=0.0)))
    if worst > MOST_UNKNOWN:
        raise TooLittleMass(temperature, worst, MOST_UNKNOWN, topk)
    return np.asarray(np.logaddexp(low, high) - np.log(2.0))
