"""What was accepted in rounds with the same context, and how requests ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dflash.diff.aligned import Aligned
from dflash.diff.changes import ColumnChange, Elements
from dflash.diff.flat import Block, Values, objects
from dflash.diff.matching import equal_lists, spread_rows
from dflash.diff.tolerance import Tolerance
from dflash.draftfile.summary import Kind
from dflash.policy.noise import I64
from dflash.policy.topology import Bool


@dataclass(slots=True)
class Decisions:
    """Counts over live rounds with the same context, and over aligned requests.

    Attributes:
        same_path: rounds that accept the same tokens.
        more, fewer: rounds in which B accepts more or fewer nodes than A.
        same_bonus: rounds with the same bonus token.
        requests, same_end: requests, and those that ended for the same reason.
    """

    rounds: int = 0
    same_path: int = 0
    more: int = 0
    fewer: int = 0
    same_bonus: int = 0
    requests: int = 0
    same_end: int = 0

    def add(self, aligned: Aligned, change: ColumnChange | None) -> None:
        """Count rounds; `change` takes the accepted paths."""
        rows = aligned.rows
        live = rows.same_kind & (aligned.a.scalar("kind")[rows.a] == Kind.LIVE)
        same = same_path(aligned)
        counts = [
            np.maximum(side.flat("accepted_nodes").lengths[index], 0)
            for side, index in ((aligned.a, rows.a), (aligned.b, rows.b))
        ]
        bonus = aligned.per_row("bonus_token")
        self.rounds += int(live.sum())
        self.same_path += int((live & same).sum())
        self.more += int((live & (counts[1] > counts[0])).sum())
        self.fewer += int((live & (counts[1] < counts[0])).sum())
        self.same_bonus += int((live & (bonus.a.value == bonus.b.value)).sum())
        if change is not None:
            _count_paths(aligned, same, change)

    def add_ends(self, a: Block, b: Block) -> None:
        """Count requests; a request ends with its last row that decided anything."""
        ends = [endings(block) for block in (a, b)]
        self.requests += len(ends[0])
        self.same_end += int((ends[0] == ends[1]).sum())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def same_path(aligned: Aligned) -> Bool:
    """Whether two rows accept the same tokens; `[P]`."""
    a, b = aligned.a.flat("accepted_nodes"), aligned.b.flat("accepted_nodes")
    same = a.lengths[aligned.rows.a] == b.lengths[aligned.rows.b]
    pair, place = spread_rows(np.where(same, a.lengths[aligned.rows.a], 0))
    tokens = []
    for block, rows in ((aligned.a, aligned.rows.a), (aligned.b, aligned.rows.b)):
        node = block.flat("accepted_nodes").take(rows[pair], place).value.astype(np.int64)
        tokens.append(block.flat("node_token").take(rows[pair], node).value)
    odd = np.bincount(pair[tokens[0] != tokens[1]], minlength=len(same))
    return np.asarray(same & (odd == 0))


def _count_paths(aligned: Aligned, same: Bool, change: ColumnChange) -> None:
    rows = aligned.rows
    pair = np.flatnonzero(rows.same_kind)
    a, b = aligned.a.flat("accepted_nodes"), aligned.b.flat("accepted_nodes")
    listed = equal_lists(a, rows.a[pair], b, rows.b[pair])
    beyond = ~same[pair]
    change.compared += int(((a.lengths[rows.a[pair]] >= 0) | (b.lengths[rows.b[pair]] >= 0)).sum())
    change.count(int((~listed | beyond).sum()), beyond, beyond)
    odd = np.flatnonzero(~listed | beyond)
    if len(odd) and change.wants(bool(beyond.any())):
        at = int(pair[np.flatnonzero(beyond)[0]] if beyond.any() else pair[odd[0]])
        paths = [_path(side, int(index[at])) for side, index in ((aligned.a, rows.a), (aligned.b, rows.b))]
        change.show(aligned.locate(at), paths[0], paths[1], bool(beyond.any()))


def list_elements(aligned: Aligned, name: str, only: Bool) -> Elements:
    """A column of lists, each list as one element."""
    pair = np.flatnonzero(only)
    sides = []
    for block, rows in ((aligned.a, aligned.rows.a), (aligned.b, aligned.rows.b)):
        column = block.table[name].combine_chunks()
        taken = column.take(rows[pair])
        valid = taken.is_valid().to_numpy(zero_copy_only=False)
        sides.append(Values(objects(taken.to_pylist()), np.asarray(valid)))
    return Elements(pair, sides[0], sides[1])


def exact(change: ColumnChange, aligned: Aligned, elements: Elements) -> None:
    """Compare elements that are equal or not."""
    change.add(elements, Tolerance(0.0, 0.0), aligned.locate)


def _path(block: Block, row: int) -> str | None:
    path = block.table["accepted_nodes"][row].as_py()
    if path is None:
        return None
    tokens = block.table["node_token"][row].as_py()
    return " ".join(str(tokens[node]) for node in path) or "nothing"


def endings(block: Block) -> I64:
    """Why each request ended: what its last decision says; `[requests]`, None without any."""
    reasons = block.flat("truncated_by")
    decided = np.where(reasons.valid, np.arange(len(reasons.valid)), -1)
    last = np.maximum.reduceat(decided, block.starts) if len(block.starts) else decided
    found = [reasons.values[row] if row >= 0 else None for row in last]
    return np.asarray(objects(found))
