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
        """Counts the rows of a table that has the format's columns."""
        kind = table["kind"].to_numpy()
        decided = table.filter(pa.array((kind == Kind.LIVE) | (kind == Kind.PREFILL)))
        live = table.filter(pa.array(kind == Kind.LIVE))
        self.requests += int((kind == Kind.PREFILL).sum())
        self.rounds += live.num_rows
        self.dense_rows += int((kind == Kind.DENSE).sum())
        self.prompt_tokens += _total(table["prompt_tokens"])
        self.nodes += _total(live["node_parent"])
        self.tokens_emitted += int(np.nansum(decided["emitted"].to_numpy()))
        lengths = _lengths(live["accepted_nodes"])
        self.lengths = _plus(self.lengths, np.bincount(lengths).tolist() if len(lengths) else [])
        self.accepted = _plus(self.accepted, _reaching(lengths))
        self.drafted = _plus(self.drafted, _reaching(tree_depths(live["node_parent"])))
        counted = Counter(self.truncations)
        counted.update(value for value in decided["truncated_by"].to_pylist() if value is not None)
        self.truncations = dict(counted)

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
    """Depth of each row's tree: the longest root-to-leaf path, in nodes."""
    lists = parents.combine_chunks()
    counts = _lengths(parents)
    starts = np.cumsum(counts) - counts
    parent = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    pointer = np.where(parent < 0, -1, parent + starts[owner])
    level, above = np.ones(len(pointer), np.int64), pointer
    while (above >= 0).any():
        level += above >= 0
        above = np.where(above >= 0, pointer[above], -1)
    depth = np.zeros(len(counts), np.int64)
    np.maximum.at(depth, owner, level)
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
