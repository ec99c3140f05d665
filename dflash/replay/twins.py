"""Dense rows at live anchors: the same draft seen twice, which must be the same up to near-ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.summary import Kind
from dflash.policy.context import context_from_header
from dflash.policy.control.cut import drafted, verified
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool
from dflash.replay.batch import Batch, decided_batch, read_columns
from dflash.replay.steered import STATE_COLUMNS, recorded_asked

TWIN_COLUMNS = (
    "node_token",
    "slot_choice",
    "node_target_logit",
    "slot_gap",
    "slot_cut_gap",
    "node_draft_gap",
)


class Twins(NamedTuple):
    """Live rows that have a dense row, and those whose dense row differs by more than a near-tie.

    Attributes:
        batch: the live rows.
        rows: rows of `batch` that differ.
        near: how many differ where rounding may have decided.
    """

    batch: Batch
    rows: I64
    near: int


def twins(file: DraftFile, recorded: Policy) -> Iterator[Twins]:
    """Compare the dense rows at live anchors with the live rows, one row group at a time.

    Args:
        recorded: the policy that decided; the larger dense trees are cut to what it drafted in each round.

    Raises:
        StateMissing: its control is adaptive, and a live row does not say what it asked for.
    """
    context = context_from_header(file.header.raw)
    states = STATE_COLUMNS if recorded.control.adaptive else ()
    columns = (*TWIN_COLUMNS, *recorded.shape.needs(context), *recorded.control.columns)
    names = read_columns(file, (*columns, *states))
    for table in file.tables(names):
        kind = table["kind"].to_numpy()
        decided = decided_batch(file, table, (kind == Kind.PREFILL) | (kind == Kind.LIVE)).only_live()
        dense = table.filter(pa.array(kind == Kind.DENSE))
        live_rows, dense_rows = _pairs(decided.table, dense)
        same = _cut_exactly(file, recorded, decided, live_rows)
        live_rows, dense_rows = live_rows[same], dense_rows[same]
        live = decided.rounds(TWIN_COLUMNS).take(live_rows)
        whole = Rounds.from_table(dense, columns).take(dense_rows)
        other = _as_live(recorded, decided, live_rows, whole)
        temperature = np.array([request.context.temperature for request in decided.requests])
        owner = decided.owner[live_rows]
        scale = np.where(temperature[owner] > 0, temperature[owner], 1.0)
        differs = _differs(live, other, file.header.tie_tolerance)
        near = _near(live, file.header.tie_tolerance, scale) | _near(other, file.header.tie_tolerance, scale)
        yield Twins(decided, live_rows[differs & ~near], int((differs & near).sum()))


def _cut_exactly(file: DraftFile, recorded: Policy, live: Batch, rows: I64) -> Bool:
    """Return where a drafter, asked for what the live row asked for, drafts the dense row's tree, cut; `[R]`.

    A union of drafters, say, with fewer branches is another union, not the first branches of the larger one.
    """
    exact = [drafter.get("cuts") for drafter in file.header.drafters]
    asked = recorded_asked(live).take(rows) if recorded.control.adaptive else recorded.shape
    found = np.ones(len(rows), dtype=bool)
    for bound in ("length", "branches"):
        if not all(known is None or bound in known for known in exact):
            found &= getattr(asked, bound) == file.header.shape[bound]
    return found


def _as_live(recorded: Policy, live: Batch, rows: I64, dense: Rounds) -> Rounds:
    """Cut dense rows to what was drafted and verified in the live rows at their anchors."""
    if not recorded.control.adaptive:
        return recorded.shape.cut(dense)
    asked = recorded_asked(live).take(rows)
    return verified(drafted(dense, asked), recorded.shape, asked)


def _pairs(live: pa.Table, dense: pa.Table) -> tuple[I64, I64]:
    places = {anchor: row for row, anchor in enumerate(_anchors(dense))}
    pairs = [(row, places[anchor]) for row, anchor in enumerate(_anchors(live)) if anchor in places]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _anchors(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["request_id"].to_pylist(), table["anchor_position"].to_pylist(), strict=True))


def _differs(one: Rounds, other: Rounds, tolerance: float) -> Bool:
    """Return whether two rounds have other trees, tokens or choices, or logits further apart; `[R]`."""
    counts = np.diff(one.node_offsets)
    different: Bool = counts != np.diff(other.node_offsets)
    same = np.flatnonzero(~different)
    one, other = one.take(same), other.take(same)
    node = (one.node_parent != other.node_parent) | (one["node_token"] != other["node_token"])
    with np.errstate(invalid="ignore"):
        node |= np.abs(one["node_target_logit"] - other["node_target_logit"]) > tolerance
    slot = one["slot_choice"] != other["slot_choice"]
    found = _any(node, one.node_round, len(same)) | _any(slot, _slot_round(one), len(same))
    different[same] = found
    return different


def _near(rounds: Rounds, tolerance: float, scale: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Bool:
    """Return whether less than the tolerance decided anything in a round; `[R]`."""
    at = _slot_round(rounds)
    slot = (rounds["slot_gap"] * scale[at] < tolerance) | (rounds["slot_cut_gap"] < tolerance)
    node = rounds["node_draft_gap"] * scale[rounds.node_round] < tolerance
    return _any(slot, at, len(rounds)) | _any(node, rounds.node_round, len(rounds))


def _slot_round(rounds: Rounds) -> I64:
    return np.repeat(np.arange(len(rounds)), np.diff(rounds.node_offsets) + 1)


def _any(flag: Bool, owner: I64, count: int) -> Bool:
    return np.asarray(np.bincount(owner[flag], minlength=count) > 0)
