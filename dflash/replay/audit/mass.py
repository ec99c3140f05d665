"""Probe: stored probabilities are probabilities, none over 1 and no law with more mass than 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.replay.audit.evidence import ROUNDING, Evidence
from dflash.replay.audit.exact import Compared, ExactProbe, at_most, differing


@dataclass(slots=True)
class Mass(ExactProbe):
    """Sums what is stored of each law."""

    name = "mass"
    question = "no probability is over 1, and no law has more mass than 1"
    nothing = "no row holds a probability"
    power = "every place where 1 is exceeded by more than 32-bit rounding (about 1e-4)"

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield sums and single values; see `ExactProbe.compare`."""
        rounds = evidence.rounds
        slots, nodes = np.arange(len(evidence.slot_round)), np.arange(len(rounds.node_parent))
        slack = evidence.top_slack(slots)
        yield _sums(evidence, "p of the top tokens", slots, evidence.top_p, slack)
        raw = np.exp(rounds["slot_topk_logit"] - rounds["slot_lse"][:, None])
        yield _sums(evidence, "softmax of the top raw logits", slots, raw, slack)
        yield _whole(evidence, slots, slack)
        yield from _drafts(evidence)
        ceiling = np.zeros(len(nodes))
        yield at_most(evidence, "node_logp", "node", nodes, ceiling, rounds["node_logp"], 1e-5)
        yield at_most(evidence, "node_logq", "node", nodes, ceiling, rounds["node_logq"], 1e-5)
        yield at_most(
            evidence, "node_residual_mass", "node", nodes, ceiling + 1.0, rounds["node_residual_mass"], 1e-4
        )
        yield _above(evidence, nodes)


def _sums(evidence: Evidence, what: str, slots: I64, law: F64, slack: F64) -> Compared:
    total = law.sum(axis=1)
    return at_most(evidence, what, "slot", slots, np.ones(len(slots)), total, slack)


def _whole(evidence: Evidence, slots: I64, slack: F64) -> Compared:
    """Where every kept token is among the stored ones, they are the whole law."""
    cutoff, last = (
        evidence.rounds["slot_cutoff"],
        evidence.rounds["slot_topk_logit"].min(axis=1, initial=np.inf),
    )
    here = (
        np.flatnonzero(np.isfinite(cutoff) & (cutoff > last)) if evidence.context.temperature else slots[:0]
    )
    total = evidence.top_p[here].sum(axis=1)
    return differing(evidence, "p of all kept tokens", "slot", here, np.ones(len(here)), total, slack[here])


def _drafts(evidence: Evidence) -> Iterator[Compared]:
    lse = evidence.rounds["draft_lse"]
    slots = np.flatnonzero(~np.isnan(lse))
    if len(slots):
        logits = evidence.rounds["draft_topk_logit"]
        raw = np.exp(logits - lse[slots, None])
        slack = 1e-4 + ROUNDING * np.abs(logits).max(axis=1, initial=0.0)
        yield _sums(evidence, "softmax of the draft's top raw logits", slots, raw, slack)


def _above(evidence: Evidence, nodes: I64) -> Compared:
    """A node and all likelier tokens."""
    rounds = evidence.rounds
    logit = rounds["node_target_logit"]
    own = evidence.probability(rounds.parent_slot, logit[:, None])[:, 0]
    total = own + rounds["node_mass_above"]
    what = "node_mass_above and the node's own p"
    slack = evidence.slack(rounds.parent_slot, logit)
    return at_most(evidence, what, "node", nodes, np.ones(len(nodes)), total, slack)
