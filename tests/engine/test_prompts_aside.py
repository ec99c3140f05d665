"""Prompts that are read beside rounds: whenever their lanes join, the file says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.engine.device.adaptive import AdaptiveEngine
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.prompted import Refills
from dflash.engine.device.refill import PromptRound
from dflash.engine.loop import begun
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.target.lane_prefill import PIECES, LanePrefill

pytestmark = pytest.mark.usefixtures("by_reference")


def recorded(target: Any, output: Path, prepare: Any = None, **given: Any) -> tuple[Any, Any]:
    """A recording's rows, and its engine; `prepare` is given the engine before.

    Prompts and answers are ragged, so that lanes end one by one and several together.
    """
    chosen = {"target_impl": "native", "rounds": "device", "lanes": 3, "max_new_tokens": 13} | given
    run = draft_runs.session(target, output, **chosen)
    assert isinstance(run.engine, DeviceEngine)
    if prepare is not None:
        prepare(run.engine)
    asked = [
        replace(
            text_prompt(prompt * (1 + place % 3)), max_new_tokens=chosen["max_new_tokens"] - place * 5 % 4 * 3
        )
        for place, prompt in enumerate(draft_runs.prompts(8))
    ]
    run.record(run.conversations(with_ids(asked), check=True))
    return draft_runs.rows(output), run.engine


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none", "length": 0, "branches": 1, "temperature": 0.8},
    "chain": {"length": 3, "branches": 1, "temperature": 0.8, "features": "all"},
    "tree": {"length": 2, "branches": 3, "temperature": 0.0},
    "dense": {"length": 2, "branches": 1, "temperature": 0.8, "dense": True},
    "window": {"length": 3, "branches": 1, "policy": "match:control=window,control.every=2,control.after=2"},
    "now and then plain": {
        "length": 3,
        "branches": 1,
        "temperature": 0.8,
        "lanes": 2,
        "max_new_tokens": 30,
        "policy": "match:control=ema,control.candidates=0/1/3,control.every=1,control.down=0.3",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_whenever_lanes_join_the_file_is_the_same(
    target: Any, drafter: str, tmp_path: Path, kind: str
) -> None:
    """At once in the lane's own time, before the next round, or many rounds later."""
    drafts = {"drafter": drafter, "draft_impl": "native", "draft_temperature": 4.0}
    given = KINDS[kind] if kind == "plain" else drafts | KINDS[kind]

    def in_turn(engine: DeviceEngine) -> None:
        engine.overlaps = False

    def after(rows: int) -> Any:
        return lambda engine: setattr(engine, "refills", Refills(rows))

    found = [
        recorded(target, tmp_path / f"{place}.parquet", prepare, **given)[0]
        for place, prepare in enumerate((in_turn, None, after(40), after(10)))
    ]
    steps = [sorted(row["step"] for row in rows if row["kind"] == 0) for rows in found]
    # prompts behind queued rounds join after the next ones
    at_once = kind != "dense"
    assert (steps[0] == steps[1]) == at_once
    assert steps[1] != steps[3]
    # taps of plain rounds are taken in many at once, how many depends on the other lanes
    exact = {} if kind == "now and then plain" else {"atol": 0.0, "rtol": 0.0}
    for rows in found[1:]:
        device_runs.same_rows(rows, found[0], **exact)


