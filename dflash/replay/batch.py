"""Rows of a draft file ready to be judged: one row group, its requests, their keys and contexts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile, ahead
from dflash.draftfile.summary import Kind
from dflash.draftfile.view import whole
from dflash.policy.context import RuleContext, context_from_header
from dflash.policy.flat import list_counts
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Per, Rounds, column_per
from dflash.policy.topology import Bool
from dflash.replay.requests import Requests

IDENTITY = ("request_id", "kind", "round", "anchor_position", "request_info", "node_parent")


class Part(NamedTuple):
    """Live rounds of one context.

    Attributes:
        rows: `[R]` their places among the batch's rows.
        owner: `[R]` the request of each, by place in the batch.
    """

    rows: I64
    owner: I64
    rounds: Rounds
    context: RuleContext


@dataclass(frozen=True)
class Batch:
    """The live rows of one row group and its prefills, in file order.

    Attributes:
        owner: `[rows]` the request of each row, by place in `requests`.
        live: `[rows]` whether the row is a live round.
    """

    file: DraftFile
    table: pa.Table
    requests: Requests
    owner: I64
    live: Bool

    @cached_property
    def accepted_count(self) -> I64:
        """Nodes that the recording accepted in each row, 0 for null; `[rows]`."""
        return list_counts(whole(self.table["accepted_nodes"]))

    @cached_property
    def emitted(self) -> int:
        """Tokens that the recording kept in the live rows."""
        kept = whole(self.table["emitted"]).fill_null(0).to_numpy(zero_copy_only=False)
        # prefills are few
        return int(kept.sum()) - int(kept[~self.live].sum())

    def only_live(self) -> Batch:
        """Return the batch without its prefill rows; the requests stay."""
        live = self.live
        return replace(self, table=self.table.filter(pa.array(live)), owner=self.owner[live], live=live[live])

    def rounds(self, columns: Iterable[str]) -> Rounds:
        """Return all rows, prefills included, with the columns given that belong to nodes or slots."""
        wanted = [name for name in columns if column_per(name) is not Per.ROUND]
        return Rounds.from_table(self.table, wanted, lambda: self.requests.keys.take(self.owner, axis=0))

    def parts(self, rounds: Rounds) -> list[Part]:
        """Split the live rounds by context, which a request may change; `rounds` are those of `rounds()`."""
        contexts = self.requests.contexts
        kind = self.requests.place[self.owner] if len(contexts) > 1 else None
        parts = []
        for index, context in enumerate(contexts):
            rows = np.flatnonzero(self.live if kind is None else self.live & (kind == index))
            if len(rows):
                parts.append(Part(rows, self.owner[rows], rounds.take(rows), context))
        return parts


def batches(file: DraftFile, columns: Iterable[str]) -> Iterator[Batch]:
    """Read the decided rows of a file, one row group at a time.

    Args:
        columns: beside those of the identity and the tree.

    Raises:
        RequestUnknown: a request does not say its key or its sampling.
    """
    for table in ahead(file.tables(read_columns(file, columns))):
        kind = table["kind"].to_numpy()
        yield decided_batch(file, table, (kind == Kind.PREFILL) | (kind == Kind.LIVE))


def read_columns(file: DraftFile, columns: Iterable[str]) -> list[str]:
    """Return the columns to read: those given and the identity, in file order."""
    wanted = set(IDENTITY).union(columns)
    return [name for name in file.schema.names if name in wanted]


def decided_batch(file: DraftFile, table: pa.Table, keep: Bool) -> Batch:
    """Make a batch of some rows of a row group, the prefill of every request among them."""
    decided = table if keep.all() else table.filter(pa.array(keep))
    kind = decided["kind"].to_numpy()
    # a request begins with its prefill, which the reader has checked
    starts = np.flatnonzero(kind == Kind.PREFILL)
    owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(kind)))
    heads = decided.select(["request_id", "request_info"]).take(pa.array(starts))
    requests = Requests.parse(file, *(heads[name].to_pylist() for name in heads.column_names))
    return Batch(file, decided, requests, owner, kind == Kind.LIVE)


def columns_of(policies: Iterable[Policy], file: DraftFile) -> tuple[str, ...]:
    """Return the columns that the policies may read in any context of a file."""
    contexts = [context_from_header(file.header.raw, temperature) for temperature in (0.0, 1.0)]
    needed = {name for policy in policies for context in contexts for name in policy.needs(context)}
    return tuple(sorted(needed))
