"""Everything that is added up over the aligned requests of two runs, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dflash.diff.acceptance import Acceptance
from dflash.diff.aligned import Aligned, align
from dflash.diff.changes import Elements
from dflash.diff.cut import CutShort
from dflash.diff.decisions import Decisions, list_elements
from dflash.diff.drafts import Drafts
from dflash.diff.features import Features, comparable_features, fingerprints
from dflash.diff.flat import Block
from dflash.diff.identity import RequestSettings, read_info
from dflash.diff.ledger import Ledger
from dflash.diff.pairing import pair_rows
from dflash.diff.probability import NEEDED, Probabilities
from dflash.diff.requests import PREFILL_COLUMNS, Requests
from dflash.diff.settings import Settings
from dflash.diff.shapes import Bounds
from dflash.diff.stream import Chunk
from dflash.diff.timing import Timing
from dflash.diff.tokens import Tokens
from dflash.diff.topk import compare_lists, join_drafts, join_slots
from dflash.diff.trunk import ENDLESS, Emission, part
from dflash.draftfile.columns import COLUMN
from dflash.draftfile.header import Header
from dflash.draftfile.view import Limits
from dflash.policy.noise import F64

_SLOT_LISTS = ("slot_topk_token", "slot_topk_logit")
_DRAFT_LISTS = ("draft_topk_token", "draft_topk_logit", "draft_topk_target_logit")
_TREES = ("node_token", "node_parent")
# handled by the sections themselves
_OWN = {*PREFILL_COLUMNS, *_SLOT_LISTS, *_DRAFT_LISTS, *_TREES, "accepted_nodes", "feature_fingerprint"}


@dataclass(slots=True)
class Comparison:
    """The sections on their way."""

    a: Header
    b: Header
    settings: Settings
    ledger: Ledger
    requests: Requests
    tokens: Tokens
    infos: RequestSettings = field(default_factory=RequestSettings)
    cut: CutShort = field(default_factory=CutShort)
    drafts: Drafts = field(default_factory=Drafts)
    probabilities: Probabilities = field(default_factory=Probabilities)
    features: Features = field(default_factory=Features)
    decisions: Decisions = field(default_factory=Decisions)
    acceptance: Acceptance = field(default_factory=Acceptance)
    timing: Timing = field(default_factory=Timing)

    def add(self, chunk: Chunk) -> None:
        """Take some aligned requests."""
        a, b = chunk
        heat = _temperatures(a, self.a), _temperatures(b, self.b)
        left, right = Emission.of(a), Emission.of(b)
        parting = part(a, b, left, right)
        pairs = pair_rows(a, b, parting, self.settings.on)
        self.requests.add(a, b, self.ledger)
        self.requests.count(a, b, pairs, parting)
        self.cut.add(a, b, pairs, parting)
        self.infos.add(a, b)
        self.tokens.add(a, b, left, right, parting, self._tie_tolerance(*heat))
        self.acceptance.add(a, b)
        self.decisions.add_ends(a, b)
        if self.settings.timing:
            self.timing.add(a, b)
        self._compare(align(a, b, pairs.take(pairs.comparable), heat))

    def _compare(self, aligned: Aligned) -> None:
        bounds = Bounds.of(self.a), Bounds.of(self.b)
        self.drafts.add(aligned, {name: self.ledger.get(name) for name in _TREES}, bounds)
        self.decisions.add(aligned, self.ledger.get("accepted_nodes"))
        self.probabilities.add_top1(aligned)
        self._compare_slot_lists(aligned)
        self._compare_draft_lists(aligned)
        self._compare_features(aligned)
        for name, change in self.ledger.changes.items():
            if name not in _OWN:
                change.add(elements_of(name, aligned), self.ledger.tolerance(name), aligned.locate)

    def _compare_slot_lists(self, aligned: Aligned) -> None:
        topk = [Limits.of(header).topk for header in (self.a, self.b)]
        if not all(topk) or not all(aligned.a.has(name) and aligned.b.has(name) for name in _SLOT_LISTS):
            return
        join = join_slots(aligned, *topk)
        token, logit = (self.ledger.get(name) for name in _SLOT_LISTS)
        law, tolerance = join.lse("slot_lse"), self.ledger.tolerance("slot_topk_logit")
        compare_lists(join, "slot_topk_logit", law, (token, logit), tolerance, aligned)
        if all(self.ledger.get(name) for name in NEEDED):
            self.probabilities.add(aligned, join, law)

    def _compare_draft_lists(self, aligned: Aligned) -> None:
        needed = (*_DRAFT_LISTS[:2], "draft_lse")
        if not all(aligned.a.has(name) and aligned.b.has(name) for name in needed):
            return
        join = join_drafts(aligned)
        token, logit, target = (self.ledger.get(name) for name in _DRAFT_LISTS)
        tolerance = self.ledger.tolerance("draft_topk_logit")
        compare_lists(join, "draft_topk_logit", join.lse("draft_lse"), (token, logit), tolerance, aligned)
        if target is not None:
            name = "draft_topk_target_logit"
            law, tolerance = join.lse("slot_lse"), self.ledger.tolerance(name)
            compare_lists(join, name, law, (None, target), tolerance, aligned)

    def _compare_features(self, aligned: Aligned) -> None:
        change = self.ledger.get("feature_fingerprint")
        if change is not None and comparable_features(self.a, self.b) is None:
            found = fingerprints(aligned)
            self.features.add(found)
            change.add(found, self.ledger.tolerance("feature_fingerprint"), aligned.locate)

    def _tie_tolerance(self, heat_a: F64, heat_b: F64) -> F64:
        """What counts as a near-tie of `slot_gap`, request by request: raw logits at T = 0, over T above."""
        widest = max(self.a.tie_tolerance, self.b.tie_tolerance)
        coldest = np.minimum(heat_a, heat_b)
        return widest / np.where(coldest > 0, coldest, 1.0)


def elements_of(name: str, aligned: Aligned) -> Elements:
    """Read a column by what its values belong to."""
    if name not in COLUMN:
        return list_elements(aligned, name, aligned.rows.same_kind)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(aligned)
    per = COLUMN[name].per
    if per == "node":
        return aligned.per_node(name)
    if per == "slot":
        return aligned.per_slot(name)
    return aligned.per_row(name, None if name == "anchor_token" else aligned.rows.same_kind)


_SPECIAL: Mapping[str, Callable[[Aligned], Elements]] = {
    "trunk_logp": lambda aligned: aligned.per_row("trunk_logp", aligned.rows.room > 1),
    "trunk_logq": lambda aligned: aligned.prefix("trunk_logq", aligned.rows.room - 1),
    "branch_draft_us": lambda aligned: aligned.prefix(
        "branch_draft_us", np.full_like(aligned.rows.a, ENDLESS)
    ),
    "feature_values": lambda aligned: aligned.per_row("feature_values", aligned.same_commit),
    "feature_scale": lambda aligned: aligned.prefix(
        "feature_scale", np.where(aligned.same_commit, ENDLESS, 0)
    ),
}


def _temperatures(block: Block, header: Header) -> F64:
    """The target's temperature of every request."""
    found = []
    for text in block.flat("request_info").values[block.starts]:
        info = read_info(text)
        sampling = info.get("sampling") if isinstance(info, dict) else None
        own = sampling.get("temperature") if isinstance(sampling, dict) else None
        found.append(header.temperature if own is None else float(own))
    return np.array(found, dtype=np.float64)
