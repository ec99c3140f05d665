"""Lanes that join rounds before the host has their first tokens: however these end, files are the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest

from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.prompted import PromptedEngine
from dflash.engine.lane import Lane
from dflash.engine.prompts.files import text_prompt, with_ids

pytestmark = pytest.mark.usefixtures("by_reference")

POLICIES = ["match", "match:control=window,control.every=2,control.after=2"]


def recorded(
    target: Any, output: Path, *, overlaps: bool, stop: tuple[str, ...] = (), **given: Any
) -> tuple[Any, DeviceEngine]:
    """Rows by request of prompts of which every third may have no more than one or two tokens."""
    chosen = {"target_impl": "native", "draft_impl": "native", "rounds": "device", "lanes": 3}
    chosen |= {"length": 3, "branches": 1, "draft_temperature": 4.0}
    run = draft_runs.session(target, output, **(chosen | given))
    run.engine.overlaps = overlaps
    asked = [
        replace(text_prompt(prompt), max_new_tokens=(1, 9, 12, 2, 7)[place % 5], stop=stop)
        for place, prompt in enumerate(draft_runs.prompts(24))
    ]
    run.record(run.conversations(with_ids(asked), check=True))
    return draft_runs.rows(output), run.engine


def first_ends(rows: Any) -> Counter[str]:
    """How many requests end with their first tokens, by why."""
    return Counter(row["truncated_by"] for row in rows if row["kind"] == 2)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places of requests whose lanes joined rounds before their first tokens were read."""
    plain, found = PromptedEngine._join_unread, []

    def watched(engine: Any, refill: Any) -> None:
        found.extend(lane.request.order for lane in refill.lanes)
        plain(engine, refill)

    monkeypatch.setattr(PromptedEngine, "_join_unread", watched)
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("temperature", "dense"), [(0.0, False), (0.8, False), (0.8, True)])
def test_requests_that_end_with_their_first_token_emit_no_more(
    target: Any, drafter: str, tmp_path: Path, unread: list[int], policy: str, temperature: float, dense: bool
) -> None:  # fmt: skip
    """By an end-of-text token, by a stop string or by length, in lanes of which others decode."""
    given = {"drafter": drafter, "policy": policy, "temperature": temperature, "dense": dense}
    whole, _ = recorded(target, tmp_path / "whole.parquet", overlaps=False, **given)
    firsts = [row["bonus_token"] for row in whole if row["kind"] == 2]
    common = [token for token, _ in Counter(firsts).most_common()]
    # the tokens that stand first most often end a request, one as the end of the text, one as a stop string
    ended = replace(target, eos=target.eos | {common[0]})
    stop = (target.tokenizer.decode([common[1]]),)
    waited, _ = recorded(ended, tmp_path / "waited.parquet", overlaps=False, stop=stop, **given)
    unread.clear()
    found, engine = recorded(ended, tmp_path / "unread.parquet", overlaps=True, stop=stop, **given)
    device_runs.same_rows(found, waited)
    assert first_ends(found) == first_ends(waited)
    assert set(first_ends(found)) >= {"eos", "stop", "length"}
    assert len(unread) > 3
    orders = {row["request_id"]: row["truncated_by"] for row in found if row["kind"] == 2}
    ends = {list(orders.values())[order] for order in unread}
    assert {"eos", "stop"} & ends
    # the device knows of the end of a text, and not of stop strings
    assert engine.wasted_rounds > 0 or "stop" not in ends
    stopped = [row for row in found if row["truncated_by"] == "stop"]
    assert engine.wasted_rounds <= 2 * engine.rounds.plan.chain * len(stopped) or policy != "match"


def broken_off(point: str, engine: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the first join of lanes whose first tokens are unread break off, once, where it is said."""
    broken: list[str] = []
    hold, read = engine._hold, prompts.first_tokens

    def stop() -> None:
        if not broken:
            broken.append(point)
            raise KeyboardInterrupt

    def held(lanes: Any, unread: Any = None) -> None:
        hold(lanes, unread)
        if unread is not None and point == "hold":
            stop()

    def tokens(refill: Any) -> Any:
        if engine._joining and point == "read":
            stop()
        return read(refill)

    def emit(lane: Lane, tokens: Any, plain: Any = Lane.emit) -> Any:
        unread = [other for refill in engine._joining for other in refill.lanes]
        found = plain(lane, tokens)
        if any(lane is other for other in unread) and point == "emit":
            stop()
        return found

    monkeypatch.setattr(engine, "_hold", held)
    monkeypatch.setattr(prompts, "first_tokens", tokens)
    monkeypatch.setattr(Lane, "emit", emit)
    return broken


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("point", ["hold", "read", "emit"])
def test_a_run_that_breaks_off_where_lanes_join_leaves_an_engine_like_a_new_one(
    target: Any, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, point: str
) -> None:
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter=drafter, draft_impl="native", target_impl="native",
        rounds="device", lanes=3, length=3, branches=1, policy=policy,
    )  # fmt: skip
    engine = run.engine
    asked = [
        replace(text_prompt(prompt), max_new_tokens=(3, 30, 40)[place % 3])
        for place, prompt in enumerate(draft_runs.prompts(12))
    ]

    def outputs(sink: Any) -> dict[int, list[int]]:
        conversations = run.conversations(with_ids(asked), check=False)
        return {lane.request.order: list(lane.output) for lane in engine.run(conversations, sink)}

    whole, free = outputs(_Keeps()), len(engine.prompts.records._free)
    sink = _Keeps()
    with monkeypatch.context() as patches:
        broken = broken_off(point, engine, engine.prompts, patches)
        with pytest.raises(KeyboardInterrupt):
            outputs(sink)
    assert broken == [point]
    assert engine.rounds.lanes.live.tolist() == [0, 0, 0]
    assert sorted(sink.opened_ones) == sorted(sink.closed_ones)
    assert len(engine.prompts.records._free) == free
    assert outputs(_Keeps()) == whole


def test_lanes_of_two_groups_wait_for_their_first_tokens(
    target: Any, drafter: str, tmp_path: Path, unread: list[int]
) -> None:
    given = {"drafter": drafter, "lanes": 4, "temperature": 0.8}
    waited, _ = recorded(target, tmp_path / "waited.parquet", overlaps=False, **given)
    unread.clear()
    found, engine = recorded(target, tmp_path / "found.parquet", overlaps=True, overlap="groups", **given)
    assert len(engine.groups) == 2
    assert not unread
    assert outputs_of(found) == outputs_of(waited)


def outputs_of(rows: Any) -> dict[str, list[int]]:
    """Tokens of each request, counted from its rows."""
    found: dict[str, list[int]] = {}
    for row in rows:
        path = [row["node_token"][node] for node in row["accepted_nodes"]]
        found.setdefault(row["request_id"], []).extend([*path, row["bonus_token"]][: row["emitted"]])
    return found


class _Keeps:
    """Keeps who was opened and closed."""

    def __init__(self) -> None:
        self.opened_ones: list[int] = []
        self.closed_ones: list[int] = []

    def opened(self, lane: Any) -> None:
        """A request starts."""
        self.opened_ones.append(lane.request.order)

    def row(self, lane: Any, row: Any) -> None:
        """Drop a row."""

    def closed(self, lane: Any) -> None:
        """A request has ended."""
        self.closed_ones.append(lane.request.order)

    def ended(self, order: int) -> None:
        """A prompt has no more requests."""