def test_prompts_of_any_length_share_forwards(
    target: Any, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several end in one, one begins in one and ends in the next; what each leaves is its own."""
    plain, shared = LanePrefill.forward, []

    def watched(prefill: LanePrefill, cache: Any, pieces: Any, *given: Any) -> Any:
        shared.append([(piece.lane, piece.start) for piece in pieces])
        return plain(prefill, cache, pieces, *given)

    monkeypatch.setattr(LanePrefill, "forward", watched)
    lengths = (3, 70, 130, 5, 2, 9, 1, 66, 4, 11, 8, 12)
    asked = [text_prompt("abcdefg "[place % 8] + "xy" * size) for place, size in enumerate(lengths)]
    found = []
    for overlaps in (False, True):
        shared.clear()
        output = tmp_path / f"{overlaps}.parquet"
        run = draft_runs.session(
            target, output, drafter=drafter, draft_impl="native", target_impl="native", rounds="device",
            length=3, branches=1, lanes=6, max_new_tokens=9, features="all", temperature=0.8,
        )  # fmt: skip
        run.engine.overlaps = overlaps
        run.record(run.conversations(with_ids(asked), check=True))
        found.append(draft_runs.rows(output))
    pieces = sum(map(len, shared))
    assert max(map(len, shared)) == PIECES[-1]
    assert len(shared) < pieces / 3
    # a prompt that is longer than what is left of a forward goes on in the next
    assert any(forward[0][1] > 0 for forward in shared)
    device_runs.same_rows(found[1], found[0])


def test_what_plain_rounds_have_left_goes_into_no_new_request(
    target: Any, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taps of a request that has ended are dropped: the lane's context is another prompt's already."""
    plain, met = AdaptiveEngine._launch_prompts, []

    def watched(engine: AdaptiveEngine, *, rest: bool) -> None:
        ladder, asked = engine.ladder, list(engine._asked)
        lengths, known = ladder.shared.lanes.lengths, ladder.shared.ring.known
        if not ladder._pending:
            known.copy_(lengths)
            ladder._pending = 16
        lengths[asked], known[asked] = 20, 10
        plain(engine, rest=rest)
        stores = [store[index] for index in asked for pair in ladder.drafter.cache.whole(0) for store in pair]
        before = [store.clone() for store in stores]
        ladder.catch_up(20)
        met.extend([all(map(torch.equal, stores, before))] * len(asked))

    monkeypatch.setattr(AdaptiveEngine, "_launch_prompts", watched)
    given = KINDS["now and then plain"] | {"drafter": drafter, "draft_impl": "native", "max_new_tokens": 5}
    recorded(target, tmp_path / "run.parquet", **given)
    assert met == [True] * 8


def test_nothing_is_drafted_before_a_first_token(
    target: Any, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes take part in rounds from their first token on, and rest on the device before.

    The host may not have read it yet, but it has before it reads any of these rounds.
    """
    plain, read, seen = DeviceEngine.round, DeviceEngine._land, []

    def landed(engine: DeviceEngine, group: Any, flight: Any, sink: Any) -> None:
        assert all(map(begun, flight.lanes))
        read(engine, group, flight, sink)

    def watched(engine: DeviceEngine, lanes: Any, sink: Any) -> None:
        live, anchors = (each.tolist() for each in engine.rounds.lanes[:3:2])
        unread = {
            lane.index: refill.record.wait()["choice"][0, place, 0]
            for refill in engine._joining
            for place, lane in enumerate(refill.lanes)
        }
        for lane in lanes:
            if lane.index in unread:
                assert (begun(lane), anchors[lane.index]) == (False, unread[lane.index])
            else:
                assert begun(lane)
                assert not lane.done
        waiting = [lane.index for one in engine.refills._waiting for lane in one.refill.lanes]
        assert not any(live[index] for index in waiting)
        seen.append(len(waiting))
        plain(engine, lanes, sink)

    monkeypatch.setattr(DeviceEngine, "round", watched)
    monkeypatch.setattr(DeviceEngine, "_land", landed)
    given = {"drafter": drafter, "draft_impl": "native", "length": 2, "branches": 1}
    rows, _ = recorded(
        target, tmp_path / "run.parquet", lambda engine: setattr(engine, "refills", Refills(20)), **given
    )
    assert max(seen) > 0
    order = [(row["request_id"], row["kind"]) for row in rows]
    for place, (request, kind) in enumerate(order):
        first = place == 0 or order[place - 1][0] != request
        assert (kind == 2) == first


def test_a_prompt_waits_for_what_may_still_write_its_rows(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a request was cut short by its stop string, rounds that are queued know nothing of its end."""
    asked: list[bool] = []
    plain = PromptRound.add

    def watched(prompts: PromptRound, lane: Any, *, in_turn: bool) -> None:
        asked.append(in_turn)
        plain(prompts, lane, in_turn=in_turn)

    monkeypatch.setattr(PromptRound, "add", watched)
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter="none", length=0, branches=1, target_impl="native"
    )
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(6))
    lanes = []
    run.record(run.conversations(entries, check=True), on_request=lanes.append)
    assert asked == [False] * 6
    asked.clear()
    lanes[0].finish = "stop"
    run.engine._written.add(0)
    run.forget()
    run.settings = replace(run.settings, overwrite=True)
    run.record(run.conversations(with_ids([text_prompt("a"), text_prompt("b")]), check=True))
    assert asked == [True, False]


