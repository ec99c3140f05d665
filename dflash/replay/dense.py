"""Dense rows ready to be walked: a verified draft at every committed position, and the trunk below them.

request   t0 t1 t2 t3        output tokens; t0 came from the prefill
rows      a0 a1 a2           one a token but the last
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.summary import Kind
from dflash.policy.lazy import Columns
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Per, Rounds, column_per
from dflash.policy.topology import Bool
from dflash.policy.trees import Array
from dflash.replay.batch import Batch, decided_batch, read_columns
from dflash.replay.errors import DenseIncomplete
from dflash.replay.recorded import RECORDED_COLUMNS, Recorded

I32 = npt.NDArray[np.int32]
DENSE_COLUMNS = (*RECORDED_COLUMNS, "anchor_token")
_LIVE_ONLY = {*RECORDED_COLUMNS, "request_info", "prompt_tokens"} - {"anchor_token"}
COMMITTED = "slot_committed"
ON_TRUNK = "node_on_trunk"


class Trunk(NamedTuple):
    """The output tokens of a batch's requests, one request after the other.

    Attributes:
        token: all output tokens.
        place: `[rows]` where each row's anchor stands in `token`.
        end: `[rows]` where the last token of the row's request stands.
        first: `[requests]` the first row of each request.
        rows: `[requests]` how many rows each has.
    """

    token: I32
    place: I64
    end: I64
    first: I64
    rows: I64

    @property
    def left(self) -> I64:
        """Tokens after each row's anchor; `[rows]`."""
        return self.end - self.place

    def mean_context(self, table: pa.Table) -> F64:
        """Tokens up to the anchor, the mean of each request's rows; `[requests]`, 0 for one without rows."""
        position = table["anchor_position"].combine_chunks().to_numpy(zero_copy_only=False)
        sums = np.concatenate(([0.0], np.cumsum(position + 1.0)))
        return np.asarray((sums[self.first + self.rows] - sums[self.first]) / np.maximum(1, self.rows))


@dataclass(frozen=True)
class DenseRows(Batch):
    """The dense rows of a row group; `table` has their columns but for those of nodes and slots.

    Attributes:
        group: the whole row group, from which nodes and slots are taken when they are looked at.
        group_owner: the request of each of its rows.
        places: `[rows]` where the dense rows stand in it.
    """

    group: pa.Table
    group_owner: I64
    places: I64

    def rounds(self, columns: Iterable[str]) -> Rounds:
        """Return the dense rows, with the columns given that belong to nodes or slots."""
        group = replace(self, table=self.group, owner=self.group_owner)
        every = Batch.rounds(group, columns)
        inside = np.zeros(len(every), dtype=bool)
        inside[self.places] = True
        counts = every.trees.counts
        of = {Per.NODE: np.repeat(inside, counts), Per.SLOT: np.repeat(inside, counts + 1)}

        def make(name: str) -> Array:
            per = column_per(name)
            if per is Per.EXPANDED and per not in of:
                of[per] = of[Per.SLOT][~np.isnan(every["draft_lse"])]
            kept: Array = every.values[name][of[per]]
            return kept

        anchors, keys = every.anchor_position[inside], every.key[inside]
        parents = every.node_parent[of[Per.NODE]]
        return Rounds.build(counts[inside], parents, anchors, keys, Columns(every.values, make))


class DenseBatch(NamedTuple):
    """The dense rows of one row group as a batch, and their trunk.

    Attributes:
        outputs: `[requests]` tokens of each answer.
    """

    batch: Batch
    trunk: Trunk
    outputs: I64


def dense_batches(file: DraftFile, columns: Iterable[str]) -> Iterator[DenseBatch]:
    """Read the dense rows of a file, one row group at a time.

    Args:
        columns: beside those of the identity, the tree and the decisions.

    Raises:
        DenseIncomplete: a request has some dense rows, but not one a committed token.
    """
    for table in file.tables(read_columns(file, {*columns, *DENSE_COLUMNS})):
        yield dense_batch(file, table)


