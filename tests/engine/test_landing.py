"""Chains of rounds that are read at once come to what lanes make of their tokens one by one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.engine.device.landing import Landing
from dflash.engine.lane import Lane, Truncation
from dflash.engine.request import Request
from dflash.target.sampling import Sampling

EOS, LANES = frozenset({3, 9}), 5
CODES = {Truncation.NONE: 0, Truncation.EOS: 1, Truncation.LENGTH: 2}
TOKENIZER = SimpleNamespace(decode=lambda tokens, **given: "".join(chr(97 + token) for token in tokens))


def opened(index: int, rng: Any, stop: tuple[str, ...]) -> Lane:
    request = Request(str(index), [1, 2], "", Sampling(0.0), 0, int(rng.integers(1, 25)), stop)
    lane = Lane.start(index, request, EOS, TOKENIZER, None)
    lane.rounds = int(rng.integers(0, 9))
    return lane


def twin(lane: Lane) -> Lane:
    other = Lane.start(lane.index, lane.request, EOS, TOKENIZER, None)
    other.rounds = lane.rounds
    return other


def device_rounds(rng: Any, lanes: list[Lane], rounds: int, nodes: int, branches: int) -> dict[str, Any]:
    """Records of a device that knows no stop strings; lanes that rest leave anything."""
    shape = rounds, LANES
    records = {name: rng.integers(0, 3, shape) for name in ("emitted", "reason", "bonus")}
    records |= {"live": np.zeros(shape, np.int32), "count": rng.integers(0, 99, shape)}
    records["node_token"] = rng.integers(-1, 12, (*shape, nodes))
    records["path"] = np.full((*shape, nodes), -1)
    for lane in lanes:
        device = twin(replace(lane, request=replace(lane.request, stop=())))
        for place in range(rounds):
            if device.done:
                continue
            here = place, lane.index
            count = int(rng.integers(0, nodes // branches + 1))
            path = np.arange(count) * branches + rng.integers(0, branches)
            records["node_token"][here][path] = rng.integers(0, 12, count)
            records["path"][here][:count] = path
            bonus = int(rng.integers(0, 12))
            found = device.emit([*records["node_token"][here][path].tolist(), bonus])
            values = {"live": 1, "count": count, "bonus": bonus, "emitted": found.emitted}
            for name, value in (values | {"reason": CODES[found.truncated_by]}).items():
                records[name][here] = value
    return {name: values.astype(np.int32) for name, values in records.items()}


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 3), st.integers(1, 2))
def test_lanes_hold_what_they_make_of_their_tokens_one_by_one(
    seed: int, rounds: int, length: int, branches: int
) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.permutation(LANES)[: rng.integers(1, LANES + 1)].tolist()
    lanes = [opened(index, rng, ("ba",) if rng.random() < 0.4 else ()) for index in indices]
    records = device_rounds(rng, lanes, rounds, length * branches, branches)
    left = np.full(LANES, 7)
    left[indices] = [lane.left for lane in lanes]
    taken = int(rng.integers(0, rounds + 1))
    alone, rows = [twin(lane) for lane in lanes], []
    for place in range(taken):
        for lane in alone:
            here = place, lane.index
            if lane.done or not records["live"][here]:
                continue
            path = records["path"][here][: records["count"][here]]
            tokens = [*records["node_token"][here][path].tolist(), int(records["bonus"][here])]
            found = lane.emit(tokens)
            rows.append((place, lane.index, lane.rounds, found.emitted, str(found.truncated_by)))
            lane.rounds += 1
    landing = Landing(records, lanes, left, EOS)
    stopped = [stop.lane for place in range(taken) for stop in landing.listen(place)]
    landing.settle(taken)
    for mine, theirs in zip(lanes, alone, strict=True):
        assert (mine.trunk, mine.rounds, mine.finish) == (theirs.trunk, theirs.rounds, theirs.finish)
    assert [lane.finish for lane in stopped] == [Truncation.STOP] * len(stopped)
    assert len(stopped) == sum(lane.finish is Truncation.STOP for lane in alone)
    found = landing.rows()
    reasons = ("none", "eos", "length", "stop", "interrupted")
    told = zip(
        *(column.tolist() for column in found[:4]), [reasons[code] for code in found.reason], strict=True
    )
    assert sorted(told) == sorted(rows)


@pytest.mark.parametrize("name", ["emitted", "reason"])
def test_a_device_that_ends_a_request_elsewhere_is_a_fault(name: str) -> None:
    rng = np.random.default_rng(1)
    lane = opened(0, rng, ())
    records = device_rounds(rng, [lane], 2, 2, 1)
    left = np.full(LANES, lane.left)
    Landing(records, [lane], left, EOS)
    records[name][0, 0] = (records[name][0, 0] + 1) % 3
    with pytest.raises(RuntimeError, match="the device ended a round by"):
        Landing(records, [lane], left, EOS)
