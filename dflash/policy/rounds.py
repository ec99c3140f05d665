"""A batch of rounds as flat arrays: what every rule, cut and replay works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.draftfile.view import whole
from dflash.policy import topology
from dflash.policy.errors import MissingColumns, NullColumn
from dflash.policy.flat import as_stored, flat_values, list_offsets
from dflash.policy.lazy import Columns
from dflash.policy.noise import F64, I64, U32, Purpose, chain_coins, coins
from dflash.policy.topology import Bool
from dflash.policy.trees import ALL, Array, Index, Trees

if TYPE_CHECKING:
    import pyarrow as pa


# what every round with a tree holds, so that a null is no token that matches nothing
CERTAIN = frozenset({"node_token", "slot_choice", "slot_argmax"})


class Per(StrEnum):
    """What one element of a column belongs to."""

    ROUND = "round"
    NODE = "node"
    SLOT = "slot"
    EXPANDED = "expanded slot"


def column_per(name: str) -> Per:
    """Return what an element of this draft-file column belongs to."""
    if name.startswith("node_"):
        return Per.NODE
    if name.startswith("slot_") or name == "draft_lse":
        return Per.SLOT
    return Per.EXPANDED if name.startswith("draft_topk_") else Per.ROUND


@dataclass(frozen=True, eq=False)
class Rounds:
    """R rounds with N nodes and N + R slots; what belongs to the trees alone is in `trees`.

    Attributes:
        trees: where nodes and slots stand.
        facts: `anchor_position` and `key`, see there.
        values: columns by draft-file name as stored (a null float is NaN, a null integer -1); top-k columns
            have one row of K a slot. Indexing the rounds gives the same, floats widened to float64.
        source: the rounds that these were selected from, and the nodes that were kept.
    """

    trees: Trees
    facts: Mapping[str, Array]
    values: Mapping[str, Array]
    source: tuple[Rounds, Index] | None = field(default=None, repr=False)

    @classmethod
    def build(
        cls, counts: I64, node_parent: Array, anchor_position: I64, key: U32, values: Mapping[str, Array]
    ) -> Rounds:
        """Assemble a batch from flat columns.

        Args:
            counts: `[R]` nodes of each round.
            node_parent: `[N]` within the round.
            anchor_position: `[R]`.
            key: `[R, 2]`.
            values: flat columns by name; top-k columns may be flat or `[rows, K]`.
        """
        facts: dict[str, Array] = {"anchor_position": anchor_position, "key": key}
        return cls._of(Trees(topology.offsets_of(counts), node_parent), facts, values)

    @classmethod
    def _of(cls, trees: Trees, facts: Mapping[str, Array], values: Mapping[str, Array]) -> Rounds:
        slots = len(trees.node_parent) + len(trees)

        def make(name: str) -> Array:
            return _shape(name, values[name], values, slots)

        return cls(trees, facts, Columns(values, make))

    @classmethod
    def from_row(
        cls, row: Mapping[str, Any], key: tuple[int, int], columns: Iterable[str] | None = None
    ) -> Rounds:
        """Take one round as it will be stored: scalars, and arrays by column name (float32, NaN = null)."""
        return cls.from_rows([row], [key], columns)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[str, Any]],
        keys: Sequence[tuple[int, int]],
        columns: Iterable[str] | None = None,
    ) -> Rounds:
        """Take several rounds, one a lane, with the same columns; all that rules read unless named."""
        parents = [as_stored(row["node_parent"]) for row in rows]
        names = [name for name in columns or rows[0] if column_per(name) is not Per.ROUND]
        values = {
            name: np.concatenate([as_stored(row[name]) for row in rows])
            for name in names
            if name != "node_parent" and all(row.get(name) is not None for row in rows)
        }
        return cls.build(
            np.array([len(parent) for parent in parents], dtype=np.int64),
            np.concatenate(parents),
            np.array([int(row["anchor_position"]) for row in rows], dtype=np.int64),
            np.array(keys, dtype=np.uint32).reshape(-1, 2),
            values,
        )

    @classmethod
    def from_table(
        cls, table: pa.Table, columns: Iterable[str] = (), keys: Callable[[], U32] | None = None
    ) -> Rounds:
        """Take rows of a draft file, each of which has a tree (live or dense).

        Args:
            table: with `node_parent`, `anchor_position` and the columns asked for.
            columns: node, slot and top-k columns to bring along.
            keys: gives the `[R, 2]` Philox keys of the rows' requests; None if no coins are drawn.

        Raises:
            MissingColumns: a column is not in the table.
        """
        wanted = {"node_parent", "anchor_position", *columns}
        if missing := wanted.difference(table.column_names):
            raise MissingColumns(missing)
        lists = whole(table.column("node_parent"))
        offsets = list_offsets(lists)
        trees = Trees(offsets, flat_values(lists, np.diff(offsets)))

        def make(name: str) -> Array:
            found, extra = whole(table.column(name)), {Per.NODE: 0, Per.SLOT: 1}.get(column_per(name))
            return flat_values(found, trees.counts, extra, name if name in CERTAIN else None)

        def fact(name: str) -> Array:
            if name == "key" and keys is not None:
                return keys()
            anchors: Array = whole(table.column(name)).to_numpy(zero_copy_only=False)
            return anchors.astype(np.int64)

        names = sorted(wanted - {"node_parent", "anchor_position"})
        known = ["anchor_position"] if keys is None else ["anchor_position", "key"]
        return cls._of(trees, Columns(known, fact), Columns(names, make))

    def __len__(self) -> int:
        return len(self.trees)

    def __getitem__(self, column: str) -> Array:
        if column not in self.values:
            raise MissingColumns([column])
        stored = self.values[column]
        if stored.dtype != np.float32:
            return stored
        if column not in self._wide:
            self._wide[column] = stored.astype(np.float64)
        return self._wide[column]

    @cached_property
    def _wide(self) -> dict[str, Array]:
        return {}

    @cached_property
    def _coins(self) -> dict[Purpose, F64]:
        return {}

    @cached_property
    def _equal(self) -> dict[int, tuple[Array, Bool]]:
        return {}

    @cached_property
    def _leading(self) -> dict[int, tuple[Array, I64]]:
        return {}

    def present(self, column: str) -> Array:
        """Return a float column that must hold a value everywhere.

        Raises:
            NullColumn: it does not.
        """
        values = self[column]
        stored = self.values[column]
        if len(stored) and np.isnan(stored.min()):
            raise NullColumn(column, "it is null in some of these rounds")
        return values

    @property
    def anchor_position(self) -> I64:
        """Position of each round's anchor; `[R]`."""
        return self.facts["anchor_position"]

    @property
    def key(self) -> U32:
        """Philox key of each round's request; `[R, 2]`.

        Raises:
            MissingColumns: no keys were given.
        """
        if "key" not in self.facts:
            raise MissingColumns(["request_info"])
        return self.facts["key"]

    @property
    def node_offsets(self) -> I64:
        """Where each round's nodes begin; `[R + 1]`."""
        return self.trees.node_offsets

    @property
    def node_parent(self) -> Array:
        """Index of each node's parent within the round, -1 = anchor; `[N]`."""
        return self.trees.node_parent

    @property
    def node_round(self) -> I64:
        """The round of each node; `[N]`."""
        return self.trees.node_round

    @property
    def node_depth(self) -> I64:
        """Depth of each node, 1-based; `[N]`."""
        return self.trees.node_depth

    @property
    def node_rank(self) -> I64:
        """0-based place of each node among its siblings as recorded; `[N]`."""
        return self.trees.node_rank

    @property
    def node_index(self) -> I64:
        """Index of each node within its round as recorded; `[N]`."""
        return self.trees.node_index

    @property
    def path_hash(self) -> U32:
        """Hash of each node's path as recorded; `[N]`."""
        return self.trees.path_hash

    @property
    def root_slot(self) -> I64:
        """Flat slot of each anchor; `[R]`."""
        return self.trees.root_slot

    @property
    def node_slot(self) -> I64:
        """Flat slot at each node; `[N]`."""
        return self.trees.node_slot

    @property
    def parent_slot(self) -> I64:
        """Flat slot at each node's parent, where the target judges the node; `[N]`."""
        return self.trees.parent_slot

    @property
    def parent_node(self) -> I64:
        """Flat index of each node's parent, -1 = anchor; `[N]`."""
        return self.trees.parent_node

    @property
    def expanded_row(self) -> I64:
        """Row of each slot in the `draft_topk_*` columns, -1 where the drafter did not expand; `[N + R]`."""
        expanded = ~np.isnan(self["draft_lse"])
        return np.where(expanded, np.cumsum(expanded) - 1, -1)

    def equal(self, slot_token: Array) -> Bool:
        """Return whether each node is the token of `slot_token`, `[N + R]`, at its parent; `[N]`."""
        if id(slot_token) not in self._equal:
            token = self["node_token"]
            same = token == self.trees.at_parent(slot_token)
            same &= token >= 0
            # kept along, so that no other array can take its identity
            self._equal[id(slot_token)] = (slot_token, same)
        return self._equal[id(slot_token)][1]

    def leading_equal(self, slot_token: Array) -> I64:
        """Return how many nodes of each chain, up to the first that is not, are their parent's `slot_token`.

        Args:
            slot_token: `[N + R]`.

        Returns:
            `[R]`.
        """
        if id(slot_token) not in self._leading:
            token = self["node_token"]
            if self.trees.width and token.min(initial=0) >= 0:
                found = self.trees.leading_equal(token, slot_token)
            else:
                found = self.trees.leading(self.equal(slot_token))
            self._leading[id(slot_token)] = (slot_token, found)
        return self._leading[id(slot_token)][1]

    def coins(self, purpose: Purpose) -> F64:
        """Return the coin of every node for a purpose, from the request's key; a cut keeps them; `[N]`."""
        if purpose not in self._coins:
            if self.trees.whole_chains:
                self._coins[purpose] = chain_coins(self.key, self.anchor_position, self.trees.width, purpose)
            elif self.source is not None:
                rounds, nodes = self.source
                self._coins[purpose] = rounds.coins(purpose)[nodes]
            else:
                places = (self.anchor_position, self.node_round, self.node_depth, self.path_hash)
                self._coins[purpose] = coins(self.key, *places, purpose)
        return self._coins[purpose]

    def with_values(self, values: Mapping[str, Array]) -> Rounds:
        """Return the same rounds with columns added or replaced."""

        def make(name: str) -> Array:
            return values[name] if name in values else self.values[name]

        return replace(self, values=Columns([*self.values, *values], make))

    def select(self, rows: I64, nodes: Index, counts: I64) -> Rounds:
        """Keep some rounds and some of their nodes.

        Args:
            rows: `[r]` rounds to keep, in the order wanted.
            nodes: flat nodes to keep, round after round in that order; with a node its ancestors.
            counts: `[r]` how many nodes each kept round has.
        """
        index = _Index(self, self.trees.keep(rows, nodes, counts), rows, nodes)
        values = Columns(self.values, lambda name: index.take(name, self.values[name]))
        facts = Columns(self.facts, lambda name: self.facts[name].take(rows, axis=0))
        return Rounds(index.kept, facts, values, source=(self, nodes))

    def take(self, rows: I64) -> Rounds:
        """Keep whole rounds, in the order given."""
        counts = self.trees.counts[rows]
        ordered = bool((rows[1:] > rows[:-1]).all())
        if ordered and len(rows) == len(self):
            return self
        if ordered and counts.sum() == len(self.node_parent):
            return self.select(rows, ALL, counts)
        return self.select(rows, topology.ragged_index(self.node_offsets, rows), counts)


