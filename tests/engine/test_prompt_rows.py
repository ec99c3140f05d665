"""A prompt's row is that which the columns of all rows have; what lanes are told of requests arrives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.draftfile.rows import Ragged
from dflash.engine.device.arrays import Records
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.device.prompt_rows import PromptRows, Prompts
from dflash.engine.device.record import RecordSizes, layout_of, record_fields, record_words
from dflash.engine.device.shared import RoundShared
from dflash.engine.lane import Lane
from dflash.engine.loop import Engine
from dflash.engine.metrics import Counts
from dflash.engine.recorder.columns import ColumnMaker
from dflash.engine.recorder.pending import Pending
from dflash.engine.recorder.unmade import Unmade
from dflash.engine.request import Request
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.round_taps import TapRing
from dflash.target.sampling import Sampling

TOKENIZER = SimpleNamespace(decode=lambda tokens, **given: "".join(chr(97 + token) for token in tokens))


def lane_of(index: int, prompt: list[int], heat: float, most: int, emitted: list[int]) -> Lane:
    request = Request(str(index), prompt, "", Sampling(heat), 5, most)
    lane = Lane.start(index, request, frozenset({3}), TOKENIZER, None)
    lane.emit(emitted)
    return lane


def records_of(dice: Any, top: int, taps: int) -> Records:
    """What a forward of eight prompts may leave."""
    tree = RoundTree.make(0, 1, 8, "cpu")
    fields = record_fields(RecordSizes(8, top, 2, taps, features=False), tree)
    records = Records(np.zeros((1, record_words(fields)), np.int32), layout_of(fields))
    for values in records.values():
        whole = values.dtype.kind == "i"
        values[...] = dice.integers(0, 99, values.shape) if whole else dice.normal(size=values.shape)
    records["gap"][0, dice.integers(0, 8)] = np.inf
    return records


@given(
    seed=st.integers(0, 2**32), top=st.integers(2, 8), store=st.integers(0, 8), taps=st.sampled_from([0, 64]),
    started=st.booleans(),
)  # fmt: skip
def test_rows_of_prompts_are_those_of_columns(
    seed: int, top: int, store: int, taps: int, started: bool
) -> None:
    dice = np.random.default_rng(seed)
    records, store = records_of(dice, top, taps), min(store, top)
    records["times"][0] = [12 * started, 0, 0, 5012]
    maker = PromptRows(records_of(dice, top, taps), store)
    of_rows = {name: values[0] for name, values in records.items() if name != "times"}
    heats = dice.choice([0.0, 0.7], 8)
    columns = ColumnMaker([], 0, 1, store).columns(of_rows, Laws.of([LaneLaw(heat, None) for heat in heats]))
    for place in range(8):
        prompt = dice.integers(0, 99, 1 + place).tolist()
        row = maker.row(records, place, lane_of(place, prompt, heats[place], 9, []))
        for name, column in columns.items():
            # what is decided of a prompt, its engine says
            if isinstance(column, Ragged) or np.ndim(column[place]) == 0:
                continue
            assert row[name].dtype == column[place].dtype, name
            np.testing.assert_array_equal(row[name], column[place], err_msg=name)
        assert set(columns) <= set(row)
        assert (row["anchor_position"], row["anchor_token"]) == (len(prompt) - 1, prompt[-1])
        assert row["verify_us"] == row["round_us"] == 5.0 if started else np.isnan(row["verify_us"])
        if taps:
            np.testing.assert_array_equal(row["feature_fingerprint"], of_rows["fingerprint"][place].ravel())
    kept = {name: np.copy(value) for name, value in row.items() if isinstance(value, np.ndarray)}
    # rows outlive their record
    records.flat[:] = -1
    for name, value in kept.items():
        np.testing.assert_array_equal(row[name], value, err_msg=name)


def handed_over(dice: Any, maker: PromptRows, top: int, taps: int) -> tuple[Prompts, list[dict[str, Any]]]:
    """Some prompts of a forward as they are handed over, and rows as an engine makes them one by one."""
    records, lanes, emissions, rows = records_of(dice, top, taps), [], [], []
    records["times"][0] = [12 * dice.integers(0, 2), 0, 0, 5012]
    for place in range(dice.integers(1, 9)):
        lane = lane_of(place, dice.integers(0, 99, 1 + place).tolist(), 0.7, int(dice.integers(1, 3)), [])
        row = maker.row(records, place, lane)
        emission = lane.emit([int(row["slot_choice"][0])])
        Engine._give_prompt(
            None, lane, row, None, emission, SimpleNamespace(row=lambda _, row: rows.append(row))
        )
        lanes.append(lane)
        emissions.append(emission)
    # others are of the same forward, and have no first token
    part = Prompts.of(records, [*lanes, lane_of(8, [1], 0.0, 2, [])], emissions)
    # the record is lent
    records.flat[:] = -1
    return part, rows


@given(
    seed=st.integers(0, 2**32), top=st.integers(2, 8), store=st.integers(0, 8), taps=st.sampled_from([0, 64]),
    keep_text=st.booleans(),
)  # fmt: skip
def test_prompts_that_are_handed_over_together_have_the_rows_of_each(
    seed: int, top: int, store: int, taps: int, keep_text: bool
) -> None:
    """In the file and in the metrics, and whichever of them are made at once."""
    dice = np.random.default_rng(seed)
    maker = PromptRows(records_of(dice, top, taps), min(store, top))
    found, expected = Pending(features=True, keep_text=keep_text), Pending(features=True, keep_text=keep_text)
    counts, one_by_one, owner = Counts(), Counts(), 0
    for _ in range(3):
        part, rows = handed_over(dice, maker, top, taps)
        owners = owner + dice.permutation(len(rows))
        found.unmade(owners.copy(), Unmade.now(owners, maker, part, part.size))
        counts.add_many(maker.counted(part))
        for each, row in zip(owners.tolist(), rows, strict=True):
            expected.row(each, row)
            one_by_one.add(row)
        owner += len(rows)
    assert counts == one_by_one
    first = set(dice.permutation(owner)[: owner // 2].tolist())
    for some in (first, set(range(owner)) - first):
        (mine,), (theirs,) = (pending.taken(some) if some else [None] for pending in (found, expected))
        if not some:
            continue
        assert mine.owners == theirs.owners
        for name in set(mine.table.column_names) - {"started_at", "request_id"}:
            assert mine.table[name].to_pylist() == theirs.table[name].to_pylist(), name
    assert found.bytes == found.rows == 0


@given(
    lanes=st.integers(1, 9),
    held=st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.25]), st.integers(1, 6), st.booleans()),
        min_size=1, max_size=9,
    ),
    fresh=st.booleans(), rings=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_lanes_are_told_of_their_requests_and_no_others(
    lanes: int, held: list[tuple[int, float, int, bool]], fresh: bool, rings: bool, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    ring = TapRing.make(lanes, 4, torch.zeros(0, 8)) if rings else None
    shared = RoundShared(lanes, torch.device("cpu"), None, ring)
    for tensor in shared.lanes:
        tensor.copy_(torch.from_numpy(dice.integers(0, 99, tuple(tensor.shape))))
    before = [tensor.tolist() for tensor in shared.lanes]
    where = dice.permutation(lanes)[: len(held)].tolist()
    asked = []
    for index, (size, heat, most, ends) in zip(where, held, strict=False):
        emitted = [1] * (most if ends else 1)
        asked.append(lane_of(index, dice.integers(0, 99, size).tolist(), heat, most, emitted))
    shared.hold(asked, lambda heat: 2 * heat, fresh=fresh)
    for lane in asked:
        words = np.array(lane.request.key, np.uint32).view(np.int32).tolist()
        heat = lane.request.sampling.temperature
        told = [int(not lane.done), len(lane.trunk) - 1, lane.trunk[-1], lane.left, heat, 2 * heat, words]
        for values, value in zip(before, told, strict=True):
            values[lane.index] = value
    assert [tensor.tolist() for tensor in shared.lanes] == before
    if shared.ring is not None:
        known = [0] * lanes
        for lane in asked if fresh else []:
            known[lane.index] = len(lane.trunk) - 1
        assert shared.ring.known.tolist() == known
    shared.clear(where)
    for index in where:
        before[1][index] = 0
    assert [tensor.tolist() for tensor in shared.lanes] == before
