"""What a recording says happened in each round: the accepted path, the bonus token, what was kept of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash.policy.noise import I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool

RECORDED_COLUMNS = (
    "node_token",
    "anchor_token",
    "accepted_nodes",
    "bonus_token",
    "emitted",
    "truncated_by",
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The decision columns of R rows.

    Attributes:
        path_offsets: `[R + 1]` where each row's accepted path begins in `path_node`.
        path_node: accepted nodes, by index within the round.
        path_token: their tokens.
        on_path: `[N]` whether a node is on the accepted path.
        bonus: `[R]`, -1 = null.
        emitted: `[R]` tokens kept, -1 = null.
        truncated_by: `[R]` strings.
        last_token: `[R]` the last token kept, -1 if none was.
    """

    path_offsets: I64
    path_node: I64
    path_token: I64
    on_path: Bool
    bonus: I64
    emitted: I64
    truncated_by: npt.NDArray[np.str_]
    last_token: I64

    @classmethod
    def of(cls, table: pa.Table, rounds: Rounds) -> Recorded:
        """Read the decisions of the rows that `rounds` were made of; needs `node_token` in both."""
        lists = table["accepted_nodes"].combine_chunks()
        counts = _numpy(lists.value_lengths(), 0)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        node = _numpy(lists.flatten(), 0)
        flat = node + rounds.node_offsets[np.repeat(np.arange(len(counts)), counts)]
        on_path = np.zeros(len(rounds.node_parent), dtype=bool)
        on_path[flat] = True
        token = rounds["node_token"][flat]
        bonus, emitted = (_numpy(table[name].combine_chunks(), -1) for name in ("bonus_token", "emitted"))
        truncated = np.array(table["truncated_by"].combine_chunks().fill_null("").to_pylist(), dtype=np.str_)
        last = np.where(emitted > counts, bonus, -1)
        cut = np.flatnonzero((emitted > 0) & (emitted <= counts))
        last[cut] = token[offsets[cut] + emitted[cut] - 1]
        return cls(offsets, node, token, on_path, bonus, emitted, truncated, last)

    @property
    def count(self) -> I64:
        """Length of the accepted path; `[R]`."""
        return np.diff(self.path_offsets)

    def path(self, row: int) -> list[int]:
        """Return the accepted nodes of a row."""
        nodes: list[int] = self.path_node[self.path_offsets[row] : self.path_offsets[row + 1]].tolist()
        return nodes


def _numpy(array: pa.Array, null: int) -> I64:
    return np.asarray(array.fill_null(null).to_numpy(zero_copy_only=False).astype(np.int64))
