"""Rows, nodes and slots of two blocks that stand for the same thing, and how columns are read by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dflash.diff.changes import Elements, Where
from dflash.diff.flat import Block, Values
from dflash.diff.matching import NodePairs, equal_lists, match_nodes, spread_rows
from dflash.diff.pairing import RowPairs
from dflash.draftfile.columns import COLUMN
from dflash.draftfile.summary import Kind
from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool

FINGERPRINT = 16


@dataclass(frozen=True, slots=True)
class Aligned:
    """Pairs of rows with the same context, and within them the nodes with the same path.

    Attributes:
        slot_pair: `[S]` the pair of each slot that both sides have.
        slot_a, slot_b: `[S]` its index in its row.
        same_commit: `[P]` whether the rows commit the same tokens.
        temperature_a, temperature_b: `[P]` of the rows' requests.
    """

    a: Block
    b: Block
    rows: RowPairs
    nodes: NodePairs
    slot_pair: I64
    slot_a: I64
    slot_b: I64
    same_commit: Bool
    temperature_a: F64
    temperature_b: F64

    def locate(self, pair: int) -> Where:
        """Name the rows of a pair."""
        a, b = int(self.rows.a[pair]), int(self.rows.b[pair])
        return Where(
            str(self.a.ids()[a]),
            str(self.b.ids()[b]),
            Kind(int(self.a.scalar("kind")[a])).name.lower().replace("_", " "),
            int(self.a.scalar("round")[a]),
            int(self.a.scalar("anchor_position")[a]),
        )

    def per_row(self, name: str, only: Bool | None = None) -> Elements:
        """A column with one value a row."""
        pair = np.arange(len(self.rows.a)) if only is None else np.flatnonzero(only)
        return self._elements(name, pair, np.zeros_like(pair), np.zeros_like(pair))

    def per_node(self, name: str) -> Elements:
        """A column with one value a node."""
        found = self._elements(name, self.nodes.pair, self.nodes.a, self.nodes.b)
        return self._as_law(found, "slot_lse", *self.parents()) if name == "node_target_logit" else found

    def per_slot(self, name: str) -> Elements:
        """A column with one value a slot."""
        found = self._elements(name, self.slot_pair, self.slot_a, self.slot_b)
        if name not in LAW_OF_SLOT:
            return found
        found = self._as_law(found, LAW_OF_SLOT[name], self.slot_a, self.slot_b)
        if name == "slot_lse_p" and found.law_a is not None and found.law_b is not None:
            heat_a, heat_b = self.temperature_a[found.pair], self.temperature_b[found.pair]
            found = found._replace(law_a=_over(found.law_a, heat_a), law_b=_over(found.law_b, heat_b))
        return found

    def prefix(self, name: str, limit: I64) -> Elements:
        """A column of lists: their elements, up to the shorter list and up to `limit` of each pair."""
        lengths = [
            np.maximum(side.flat(name).lengths[rows], 0)
            for side, rows in ((self.a, self.rows.a), (self.b, self.rows.b))
        ]
        # a list beside none counts as elements that changed, lists of other lengths do not
        both = np.where(np.minimum(*lengths) == 0, np.maximum(*lengths), np.minimum(*lengths))
        pair, place = spread_rows(np.minimum(both, np.maximum(limit, 0)))
        return self._elements(name, pair, place, place)

    def parents(self) -> tuple[I64, I64]:
        """The slot, in its row, that each node was drawn from, on either side; `[M]`."""
        found = []
        sides = ((self.a, self.rows.a, self.nodes.a), (self.b, self.rows.b, self.nodes.b))
        for block, rows, node in sides:
            parent = block.flat("node_parent").take(rows[self.nodes.pair], node).value
            found.append(parent.astype(np.int64) + 1)
        return found[0], found[1]

    def _as_law(self, found: Elements, lse: str, slot_a: I64, slot_b: I64) -> Elements:
        if not (self.a.has(lse) and self.b.has(lse)):
            return found
        beside = self._elements(lse, found.pair, slot_a, slot_b)
        return found._replace(law_a=_filled(beside.a), law_b=_filled(beside.b))

    def _elements(self, name: str, pair: I64, place_a: I64, place_b: I64) -> Elements:
        a = self.a.flat(name).take(self.rows.a[pair], place_a)
        return Elements(pair, a, self.b.flat(name).take(self.rows.b[pair], place_b))


# raw logits and what turns them into log p
LAW_OF_SLOT: Mapping[str, str] = {
    "slot_choice_logit": "slot_lse",
    "slot_cutoff": "slot_lse",
    "slot_lse": "slot_lse",
    "slot_lse_p": "slot_lse",
    "draft_lse": "draft_lse",
}
RAW = (*LAW_OF_SLOT, "node_target_logit", "slot_topk_token", "slot_topk_logit")
RAW += ("draft_topk_token", "draft_topk_logit", "draft_topk_target_logit")


def align(a: Block, b: Block, rows: RowPairs, heat: tuple[F64, F64]) -> Aligned:
    """Align what the pairs of rows hold.

    Args:
        rows: comparable pairs only.
        heat: temperature of every request on either side.
    """
    nodes = match_nodes(a, rows.a, b, rows.b)
    everyone = np.arange(len(rows.a))
    pair = np.concatenate((everyone, nodes.pair))
    slot_a, slot_b = (np.concatenate((np.zeros_like(everyone), place + 1)) for place in (nodes.a, nodes.b))
    order = np.argsort(pair, kind="stable")
    commit = np.asarray(a.flat("emitted").take(rows.a, np.zeros_like(everyone)).value, np.int64)
    other = np.asarray(b.flat("emitted").take(rows.b, np.zeros_like(everyone)).value, np.int64)
    same = (commit == other) & (commit <= rows.room)
    same &= equal_lists(a.flat("node_token"), rows.a, b.flat("node_token"), rows.b)
    same &= equal_lists(a.flat("accepted_nodes"), rows.a, b.flat("accepted_nodes"), rows.b)
    return Aligned(
        a, b, rows, nodes, pair[order], slot_a[order], slot_b[order], same,
        heat[0][rows.owner], heat[1][rows.owner],
    )  # fmt: skip


def section_of(name: str) -> str:
    """The section in which a column's changes are told."""
    if name not in COLUMN:
        return "schema"
    return _SECTION.get(name, _SECTION_OF_GROUP[COLUMN[name].group])


_SECTION_OF_GROUP: Mapping[str, str] = {
    "identity": "requests",
    "tree": "drafts",
    "target": "probabilities",
    "dense": "probabilities",
    "decision": "decisions",
    "features": "features",
    "volatile": "timing",
}
_SECTION: Mapping[str, str] = {
    "request_info": "identity",
    "anchor_token": "tokens",
    "draft_topk_target_logit": "probabilities",
    "trunk_logq": "drafts",
    "off_trajectory": "decisions",
}


def _filled(values: Values) -> F64:
    return np.where(values.valid, values.value.astype(np.float64), np.nan)


def _over(lse: F64, temperature: F64) -> F64:
    return lse / np.where(temperature > 0, temperature, np.nan)
