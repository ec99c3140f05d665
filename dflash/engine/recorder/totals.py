"""What a recorder counts of requests, for many of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dflash.draftfile.summary import Kind

Ints = NDArray[np.int64]


class Counted(NamedTuple):
    """Sums over rows of one request.

    Attributes:
        last: Row of the last decision in the table; -1 without any.
        reason: What cut that short, `none` if nothing did.
        ends_dense: Whether the last row is a dense one.
    """

    rounds: int = 0
    accepted: int = 0
    emitted: int = 0
    last: int = -1
    reason: str | None = None
    ends_dense: bool = False

    def then(self, more: Counted) -> Counted:
        """Of these rows and those that follow; `last` is a row of theirs."""
        return Counted(
            self.rounds + more.rounds,
            self.accepted + more.accepted,
            self.emitted + more.emitted,
            more.last,
            self.reason if more.reason is None else more.reason,
            more.ends_dense,
        )


def counted(table: pa.Table, starts: Ints) -> list[Counted]:
    """Counts of the requests whose rows begin there.

    Args:
        starts: `[requests]`, ascending from 0.
    """
    kind = table["kind"].to_numpy()
    live = kind == Kind.LIVE
    decided = live | (kind == Kind.PREFILL)
    accepted = pc.list_value_length(table["accepted_nodes"]).fill_null(0).to_numpy()
    emitted = table["emitted"].fill_null(0).to_numpy()
    sums = [
        np.add.reduceat(each.astype(np.int64), starts) for each in (live, accepted * live, emitted * decided)
    ]
    last = np.maximum.reduceat(np.where(decided, np.arange(len(kind)), -1), starts)
    reasons = table["truncated_by"].take(pa.array(last, mask=last < 0)).to_pylist()
    dense = kind[np.append(starts[1:], len(kind)) - 1] == Kind.DENSE
    columns = (*(each.tolist() for each in sums), last.tolist(), reasons, dense.tolist())
    return [Counted(*each) for each in zip(*columns, strict=True)]


@dataclass(slots=True)
class Totals:
    """Sums over the run, for the closing line.

    Attributes:
        kept, kept_tokens: What of it came from an earlier recording.
        unasked: Kept requests that the prompts did not ask for.
        changed: What requests asked otherwise than kept ones of their prompts, by the name of the setting.
    """

    requests: int = 0
    rounds: int = 0
    accepted: int = 0
    emitted: int = 0
    finish: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    kept_tokens: int = 0
    unasked: int = 0
    changed: dict[str, str] = field(default_factory=dict)

    @property
    def tau(self) -> float | None:
        """Accepted nodes + 1 per live round; None without rounds."""
        return None if self.rounds == 0 else (self.accepted + self.rounds) / self.rounds

    def add(self, request: Counted) -> None:
        """Count a request."""
        self.requests += 1
        self.rounds += request.rounds
        self.accepted += request.accepted
        self.emitted += request.emitted
        reason = request.reason or "none"
        self.finish[reason] = self.finish.get(reason, 0) + 1

    def keep(self, table: pa.Table) -> None:
        """Count a request that was recorded earlier."""
        (request,) = counted(table, np.zeros(1, np.int64))
        self.add(request)
        self.kept += 1
        self.kept_tokens += request.emitted