def test_prompts_that_have_no_first_token_when_a_run_is_stopped_are_not_in_the_file(
    target: Any, tmp_path: Path
) -> None:
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter="none", length=0, branches=1, target_impl="native", lanes=3,
    )  # fmt: skip
    run.engine.refills = Refills(1)

    def stop(lane: Any) -> None:
        run.stop.set()

    entries = with_ids(text_prompt(prompt * 4) for prompt in draft_runs.prompts(9))
    done = run.record(run.conversations(entries, check=True), on_request=stop)
    assert done.interrupted
    rows = draft_runs.rows(tmp_path / "run.parquet")
    begun_ones = {row["request_id"] for row in rows if row["kind"] == 2}
    assert {row["request_id"] for row in rows} == begun_ones
    assert len(begun_ones) < 4
    assert not list(run.engine.refills.due(idle=True))


class _Queued:
    """A prompt that only has a length."""

    def __init__(self, name: int, rows: int, behind: bool = False) -> None:
        self.name, self.rows, self.behind = name, rows, behind


@given(st.lists(st.integers(1, 3000), max_size=30), st.lists(st.booleans(), min_size=60, max_size=60))
def test_every_prompt_joins_once_in_order_and_no_sooner_than_there_was_time(
    lengths: list[int], idle: list[bool]
) -> None:
    refills = Refills(512)
    for name, rows in enumerate(lengths):
        refills.add(_Queued(name, rows))  # type: ignore[arg-type]
    joined: list[Any] = []
    for waits in idle * 4:
        before = len(joined)
        joined += refills.due(idle=waits)
        if waits and before < len(lengths):
            assert len(joined) > before
    assert [refill.name for refill in joined] == list(range(len(lengths)))


@given(st.lists(st.integers(1, 3000), max_size=30))
def test_prompts_take_no_more_of_the_time_of_others_than_they_are_given(lengths: list[int]) -> None:
    refills, rounds, done = Refills(512), 0, 0
    for name, rows in enumerate(lengths):
        refills.add(_Queued(name, rows))  # type: ignore[arg-type]
    while done < sum(lengths):
        rounds += 1
        done += sum(refill.rows for refill in refills.due(idle=False))
        assert done <= 512 * rounds
    assert rounds <= -(-sum(lengths) // 512) if lengths else rounds == 0


@given(st.lists(st.tuples(st.integers(1, 900), st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_prompts_behind_queued_rounds_let_more_be_queued_before_they_are_waited_for(
    given: list[tuple[int, bool, bool]],
) -> None:
    refills, added, joined = Refills(1024), {}, {}
    for number, (rows, behind, idle) in enumerate(given):
        refills.add(_Queued(number, rows, behind))  # type: ignore[arg-type]
        added[number] = number
        for refill in refills.due(idle=idle):
            joined[refill.name] = (number, idle)
    for number in range(len(given), len(given) + 40):
        joined |= {refill.name: (number, False) for refill in refills.due(idle=False)}
    assert list(joined) == list(added)
    for name, (round_, idle) in joined.items():
        assert round_ >= added[name] + given[name][1] or idle
