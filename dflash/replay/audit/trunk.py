"""Probe: p and q along the trunk, by which law-exact walks go, are those of its own tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash.draftfile.summary import Kind
from dflash.policy.noise import F64, I64
from dflash.replay.audit.emission import trunks
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe, differing
from dflash.replay.audit.families import families


@dataclass(slots=True)
class Trunk(ExactProbe):
    """Looks the committed token after every dense anchor up in the laws at that anchor."""

    name = "trunk"
    question = "trunk_logp and trunk_logq are of the committed tokens"
    nothing = "no row is dense"
    power = "every log p, and the first log q of every row, off by more than 32-bit rounding (about 1e-4)"

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield log p and log q of the next committed token at every dense anchor."""
        rounds = evidence.rounds
        rows = np.flatnonzero(evidence.kind == Kind.DENSE)
        slots, tokens = rounds.root_slot[rows], _next(evidence, rows)
        log_p = evidence.table["trunk_logp"].combine_chunks().to_numpy(zero_copy_only=False)[rows]
        found: F64 = log_p.astype(np.float64)
        yield differing(
            evidence,
            "trunk_logp",
            "slot",
            slots,
            _log_p(evidence, slots, tokens),
            found,
            evidence.top_slack(slots),
        )
        drawn = families(evidence) if evidence.context.sampled and evidence.context.q_complete else None
        if drawn is None:
            return
        log_q = np.full(len(evidence.slot_round), np.nan)
        log_q[slots] = _first(evidence, "trunk_logq")[rows]
        token = np.full(len(evidence.slot_round), -1, dtype=np.int64)
        token[slots] = tokens
        hit = drawn.tokens == token[drawn.slots, None]
        expected = np.where(hit.any(axis=1), np.where(hit, drawn.log_law, -np.inf).max(axis=1), -np.inf)
        yield differing(
            evidence, "trunk_logq", "slot", drawn.slots, expected, log_q[drawn.slots], drawn.slack
        )


def _next(evidence: Evidence, rows: I64) -> I64:
    """The committed token after the anchor of each row, -1 at the trunk's end."""
    known = trunks(evidence)
    tokens = []
    for row in rows.tolist():
        trunk, place = known[int(evidence.owner[row])], int(evidence.rounds.anchor_position[row]) + 1
        tokens.append(int(trunk[place]) if place < len(trunk) else -1)
    return np.array(tokens, dtype=np.int64)


def _log_p(evidence: Evidence, slots: I64, tokens: I64) -> F64:
    """log p of a token at each slot; NaN where it is not among the stored ones."""
    rounds = evidence.rounds
    if not evidence.context.temperature:
        return np.where(rounds["slot_choice"][slots] == tokens, 0.0, -np.inf)
    hit = rounds["slot_topk_token"][slots] == tokens[:, None]
    with np.errstate(divide="ignore"):
        log_p = np.log(np.where(hit, evidence.top_p[slots], 0.0).sum(axis=1))
    return np.where(hit.any(axis=1), log_p, np.nan)


def _first(evidence: Evidence, column: str) -> F64:
    """The first element of each row's list, NaN where there is none."""
    lists = evidence.table[column].combine_chunks()
    counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    first = np.full(len(counts), np.nan)
    first[counts > 0] = values[(np.cumsum(counts) - counts)[counts > 0]]
    return first
