"""The rows of one row group that share a context, with what several probes look up in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.summary import Kind
from dflash.policy.context import RuleContext
from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool
from dflash.replay.batch import Batch, decided_batch, read_columns
from dflash.replay.recorded import RECORDED_COLUMNS, Recorded
from dflash.replay.requests import Requests

JUDGED = (
    *("node_token", "node_parent", "node_rank", "node_logq", "node_logp", "node_target_logit"),
    *("node_mass_above", "node_residual_mass", "node_residual_token"),
    *("draft_lse", "draft_topk_token", "draft_topk_logit", "draft_topk_target_logit"),
    *("slot_argmax", "slot_choice", "slot_choice_logit", "slot_lse", "slot_lse_p", "slot_cutoff"),
    *("slot_topk_token", "slot_topk_logit"),
)
_ROWS = 8192
# of a number stored in 32 bits, relative to it, and of what is computed with a few of them
ROUNDING = 4e-7


@dataclass(frozen=True, eq=False)
class Evidence:
    """R rows with their trees: prefills, live rounds and dense rows, in file order.

    Attributes:
        table: the rows.
        owner: `[R]` the request of each, by place in `requests`.
        kind: `[R]` `Kind` of each.
        policy: the recorded one.
    """

    file: DraftFile
    table: pa.Table
    requests: Requests
    owner: I64
    kind: I64
    rounds: Rounds
    context: RuleContext
    policy: Policy

    @cached_property
    def recorded(self) -> Recorded:
        """What was accepted and kept."""
        return Recorded.of(self.table, self.rounds)

    @cached_property
    def uncut(self) -> Bool:
        """Whether no cut of a row looked at drawn tokens, so that those left are a fair sample; `[R]`."""
        fair: Bool = self.kind == Kind.DENSE
        return fair if self.policy.peeks(self.context) else np.ones_like(fair)

    @cached_property
    def whole(self) -> Bool:
        """Whether the siblings of a row are all that were drawn: as `uncut`, or at most one each; `[R]`."""
        return self.uncut | (self.policy.shape.branches == 1)

    def place(self, row: int) -> tuple[str, str, str]:
        """Return file, request and row in words."""
        position = int(self.rounds.anchor_position[row])
        kind = Kind(int(self.kind[row])).name.lower()
        request = self.requests[int(self.owner[row])].request_id
        return str(self.file.path), request, f"{kind} row at position {position}"

    @property
    def scale(self) -> float:
        """The temperature that judged probabilities are taken at: that of softmax(l) where it is 0."""
        return self.context.temperature or 1.0

    @cached_property
    def slot_round(self) -> I64:
        """The row of each slot; `[S]`."""
        return np.repeat(np.arange(len(self.rounds)), self.rounds.trees.counts + 1)

    @cached_property
    def slot_depth(self) -> I64:
        """Nodes between the anchor and each slot; `[S]`."""
        depth = np.zeros(len(self.slot_round), dtype=np.int64)
        depth[self.rounds.node_slot] = self.rounds.node_depth
        return depth

    @cached_property
    def slot_path(self) -> I64:
        """Hash of the path to each slot, 0 at the anchor; `[S]`."""
        path = np.zeros(len(self.slot_round), dtype=np.int64)
        path[self.rounds.node_slot] = self.rounds.path_hash
        return path

    @cached_property
    def slot_index(self) -> I64:
        """Index of each slot within its row; `[S]`."""
        return np.arange(len(self.slot_round)) - self.rounds.root_slot[self.slot_round]

    @cached_property
    def lse(self) -> F64:
        """What normalises judged probabilities at each slot; `[S]`."""
        return np.asarray(self.rounds["slot_lse_p" if self.context.temperature else "slot_lse"])

    @cached_property
    def top_p(self) -> F64:
        """Judged probability of the stored top tokens; `[S, K]`, NaN where it is not stored."""
        return self.probability(np.arange(len(self.slot_round)), self.rounds["slot_topk_logit"])

    def probability(self, slots: I64, logits: F64) -> F64:
        """Return the judged probability of tokens by raw target logits `[m, k]` at slots `[m]`."""
        p = np.exp(logits / self.scale - self.lse[slots, None])
        return np.where(logits < self.rounds["slot_cutoff"][slots, None], 0.0, p)

    def slack(self, slots: I64, logits: F64) -> F64:
        """Return how far log-probabilities `[m]` of logits at slots may be off, as 32 bits hold them."""
        return 1e-4 + ROUNDING * (np.abs(logits) / self.scale + np.abs(self.lse[slots]))

    def top_slack(self, slots: I64) -> F64:
        """Return the same for any token of the slots `[m]`."""
        top = self.rounds["slot_topk_logit"][slots]
        return self.slack(slots, np.abs(top).max(axis=1, initial=0.0))


def evidence(file: DraftFile, policy: Policy) -> Iterator[Iterator[Evidence]]:
    """Read a file; each row group in pieces of whole requests that share a context."""
    columns = read_columns(file, {*JUDGED, *RECORDED_COLUMNS, "prompt_tokens", "trunk_logp", "trunk_logq"})
    for table in file.tables(columns):
        batch = decided_batch(file, table, table["kind"].to_numpy() != Kind.PROMPT_FEATURES)
        rounds = batch.rounds(name for name in columns if name in JUDGED)
        kind = batch.table["kind"].to_numpy().astype(np.int64)
        yield (
            Evidence(
                file,
                batch.table.take(pa.array(rows)),
                batch.requests,
                batch.owner[rows],
                kind[rows],
                rounds.take(rows),
                context,
                policy,
            )
            for context, rows in _pieces(batch)
        )


def _pieces(batch: Batch) -> Iterator[tuple[RuleContext, I64]]:
    """The rows of each context, in pieces that keep the arrays small."""
    for number, context in enumerate(batch.requests.contexts):
        here = batch.requests.place == number
        rows = np.flatnonzero(here[batch.owner])
        begins = np.flatnonzero(np.diff(batch.owner[rows], prepend=-1))
        first = 0
        for begin in begins[1:]:
            if begin - first >= _ROWS:
                yield context, rows[first:begin]
                first = int(begin)
        yield context, rows[first:]
