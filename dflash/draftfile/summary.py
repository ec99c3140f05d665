"""The counts that `info` needs, gathered while a file is written; they merge associatively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.violations import ParentOrder

Ints = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What a row of a draft file is."""

    LIVE = 0
    DENSE = 1
    PREFILL = 2
    PROMPT_FEATURES = 3


@dataclass(slots=True)
class Summary:
    """Counts over the rows of a file.

    Attributes:
        requests: Requests, counted by their prefill row.
        rounds: Live rounds.
        dense_rows: Dense rows.
        nodes: Drafted nodes of live rounds.
        prompt_tokens: Tokens of all prompts.
        tokens_emitted: Tokens kept, first tokens of the prefills included.
        drafted: Live rounds whose tree reaches depth i + 1, by i.
        accepted: Live rounds that accepted at least i + 1 nodes, by i.
        lengths: Live rounds by accepted length, from 0.
        truncations: Live rounds and prefills by `truncated_by`.
    """

    requests: int = 0
    rounds: int = 0
    dense_rows: int = 0
    nodes: int = 0
    prompt_tokens: int = 0
    tokens_emitted: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    truncations: dict[str, int] = field(default_factory=dict)

    @property
    def tau(self) -> float | None:
        """Accepted nodes + 1 per live round, before truncation; None without rounds."""
        return 1 + sum(self.accepted) / self.rounds if self.rounds else None

    def add(self, table: pa.Table) -> None:
        """Counts the rows of a table that has the format's columns.

        Raises:
            ParentOrder: A node does not stand behind its parent.
        """
        kind = table["kind"].to_numpy()
        live, prefill = kind == Kind.LIVE, kind == Kind.PREFILL
        depths = tree_depths(table["node_parent"])[live]
        lengths = _lengths(table["accepted_nodes"])[live]
        self.requests += int(prefill.sum())
        self.rounds += int(live.sum())
        self.dense_rows += int((kind == Kind.DENSE).sum())
        self.prompt_tokens += _total(table["prompt_tokens"])
        self.nodes += int(_lengths(table["node_parent"])[live].sum())
        decided = live | prefill
        self.tokens_emitted += int(np.nansum(table["emitted"].to_numpy()[decided]))
        self.lengths = _plus(self.lengths, np.bincount(lengths).tolist() if len(lengths) else [])
        self.accepted = _plus(self.accepted, _reaching(lengths))
        self.drafted = _plus(self.drafted, _reaching(depths))
        reasons = table["truncated_by"].filter(pa.array(decided)).drop_null()
        for found in pc.value_counts(reasons).to_pylist():
            value, count = found["values"], found["counts"]
            self.truncations[value] = self.truncations.get(value, 0) + count

    def merge(self, other: Summary) -> Summary:
        """The summary of both files together."""
        return Summary(
            requests=self.requests + other.requests,
            rounds=self.rounds + other.rounds,
            dense_rows=self.dense_rows + other.dense_rows,
            nodes=self.nodes + other.nodes,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            tokens_emitted=self.tokens_emitted + other.tokens_emitted,
            drafted=_plus(self.drafted, other.drafted),
            accepted=_plus(self.accepted, other.accepted),
            lengths=_plus(self.lengths, other.lengths),
            truncations=dict(Counter(self.truncations) + Counter(other.truncations)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Summary:
        """The summary that `to_dict` gave; counts of a later writer are ignored.

        Raises:
            KeyError: A count is missing.
        """
        return Summary(**{name: data[name] for name in Summary.__slots__})


def merged(summaries: Iterable[Summary]) -> Summary:
    """All summaries in one."""
    total = Summary()
    for summary in summaries:
        total = total.merge(summary)
    return total


def tree_depths(parents: pa.ChunkedArray) -> Ints:
    """Depth of each row's tree: the longest root-to-leaf path, in nodes.

    Raises:
        ParentOrder: A node does not stand behind its parent, so that it may have no depth.
    """
    counts = _lengths(parents)
    starts = np.cumsum(counts) - counts
    parent = parents.combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    position = np.arange(len(parent)) - np.repeat(starts, counts)
    odd = np.flatnonzero(parent >= position)
    if len(odd):
        expected = f"the parent of node {position[odd[0]]} before it"
        raise ParentOrder(expected, str(parent[odd[0]]))
    if (parent == position - 1).all():
        return counts
    pointer = np.where(parent < 0, -1, parent + np.repeat(starts, counts))
    level, below = np.ones(len(pointer), np.int64), np.flatnonzero(pointer >= 0)
    above = pointer[below]
    while len(below):
        level[below] += 1
        above = pointer[above]
        below, above = below[above >= 0], above[above >= 0]
    depth = np.zeros(len(counts), np.int64)
    there = np.flatnonzero(counts)
    if len(there):
        depth[there] = np.maximum.reduceat(level, starts[there])
    return depth


def _lengths(column: pa.ChunkedArray) -> Ints:
    found = pc.list_value_length(column).fill_null(0)
    return np.asarray(found.to_numpy(), np.int64)


def _total(column: pa.ChunkedArray) -> int:
    return int(_lengths(column).sum())


def _reaching(lengths: Ints) -> list[int]:
    """How many are at least 1, 2, 3, … long."""
    counts = np.bincount(lengths) if len(lengths) else np.zeros(1, np.int64)
    return [int(count) for count in counts[::-1].cumsum()[::-1][1:]]


def _plus(left: list[int], right: list[int]) -> list[int]:
    size = max(len(left), len(right))
    return [sum(part[i] for part in (left, right) if i < len(part)) for i in range(size)]
