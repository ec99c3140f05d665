"""Columns of many rows at once are those of rows that are made one by one, whatever the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.draftfile.rows import Ragged, RequestRows, columns_table
from dflash.engine.dense.rows import DenseGroup, DenseRowMaker
from dflash.engine.device.arrays import OF_ROUNDS, Packed, Records
from dflash.engine.device.law import LaneLaw
from dflash.engine.device.record import RecordSizes, layout_of, record_fields, record_words
from dflash.engine.device.rows import REASONS, Chain, RoundNumbers, RoundRows
from dflash.engine.recorder.columns import ColumnMaker
from dflash.engine.recorder.pending import Pending
from dflash.engine.recorder.unmade import Unmade
from dflash.kernels.round_lanes import RoundTree
from dflash.policy.context import DraftSampling

LANES, TOP, STORED, VOCAB, WIDTH = 3, 5, 4, 50, 130
NODE_FIELDS = {
    "node_token": "node_token", "node_rank": "node_rank", "node_logq": "log_q", "node_margin": "margin",
    "node_confidence": "confidence", "node_target_logit": "node_logit", "node_mass_above": "node_mass",
}  # fmt: skip
SLOT_FIELDS = {
    "slot_choice": "choice", "slot_choice_logit": "choice_logit", "slot_lse": "lse", "slot_lse_p": "lse_p",
    "slot_entropy": "entropy",
}  # fmt: skip
SEEN_FIELDS = {
    "draft_topk_token": "draft_ids",
    "draft_topk_logit": "draft_logits",
    "draft_topk_target_logit": "draft_target",
}


def random_records(
    rng: np.random.Generator, tree: RoundTree, rounds: int, kept: str | None
) -> tuple[Records, dict[str, Any]]:
    """Records that a device could have left, some nodes of which are not there, and their layout."""
    fields = record_fields(RecordSizes(LANES, TOP, TOP, 8 if kept else 0, kept is not None), tree)
    layout = layout_of(fields)
    found = Records(np.zeros((rounds, record_words(fields)), np.int32), layout)
    for values in found.values():
        if values.dtype.kind == "f":
            values[:] = rng.normal(size=values.shape)
        else:
            values[:] = rng.integers(0, VOCAB, values.shape)
    found["draft_logits"][:] = -np.sort(-found["draft_logits"], -1)
    found["gap"][rng.random(found["gap"].shape) < 0.2] = np.inf
    found["confidence"][rng.random(found["confidence"].shape) < 0.5] = np.nan
    found["times"][rng.random(found["times"].shape) < 0.3] = 0
    for place in np.ndindex(rounds, LANES):
        branch, deep = rng.integers(max(tree.branches, 1)), rng.integers(tree.length + 1)
        path = np.arange(deep) * tree.branches + branch
        found["count"][place], found["path"][place] = deep, -1
        found["path"][place][:deep] = path
        for node in range(tree.nodes):
            above = node - tree.branches
            gone = above >= 0 and found["node_token"][place][above] < 0
            if gone or (rng.random() < 0.1 and node not in path):
                found["node_token"][place][node] = -1
    # whose rows are not handed over, though features of them may have been packed
    found["live"][:] = rng.random(found["live"].shape) < 0.9
    if kept is not None:
        found.features = random_features(rng, found, kept)
    return found, layout


def random_features(rng: np.random.Generator, records: Records, encoding: str) -> Packed:
    """Codes and scales of all that lives, in order."""
    rows = int((records["count"] + 1)[records["live"] > 0].sum())
    size = 2 * WIDTH if encoding == "bf16" else WIDTH
    values = rng.integers(0, 256, (rows, size)).astype(np.uint8)
    scales = None if encoding == "bf16" else rng.random((rows, 2)).astype(np.float32)
    return Packed(values, scales, lent=True)


def one_row(
    record: dict[str, Any], tree: RoundTree, law: LaneLaw, length: int, branches: int
) -> dict[str, Any]:
    """The columns of one row, node by node, but for residual masses."""
    inside = [
        node
        for node in range(tree.nodes)
        if record["node_token"][node] >= 0
        and node // tree.branches < length
        and node % tree.branches < branches
    ]
    slots = [0, *(node + 1 for node in inside)]
    place = {node: number for number, node in enumerate(inside)}
    above = {node: node - tree.branches if node >= tree.branches else -1 for node in inside}
    depth = {node: 1 + node // tree.branches for node in inside}
    # a drafter expands what it drafts under, but for nodes of the last depth
    seen = [slot for slot in slots if (depth[slot - 1] if slot else 0) < length]
    row: dict[str, Any] = {
        name: [record[field][node] for node in inside] for name, field in NODE_FIELDS.items()
    }
    row |= {name: [record[field][slot] for slot in slots] for name, field in SLOT_FIELDS.items()}
    for name, field in SEEN_FIELDS.items():
        row[name] = [value for slot in seen for value in record[field][slot][:STORED]]
    for name, field in {"slot_topk_token": "slot_ids", "slot_topk_logit": "slot_logits"}.items():
        row[name] = [value for slot in slots for value in record[field][slot][:STORED]]
    gap = {node: record["draft_gap"][node] for node in inside}
    if branches < tree.branches:
        gap |= {node: gap[node] - record["draft_gap"][branches] for node in inside if node < tree.branches}
    for node in inside:
        logit, slot = float(record["node_logit"][node]), above[node] + 1
        drawn = record["choice"][slot] == record["node_token"][node]
        certain = 0.0 if drawn else -np.inf
        chance = certain if law.temperature == 0 else logit / law.temperature - float(record["lse_p"][slot])
        row.setdefault("node_logp", []).append(chance)
    parents = [place.get(above[node], -1) for node in inside]
    return {"node_logp": []} | row | {
        "node_parent": parents,
        "node_source": [0] * len(inside),
        "node_draft_gap": [gap[node] for node in inside],
        "node_residual_token": [record["choice"][above[node] + 1] for node in inside],
        "draft_lse": [record["draft_lse"][slot] if slot in seen else None for slot in slots],
        "slot_argmax": [record["slot_ids"][slot][0] for slot in slots],
        "slot_gap": [record["gap"][slot] if np.isfinite(record["gap"][slot]) else None for slot in slots],
        "slot_cut_gap": [None] * len(slots),
        "slot_cutoff": [-np.inf] * len(slots),
        "accepted_nodes": [place[node] for node in record["path"][: record["count"]]],
        "draft_length": max(depth.values(), default=0),
        "branches": len(inside) - len(set(parents) - {-1}),
        "anchor_position": record["length"],
        "anchor_token": record["anchor"],
        "bonus_token": record["bonus"],
        "context_length": record["length"] + 1,
    }  # fmt: skip


def told(records: Records, round_: int, lane: int) -> dict[str, Any]:
    """The columns of times and of features."""
    started, drafted, verified, ended = (int(time) for time in records["times"][round_])
    drafted, ended = drafted or started, ended or verified
    row: dict[str, Any] = {}
    if started and drafted and verified and ended:
        row = {
            "draft_us": (drafted - started) / 1e3,
            "verify_us": (verified - drafted) / 1e3,
            "round_us": (ended - started) / 1e3,
        }
    packed = records.features
    if packed is not None:
        before = 0
        for place in np.ndindex(*records["live"].shape):
            if place == (round_, lane):
                break
            before += int(records["count"][place]) + 1 if records["live"][place] else 0
        count = int(records["count"][round_, lane]) + 1
        values = packed.values[before : before + count].tobytes()
        row["feature_fingerprint"] = records["fingerprint"][round_, lane][:count].ravel()
        row["feature_values"] = values if packed.scales is not None else values[1::2] + values[::2]
        if packed.scales is not None:
            row["feature_scale"] = packed.scales[before : before + count].ravel()
    return row


LAWS = [LaneLaw(0.0, None), LaneLaw(0.8, None), LaneLaw(0.8, DraftSampling(0.7, 3, 0.9))]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(0, 4),
    branches=st.integers(1, 3),
    kept=st.sampled_from([None, "bf16", "int8", "fp8"]),
    cut=st.booleans(),
)
def test_columns_of_many_rows_are_those_of_each_row(seed, length, branches, kept, cut):
    rng = np.random.default_rng(seed)
    tree = RoundTree.make(length, branches, LANES, "cpu")
    parents = tree.parents[0].tolist() if tree.nodes else []
    chains, rows, laws = [], [], []
    for rounds in (2, 1):
        records, layout = random_records(rng, tree, rounds, kept)
        live = rng.permutation(np.flatnonzero(records["live"].ravel()))
        count = len(live)
        numbers = RoundNumbers(
            *np.divmod(live, LANES), *rng.integers(0, len(REASONS), (5, count)),
            np.full(count, length), np.full(count, branches),
        )  # fmt: skip
        by_lane = {lane: LAWS[rng.integers(len(LAWS) if length else 2)] for lane in range(LANES)}
        shapes = np.array([tree.length, tree.branches])
        for place in range(count):
            where = numbers.record[place], numbers.lane[place]
            record = {name: values[where] for name, values in records.items() if name not in OF_ROUNDS}
            deepest, widest = int(record["count"]), int(record["path"].max(initial=0) % max(branches, 1)) + 1
            if cut and length:
                shapes = np.array([rng.integers(deepest, length + 1), rng.integers(widest, branches + 1)])
                numbers.length[place], numbers.branches[place] = shapes
                node = np.arange(tree.nodes)
                outside = (node // branches >= shapes[0]) | (node % branches >= shapes[1])
                record["node_token"][outside] = -1
            law = by_lane[int(numbers.lane[place])]
            row = one_row(record, tree, law, *shapes.tolist()) | told(records, *map(int, where))
            named = ("round", "emitted", "batch_size", "step")
            row |= {name: int(getattr(numbers, name)[place]) for name in named}
            row |= {"kind": 0, "truncated_by": REASONS[numbers.reason[place]]}
            rows.append(row)
            laws.append(law)
        by_index = np.array([by_lane[lane].numbers for lane in range(LANES)])
        chains.append(Chain.of(records, numbers, by_index))
    maker = RoundRows(layout, ColumnMaker(parents, tree.expanded, branches, STORED), kept)
    none = columns_table(maker.columns(chains, np.zeros(0, np.int64)), 0, features=True)
    assert (none.num_rows, none.schema) == (0, RequestRows("", features=True).table().schema)
    order = rng.permutation(len(rows))
    made = columns_table(maker.columns(chains, order), len(rows), features=True)
    single = RequestRows("", features=True)
    for place in order:
        single.append(rows[place])
    expected = single.table()
    for name in set(expected.column_names) - {"node_residual_mass", "request_id"}:
        assert made[name].to_pylist() == expected[name].to_pylist(), name
    masses = made["node_residual_mass"].to_pylist()
    for place, mass, tokens in zip(order, masses, made["node_token"].to_pylist(), strict=True):
        assert len(mass) == len(tokens)
        assert all((value is None) == (laws[place].draft is None) for value in mass)


class Numbered:
    """Makes rows of numbers, and is asked for some."""

    def columns(self, parts, order):
        assert len(order)
        return {"step": np.concatenate(parts)[order]}


def of_each(taken):
    """Requests and their rows."""
    for part in taken:
        ends = [*part.starts[1:], part.table.num_rows]
        for owner, start, end in zip(part.owners, part.starts, ends, strict=True):
            yield owner, part.table.slice(start, end - start)


@pytest.mark.parametrize("seed", range(8))
def test_rows_wait_in_order_until_their_request_is_asked_for(seed):
    """However they came: made, or unmade by several makers."""
    rng, pending, makers = np.random.default_rng(seed), Pending(False), [Numbered(), Numbered()]
    came: dict[int, list[int]] = {owner: [] for owner in range(6)}
    found: dict[int, list[int]] = {owner: [] for owner in range(6)}
    number = 0
    for _ in range(60):
        owners = rng.integers(0, 6, rng.integers(1, 5))
        numbers = np.arange(number, number + len(owners))
        number += len(owners)
        for owner, each in zip(owners.tolist(), numbers.tolist(), strict=True):
            came[owner].append(each)
        if rng.random() < 0.3:
            for owner, each in zip(owners.tolist(), numbers.tolist(), strict=True):
                pending.row(owner, {"step": each})
        else:
            maker = makers[rng.integers(2)]
            pending.unmade(owners, Unmade.now(owners, maker, numbers, 10))
        if rng.random() < 0.2:
            asked = set(rng.integers(0, 6, 2).tolist())
            for owner, table in of_each(pending.taken(asked)):
                assert owner in asked
                assert isinstance(table, pa.Table)
                found[owner] += table["step"].to_pylist()
        assert pending.rows == sum(map(len, came.values())) - sum(map(len, found.values()))
    for owner, table in of_each(pending.taken(range(6))):
        found[owner] += table["step"].to_pylist()
    assert found == came
    assert (pending.rows, pending.bytes) == (0, 0)


class Lying:
    """Makes rows whose hidden states are where they lie."""

    def columns(self, parts, order):
        assert (order == np.arange(len(order))).all()
        (values,) = parts
        return {"feature_values": Ragged(values.reshape(-1), np.full(len(values), values.shape[1]))}


def address(table):
    """Where the bytes of a table's hidden states lie."""
    (chunk,) = table["feature_values"].chunks
    return chunk.buffers()[2].address


