"""The timing columns of a run, one entry a target forward: what it drafted and verified, and its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.summary import Kind
from dflash.policy.noise import F64
from dflash.policy.rounds import Rounds
from dflash.replay.branching import leaves
from dflash.replay.errors import NoTimings

TIMING_COLUMNS = (
    "kind",
    "anchor_position",
    "node_parent",
    "context_length",
    "draft_us",
    "round_us",
    "step",
    "batch_size",
)


@dataclass(frozen=True, slots=True)
class Steps:
    """S target forwards with the trees that they verified together.

    Attributes:
        length: `[S]` depth of the deepest tree.
        branches: `[S]` of the widest tree.
        nodes: `[S]` mean of the requests; `context` likewise, in tokens.
        batch: `[S]` requests.
        draft_us: `[S]` drafting for all of them.
        verify_us: `[S]` everything else: the forward, the decision, the commit.
        untimed: rounds left out, since a timer failed or was not kept.
    """

    length: F64
    branches: F64
    nodes: F64
    batch: F64
    context: F64
    draft_us: F64
    verify_us: F64
    untimed: int

    def __len__(self) -> int:
        return len(self.length)


def read_steps(files: Sequence[DraftFile]) -> Steps:
    """Read the timings of the live rounds of one or more runs.

    Raises:
        NoTimings: no round has any.
    """
    found, untimed = [], 0
    # every process counts its steps from 0
    process = [(file.run_id, str(file.header.raw.get("shard"))) for file in files]
    for file in files:
        number = process.index((file.run_id, str(file.header.raw.get("shard"))))
        for table in file.tables([name for name in file.schema.names if name in TIMING_COLUMNS]):
            live = table.filter(pa.array(table["kind"].to_numpy() == Kind.LIVE))
            rows = _rows(live, number)
            timed = np.isfinite(rows).all(axis=1)
            untimed += int((~timed).sum())
            found.append(rows[timed])
    rows = np.concatenate(found) if found else np.zeros((0, 9))
    if not len(rows):
        raise NoTimings(str(files[0].path))
    return _joined(rows, untimed)


def _rows(live: pa.Table, process: int) -> F64:
    """Return process, step, shape, nodes, context, batch and times of every row; NaN = null; `[rows, 9]`."""
    rounds = Rounds.from_table(live)
    depth = np.zeros(len(rounds), dtype=np.int64)
    np.maximum.at(depth, rounds.node_round, rounds.node_depth)
    step = _floats(live, "step")
    columns = (
        np.full(len(step), float(process)),
        step,
        depth,
        leaves(rounds),
        np.diff(rounds.node_offsets),
        _floats(live, "context_length"),
        _floats(live, "batch_size"),
        _floats(live, "draft_us"),
        _floats(live, "round_us"),
    )
    return np.column_stack(columns).astype(np.float64)


def _floats(table: pa.Table, name: str) -> F64:
    column = table[name].combine_chunks().cast(pa.float64()).fill_null(np.nan)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _joined(rows: F64, untimed: int) -> Steps:
    """Put the rows of one forward together; the last of them to be settled holds the whole round's time."""
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    rows = rows[order]
    first = np.flatnonzero(np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1)))
    largest = np.maximum.reduceat(rows, first)
    counts = np.diff(np.append(first, len(rows)))
    mean = np.add.reduceat(rows, first) / counts[:, None]
    draft_us, round_us = largest[:, 7], largest[:, 8]
    return Steps(
        length=largest[:, 2],
        branches=np.maximum(1.0, largest[:, 3]),
        nodes=mean[:, 4],
        context=mean[:, 5],
        batch=largest[:, 6],
        draft_us=draft_us,
        verify_us=np.maximum(0.0, round_us - draft_us),
        untimed=untimed,
    )
