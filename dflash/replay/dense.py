"""Dense rows ready to be walked: a verified draft at every committed position, and the trunk below them.

request   t0 t1 t2 t3        output tokens; t0 came from the prefill
rows      a0 a1 a2           one a token but the last
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.summary import Kind
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import along_path
from dflash.replay.batch import Batch, decided_batch, read_columns
from dflash.replay.errors import DenseIncomplete
from dflash.replay.recorded import RECORDED_COLUMNS, Recorded

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

    token: I64
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
    names = read_columns(file, {*columns, *RECORDED_COLUMNS})
    for table in file.tables(names):
        kind = table["kind"].to_numpy()
        decided = decided_batch(file, table, (kind == Kind.PREFILL) | (kind == Kind.LIVE))
        recorded = Recorded.of(decided.table, decided.rounds(["node_token"]))
        dense = table.filter(pa.array(kind == Kind.DENSE))
        index = {request.request_id: number for number, request in enumerate(decided.requests)}
        owner = np.array([index[name] for name in dense["request_id"].to_pylist()], dtype=np.int64)
        kept = np.bincount(decided.owner, weights=recorded.emitted, minlength=len(index)).astype(np.int64)
        last = np.full(len(index), -1, dtype=np.int64)
        last[decided.owner] = recorded.last_token
        batch = Batch(file, dense, decided.requests, owner, np.ones(len(owner), dtype=bool))
        yield DenseBatch(batch, _trunk(batch, last, kept), kept)


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
    token = np.empty(len(owner) + requests, dtype=np.int64)
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
        and past the end), and `node_on_trunk`, 1 where a node and its ancestors are the committed tokens.
    """
    place, end = trunk.place[rows], trunk.end[rows]
    at = place[rounds.node_round] + rounds.node_depth
    inside = at <= end[rounds.node_round]
    same = inside & (trunk.token[np.where(inside, at, 0)] == rounds["node_token"])
    on_trunk = along_path(rounds.parent_node, same)
    committed = np.full(len(rounds.node_parent) + len(rounds), -1, dtype=np.int64)
    committed[rounds.root_slot] = trunk.token[place + 1]
    followed = on_trunk & (at < end[rounds.node_round])
    committed[rounds.node_slot[followed]] = trunk.token[at[followed] + 1]
    return rounds.with_values({COMMITTED: committed, ON_TRUNK: on_trunk.astype(np.int64)})