@pytest.mark.parametrize("late", [False, True])
def test_rows_that_come_after_those_that_were_made_are_moved_only_where_others_follow(late):
    """Hidden states of rows that come unmade are copied no more, unless a made row comes between or after."""
    pending, owners = Pending(True), np.array([0, 0, 1])
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for owner in (0, 1):
        pending.row(owner, {"feature_values": bytes([owner]), "step": 1})
    pending.unmade(owners, Unmade.now(owners, Lying(), values, 10))
    if late:
        pending.row(0, {"feature_values": b"late", "step": 2})
    taken = pending.taken([0, 1])
    assert [part.table.num_rows for part in taken] == ([6] if late else [2, 3])
    assert (address(taken[-1].table) == values.ctypes.data) == (not late)
    found = {owner: [] for owner in (0, 1)}
    for owner, table in of_each(taken):
        found[owner] += table["feature_values"].to_pylist()
    first, second, third = (row.tobytes() for row in values)
    assert found == {0: [b"\0", first, second, *([b"late"] if late else [])], 1: [b"\1", third]}


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_some_dense_rows_are_those_of_all_of_them(seed, drawn):
    """While a request's groups wait, those of others are made."""
    rng, tree, groups = np.random.default_rng(seed), RoundTree.make(3, 2, LANES, "cpu"), []
    maker = DenseRowMaker(ColumnMaker(tree.parents[0].tolist(), tree.expanded, 2, STORED), 3, True)
    law = LAWS[2] if drawn else LAWS[seed % 2]
    for size in rng.integers(1, LANES + 1, 4).tolist():
        found, _ = random_records(rng, tree, 1, None)
        records = {name: found[name][0, :size] for name in found if name not in OF_ROUNDS}
        records["trunk_logit"] = rng.normal(size=(size, 1)).astype(np.float32)
        if drawn:
            seen = (size, tree.length, TOP)
            records["forced_ids"] = rng.integers(0, VOCAB, seen).astype(np.int32)
            records["forced_logits"] = -np.sort(-rng.normal(size=seen).astype(np.float32), -1)
        ahead = rng.integers(0, VOCAB, (size, 3)).astype(np.int32)
        groups.append(DenseGroup(records, ahead, rng.integers(0, 4, size).tolist(), law))
    count = sum(len(group.ahead) for group in groups)
    whole = columns_table(maker.columns(groups), count)
    for some in (rng.permutation(count)[: count // 2], np.zeros(0, np.int64), np.arange(count)[::-1]):
        made = columns_table(maker.columns(groups, some), len(some))
        assert made.equals(whole.take(pa.array(some)))
