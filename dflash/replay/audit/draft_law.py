"""Probe: q is what the stored draft logits make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash.policy.context import Proposal
from dflash.policy.noise import F64, I64
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe, differing
from dflash.replay.audit.families import Families, families, thinned

# log of the mass that earlier siblings may leave before its own rounding decides; and that rounding
_NOTHING_LEFT, _CANCELLED = -18.0, 1e-12


@dataclass(slots=True)
class DraftLaw(ExactProbe):
    """`node_logq` against the law that the stored draft logits make, earlier siblings taken out."""

    name = "draft law"
    question = "q is the law that the header says tokens were drawn from"
    nothing = "no node was drafted"
    power = "every log q off by more than 32-bit rounding (about 1e-4)"
    raw: int = 0
    drawn: int = 0

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why q cannot be computed; see `Probe.untestable`."""
        if evidence.context.proposal is Proposal.MIXED:
            return "drafters of a union drew from several laws, and no node says from which"
        if evidence.context.sampled and not evidence.context.q_complete:
            return "q is not stored whole: record with --draft-top-k at most --store-topk"
        return None

    def limited(self, evidence: Evidence) -> str | None:
        """Return whether cut rows are left out; see `Probe.limited`."""
        return thinned(evidence) if evidence.context.sampled else None

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield log q of every node, and its rank in q."""
        rounds = evidence.rounds
        nodes = np.arange(len(rounds.node_parent))
        log_q = rounds["node_logq"]
        if not evidence.context.sampled:
            yield differing(evidence, "node_logq of a deterministic draft", "node", nodes, 0.0 * log_q, log_q)
        yield from _ranks(evidence, nodes)
        if evidence.context.sampled and (found := families(evidence)) is not None:
            yield from self._laws(evidence, found)

    def _laws(self, evidence: Evidence, found: Families) -> Iterator[Compared]:
        raw_law = found.logits - evidence.rounds["draft_lse"][found.slots, None]
        left = found.log_law.copy()
        for sibling, nodes in enumerate(found.members.T):
            here = np.flatnonzero(nodes >= 0)
            log_left = np.logaddexp.reduce(left[here], axis=1)
            told = log_left > _NOTHING_LEFT
            here, log_left = here[told], log_left[told]
            expected = found.at(found.log_law, here, sibling) - log_left
            log_q = evidence.rounds["node_logq"][nodes[here]]
            slack = found.slack[here] + _CANCELLED * np.exp(-log_left)
            yield differing(evidence, "node_logq", "node", nodes[here], expected, log_q, slack)
            if sibling == 0:
                raw = found.at(raw_law, here, 0)
                self.raw += int((np.abs(raw - log_q) <= slack).sum())
                self.drawn += len(here)
            if not evidence.context.proposal.with_replacement:
                place = found.place[here, sibling]
                left[here[place >= 0], place[place >= 0]] = -np.inf

    def causes(self) -> tuple[str, ...]:
        """Return whether q is the softmax of raw logits; see `ExactProbe.causes`."""
        if self.drawn and self.raw > 0.9 * self.drawn:
            return ("node_logq is log softmax of the raw draft logits, before temperature, top-k and top-p",)
        return ()


def _ranks(evidence: Evidence, nodes: I64) -> Iterator[Compared]:
    """The token at a node's rank among the draft's best is the node's."""
    rounds = evidence.rounds
    row, rank = rounds.expanded_row[rounds.parent_slot], rounds["node_rank"].astype(np.int64)
    width = rounds["draft_topk_token"].shape[1] if (row >= 0).any() else 0
    here = nodes[(row >= 0) & (rank >= 0) & (rank < width)]
    if len(here):
        expected: F64 = rounds["draft_topk_token"][row[here], rank[here]].astype(np.float64)
        found = rounds["node_token"][here].astype(np.float64)
        yield differing(evidence, "token at node_rank", "node", here, expected, found)
