"""A batch of rounds as flat arrays: what every rule, cut and replay works on.

anchor ── 0 ── 1        n = 3 nodes in one round, node_parent = [-1, 0, -1]
      └── 2             n + 1 slots: slot 0 at the anchor, slot i + 1 at node i
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dflash.policy import topology
from dflash.policy.errors import MissingColumns, NullColumn
from dflash.policy.noise import I64, U32, path_hashes

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]


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


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """R rounds with N nodes and N + R slots; round r owns slots `node_offsets[r] + r` onward.

    Attributes:
        node_offsets: `[R + 1]` where each round's nodes begin.
        node_parent: `[N]` index of the parent within the round, -1 = anchor.
        node_round: `[N]` the round of each node.
        node_depth: `[N]` 1-based.
        node_rank: `[N]` 0-based place among the siblings of the tree *as recorded*.
        node_index: `[N]` index within the round as recorded.
        path_hash: `[N]` hash of the path as recorded; a cut keeps it, and with it every node's noise.
        anchor_position: `[R]`.
        key: `[R, 2]` Philox key of the round's request.
        values: columns by draft-file name, floats as stored widened to float64 (null = NaN), integers as
            int64 (null = -1); top-k columns have one row of K a slot.
    """

    node_offsets: I64
    node_parent: I64
    node_round: I64
    node_depth: I64
    node_rank: I64
    node_index: I64
    path_hash: U32
    anchor_position: I64
    key: U32
    values: Mapping[str, Array]

    @classmethod
    def build(
        cls, counts: I64, node_parent: I64, anchor_position: I64, key: U32, values: Mapping[str, Array]
    ) -> Rounds:
        """Assemble a batch from flat columns.

        Args:
            counts: `[R]` nodes of each round.
            node_parent: `[N]` within the round.
            anchor_position: `[R]`.
            key: `[R, 2]`.
            values: flat columns by name; top-k columns may be flat or `[rows, K]`.
        """
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        node_round = np.repeat(np.arange(len(counts)), counts)
        parent_node = np.where(node_parent >= 0, node_parent + offsets[node_round], -1)
        depth = topology.depths(parent_node)
        rank = topology.sibling_ranks(node_parent + 1 + offsets[node_round] + node_round)
        hashes = path_hashes(parent_node, rank, depth)
        slots = len(node_parent) + len(counts)
        shaped = {name: _shape(name, flat, values, slots) for name, flat in values.items()}
        index = np.arange(len(node_parent)) - offsets[node_round]
        return cls(offsets, node_parent, node_round, depth, rank, index, hashes, anchor_position, key, shaped)

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
        parents = [_widen(row["node_parent"]) for row in rows]
        names = [name for name in columns or rows[0] if column_per(name) is not Per.ROUND]
        values = {
            name: np.concatenate([_widen(row[name]) for row in rows])
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
    def from_table(cls, table: pa.Table, keys: U32, columns: Iterable[str] = ()) -> Rounds:
        """Take rows of a draft file, each of which has a tree (live or dense).

        Args:
            table: with `node_parent`, `anchor_position` and the columns asked for.
            keys: `[R, 2]` Philox key of each row's request.
            columns: node, slot and top-k columns to bring along.

        Raises:
            MissingColumns: a column is not in the table.
        """
        wanted = {"node_parent", "anchor_position", *columns}
        if missing := wanted.difference(table.column_names):
            raise MissingColumns(missing)
        lists = table.column("node_parent").combine_chunks()
        counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        per = {Per.NODE: counts, Per.SLOT: counts + 1}
        return cls.build(
            counts,
            _flat(lists, counts),
            table.column("anchor_position").combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64),
            keys,
            {
                name: _flat(table.column(name).combine_chunks(), per.get(column_per(name)))
                for name in sorted(wanted - {"node_parent", "anchor_position"})
            },
        )

    def __len__(self) -> int:
        return len(self.node_offsets) - 1

    def __getitem__(self, column: str) -> Array:
        try:
            return self.values[column]
        except KeyError:
            raise MissingColumns([column]) from None

    def present(self, column: str) -> Array:
        """Return a float column that must hold a value everywhere.

        Raises:
            NullColumn: it does not.
        """
        values = self[column]
        if np.isnan(values).any():
            raise NullColumn(column, "it is null in some of these rounds")
        return values

    @property
    def root_slot(self) -> I64:
        """Flat slot of each anchor; `[R]`."""
        return self.node_offsets[:-1] + np.arange(len(self))

    @property
    def node_slot(self) -> I64:
        """Flat slot at each node; `[N]`."""
        return np.arange(len(self.node_parent)) + self.node_round + 1

    @property
    def parent_slot(self) -> I64:
        """Flat slot at each node's parent, where the target judges the node; `[N]`."""
        return self.node_parent + 1 + self.node_offsets[self.node_round] + self.node_round

    @property
    def parent_node(self) -> I64:
        """Flat index of each node's parent, -1 = anchor; `[N]`."""
        return np.where(self.node_parent >= 0, self.node_parent + self.node_offsets[self.node_round], -1)

    @property
    def expanded_row(self) -> I64:
        """Row of each slot in the `draft_topk_*` columns, -1 where the drafter did not expand; `[N + R]`."""
        expanded = ~np.isnan(self["draft_lse"])
        return np.where(expanded, np.cumsum(expanded) - 1, -1)

    def with_values(self, values: Mapping[str, Array]) -> Rounds:
        """Return the same rounds with columns added or replaced."""
        return replace(self, values={**self.values, **values})

    def select(self, rows: I64, nodes: I64, counts: I64) -> Rounds:
        """Keep some rounds and some of their nodes.

        Args:
            rows: `[r]` rounds to keep, in the order wanted.
            nodes: flat nodes to keep, round after round in that order; with a node its ancestors.
            counts: `[r]` how many nodes each kept round has.
        """
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        node_round = np.repeat(np.arange(len(rows)), counts)
        local = np.empty(len(self.node_parent), dtype=np.int64)
        local[nodes] = np.arange(len(nodes)) - offsets[node_round]
        parent = self.parent_node[nodes]
        slots = np.empty(len(nodes) + len(rows), dtype=np.int64)
        slots[offsets[:-1] + np.arange(len(rows))] = self.root_slot[rows]
        slots[np.arange(len(nodes)) + node_round + 1] = self.node_slot[nodes]
        index = {Per.ROUND: rows, Per.NODE: nodes, Per.SLOT: slots}
        if "draft_lse" in self.values:
            expanded = self.expanded_row[slots]
            index[Per.EXPANDED] = expanded[expanded >= 0]
        return Rounds(
            offsets,
            np.where(parent >= 0, local[parent], -1),
            node_round,
            self.node_depth[nodes],
            self.node_rank[nodes],
            self.node_index[nodes],
            self.path_hash[nodes],
            self.anchor_position[rows],
            self.key[rows],
            {name: column[index[column_per(name)]] for name, column in self.values.items()},
        )

    def take(self, rows: I64) -> Rounds:
        """Keep whole rounds, in the order given."""
        nodes = topology.ragged_index(self.node_offsets, rows)
        return self.select(rows, nodes, np.diff(self.node_offsets)[rows])