def dense_batch(file: DraftFile, table: pa.Table) -> DenseBatch:
    """Take the dense rows of a row group that was read with `DENSE_COLUMNS`.

    Raises:
        DenseIncomplete: a request has some dense rows, but not one a committed token.
    """
    kind = table["kind"].to_numpy()
    # a request begins with its prefill
    owner = np.cumsum(kind == Kind.PREFILL) - 1
    ends = _last_decided(kind, owner)
    decisions = table.select(read_columns(file, RECORDED_COLUMNS))
    decided = decided_batch(file, decisions, (kind == Kind.PREFILL) | ends)
    emitted = table["emitted"].combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
    kept = np.bincount(owner, weights=emitted, minlength=len(decided.requests)).astype(np.int64)
    places = np.flatnonzero(kind == Kind.DENSE)
    names = [name for name in table.column_names if column_per(name) is Per.ROUND and name not in _LIVE_ONLY]
    rows = table.select(names).filter(pa.array(kind == Kind.DENSE))
    every = np.ones(len(places), dtype=bool)
    batch = DenseRows(file, rows, decided.requests, owner[places], every, table, owner, places)
    return DenseBatch(batch, _trunk(batch, _last_tokens(decided), kept), kept)


def _last_decided(kind: I64, owner: I64) -> Bool:
    """Return which rows are the last prefill or live row of their request."""
    rows = np.flatnonzero((kind == Kind.PREFILL) | (kind == Kind.LIVE))
    last = np.zeros(len(kind), dtype=bool)
    last[rows[np.append(np.diff(owner[rows]), 1)[: len(rows)] > 0]] = True
    return last


def _last_tokens(decided: Batch) -> I64:
    """Return the last token that each request kept, of its last rows; `[requests]`."""
    rounds = Rounds.from_table(decided.table, ["node_token"])
    last = np.full(len(decided.requests), -1, dtype=np.int64)
    # in file order, so that the last row of a request stays
    last[decided.owner] = Recorded.of(decided.table, rounds).last_token
    return last


def _trunk(batch: Batch, last: I64, outputs: I64) -> Trunk:
    anchors, positions = (
        batch.table[name].combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
        for name in ("anchor_token", "anchor_position")
    )
    requests, owner = len(outputs), batch.owner
    rows = np.bincount(owner, minlength=requests)
    first = np.concatenate(([0], np.cumsum(rows)))[:-1]
    odd = (rows > 0) & (rows != outputs - 1)
    odd[owner[1:][(np.diff(owner) == 0) & (np.diff(positions) != 1)]] = True
    if odd.any():
        wrong = int(np.flatnonzero(odd)[0])
        raise DenseIncomplete(batch.requests[wrong].request_id, int(outputs[wrong]) - 1, int(rows[wrong]))
    place = np.arange(len(owner)) + owner
    ends = first + rows + np.arange(requests)
    token = np.empty(len(owner) + requests, dtype=np.int32)
    token[place] = anchors
    token[ends] = last
    return Trunk(token, place, ends[owner], first, rows)


def onto_trunk(rounds: Rounds, trunk: Trunk, rows: I64) -> Rounds:
    """Mark where the drafts of dense rows lie on the trunk.

    Args:
        rounds: of the given rows of the batch.
        rows: `[R]`.

    Returns:
        The rounds with `slot_committed`, the token that was committed after a slot on the trunk (-1 elsewhere
        and past the end), and `node_on_trunk`, whether a node and its ancestors are the committed tokens.
    """
    trees, place, end = rounds.trees, trunk.place[rows], trunk.end[rows]
    at = np.repeat(place.astype(np.int32), trees.counts) + trees.node_depth
    ends = np.repeat(end.astype(np.int32), trees.counts)
    same = trunk.token.take(at, mode="clip") == rounds["node_token"]
    on_trunk = trees.along_path(same & (at <= ends))
    committed = np.full(len(at) + len(rounds), -1, dtype=np.int32)
    committed[trees.root_slot] = trunk.token[place + 1]
    followed = np.flatnonzero(on_trunk & (at < ends))
    committed[trees.node_slot[followed]] = trunk.token[at[followed] + 1]
    return rounds.with_values({COMMITTED: committed, ON_TRUNK: on_trunk})
