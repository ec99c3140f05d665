"""Probe: drafted tokens are the winners of their races; if they are not, what they look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dflash.policy.context import Proposal
from dflash.policy.noise import F64, I64, Purpose
from dflash.policy.topology import Bool
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe
from dflash.replay.audit.families import Families, families, log_softmax, thinned
from dflash.replay.audit.races import NO_KEY, anchor_race, has_noise, target_race

_EXPLAINED = 0.9


@dataclass(slots=True)
class Draws(ExactProbe):
    """Runs every race for drafted tokens again, and tells what explains those that come out otherwise."""

    name = "draws"
    question = "every drafted token won the race of its law on its own noise"
    nothing = "no draft has stored draft logits"
    power = "every draw that another law or other noise would have decided otherwise"
    explained: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why the races cannot be run; see `Probe.untestable`."""
        context = evidence.context
        if len(evidence.file.header.drafters) > 1:
            return "drafts of several drafters stand side by side in one tree"
        if not context.sampled:
            return None
        if not context.q_complete:
            return "q is not stored whole: record with --draft-top-k at most --store-topk"
        if context.proposal is Proposal.IID:
            return "independent draws with replacement have no agreed noise"
        return None if has_noise(evidence) else NO_KEY

    def limited(self, evidence: Evidence) -> str | None:
        """Return whether cut rows are left out; see `Probe.limited`."""
        return thinned(evidence)

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield the winners of every family, sibling by sibling."""
        found = families(evidence)
        if found is None:
            return
        kind = evidence.context.proposal if evidence.context.sampled else Proposal.DETERMINISTIC
        lost = _lost(found, _score(evidence, found, kind, found.log_law))
        members = found.members >= 0
        wrong: Bool = lost.behind > 0
        near: Bool = lost.behind <= found.slack[:, None]
        nodes = found.members[members]
        row, index = evidence.rounds.node_round[nodes], evidence.rounds.node_index[nodes]
        drawn = evidence.rounds["node_token"][nodes].astype(np.int64)
        what = "drafted token"
        yield Compared(what, "node", row, index, wrong[members], near[members], lost.winner[members], drawn)
        bad = (wrong & ~near & members).any(axis=1)
        self._explain(evidence, found.take(np.flatnonzero(bad)))

    def _explain(self, evidence: Evidence, bad: Families) -> None:
        """Try other laws and other noise on the families that were lost."""
        if not len(bad.slots) or not evidence.context.sampled:
            return
        self.lost += len(bad.slots)
        raw = log_softmax(bad.logits)
        kind = evidence.context.proposal
        other = Proposal.INDEPENDENT if kind is Proposal.SHARED else Proposal.SHARED
        whose = "noise of their own" if kind is Proposal.SHARED else "the noise of the target's choices"
        for words, proposal, law in (
            (f"drafts are drawn on {whose}, though the header calls them {kind}", other, bad.log_law),
            ("drafts are drawn from the softmax of the raw draft logits", kind, raw),
            (f"drafts are drawn from the softmax of the raw draft logits, on {whose}", other, raw),
            ("drafts are the largest draft logits, not draws", Proposal.DETERMINISTIC, bad.logits),
        ):
            lost = _lost(bad, _score(evidence, bad, proposal, law))
            self.explained[words] += int((lost.behind.max(axis=1) <= bad.slack).sum())

    def causes(self) -> tuple[str, ...]:
        """Return what explains nearly all draws that were lost; see `ExactProbe.causes`."""
        return tuple(
            words for words, count in self.explained.items() if count >= _EXPLAINED * max(1, self.lost)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Lost:
    """By how much each sibling lies behind the token that should have won its place, and that token."""

    behind: F64
    winner: I64


def _score(evidence: Evidence, found: Families, kind: Proposal, log_q: F64) -> F64:
    """Scores `[G, K]` of the draft's best tokens in the race of a kind of proposal."""
    if kind is Proposal.DETERMINISTIC:
        return log_q
    if kind is Proposal.SHARED:
        return np.asarray(log_q - target_race(evidence, found.slots, found.tokens))
    return np.asarray(log_q - anchor_race(evidence, Purpose.DRAFT, found.slots, found.tokens))


def _lost(found: Families, score: F64) -> _Lost:
    """Give each place among the siblings to the best token that is left."""
    families = np.arange(len(score))
    left = score.copy()
    behind = np.zeros(found.members.shape)
    winner = np.full(found.members.shape, -1, dtype=np.int64)
    for sibling in range(found.members.shape[1]):
        best = left.argmax(axis=1)
        place = found.place[:, sibling]
        own = np.where(place >= 0, left[families, np.maximum(place, 0)], -np.inf)
        with np.errstate(invalid="ignore"):
            lag = np.maximum(0.0, left.max(axis=1) - own)
        there = found.members[:, sibling] >= 0
        behind[:, sibling] = np.where(there, np.where(np.isneginf(own), np.inf, lag), 0.0)
        winner[:, sibling] = found.tokens[families, best]
        left[families[place >= 0], place[place >= 0]] = -np.inf
    return _Lost(behind, winner)