class _Index:
    """Where the elements of kept rounds stand among those of all rounds."""

    def __init__(self, rounds: Rounds, kept: Trees, rows: I64, nodes: Index) -> None:
        self.rounds, self.kept = rounds, kept
        self._rows, self._nodes = rows, nodes
        self._of: dict[Per, Index | Bool] = {Per.ROUND: rows, Per.NODE: nodes}

    def take(self, name: str, values: Array) -> Array:
        """Return what a column holds of the kept rounds."""
        return self._pick(column_per(name), values)

    def _pick(self, per: Per, values: Array) -> Array:
        kept: Array = values[self._index(per)]
        return kept

    def _index(self, per: Per) -> Index | Bool:
        if per not in self._of:
            self._of[per] = self._slots() if per is Per.SLOT else self._expanded()
        return self._of[per]

    def _slots(self) -> Index | Bool:
        rows, nodes = self._rows, self._nodes
        if nodes is ALL:
            # rounds that are left out have no nodes, and one slot
            gone = np.ones(len(self.rounds), dtype=bool)
            gone[rows] = False
            offsets = self.rounds.trees.slot_offsets
            inside = np.ones(int(offsets[-1]), dtype=bool)
            inside[offsets[:-1][gone]] = False
            return inside
        slots = np.empty(len(self.kept.node_parent) + len(self.kept), dtype=np.int64)
        slots[self.kept.root_slot] = self.rounds.root_slot[rows]
        slots[self.kept.node_slot] = self.rounds.node_slot[nodes]
        return slots

    def _expanded(self) -> Index:
        expanded = self._pick(Per.SLOT, self.rounds.expanded_row)
        return expanded[expanded >= 0]


def _shape(name: str, column: Array, values: Mapping[str, Array], slots: int) -> Array:
    if "_topk_" not in name or column.ndim == 2:
        return column
    rows = slots
    if column_per(name) is Per.EXPANDED:
        if "draft_lse" not in values:
            raise MissingColumns(["draft_lse"])
        rows = int((~np.isnan(values["draft_lse"])).sum())
    return column.reshape(rows, len(column) // rows if rows else 0)