def _shape(name: str, column: Array, values: Mapping[str, Array], slots: int) -> Array:
    if "_topk_" not in name or column.ndim == 2:
        return column
    rows = slots
    if column_per(name) is Per.EXPANDED:
        if "draft_lse" not in values:
            raise MissingColumns(["draft_lse"])
        rows = int((~np.isnan(values["draft_lse"])).sum())
    return column.reshape(rows, len(column) // rows if rows else 0)


def _widen(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind == "f":
        array = array.astype(np.float32)
    wide: Array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return wide


def _flat(lists: pa.Array, counts: I64 | None) -> Array:
    """Concatenate the lists of a column; a null list becomes `counts` nulls."""
    nested = hasattr(lists, "flatten") and hasattr(lists, "value_lengths")
    flat = lists.flatten() if nested else lists
    floating = str(flat.type) in ("float", "double", "halffloat")
    if flat.null_count:
        flat = flat.fill_null(float("nan") if floating else -1)
    array: Array = flat.to_numpy(zero_copy_only=False).astype(np.float64 if floating else np.int64)
    if not nested or counts is None or len(array) == counts.sum():
        return array
    whole: Array = np.full(int(counts.sum()), np.nan if floating else -1, dtype=array.dtype)
    whole[np.repeat(lists.is_valid().to_numpy(zero_copy_only=False), counts)] = array
    return whole
