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
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_requests_that_end_with_their_first_token_emit_no_more(
    target: Any, drafter: str, tmp_path: Path, unread: list[int], policy: str, temperature: float
) -> None:
    """By an end-of-text token, by a stop string or by length, in lanes of which others decode."""
    given = {"drafter": drafter, "policy": policy, "temperature": temperature}
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


def test_who_follows_a_text_and_breaks_it_off_leaves_no_lane_running(
    target: Any, drafter: str, tmp_path: Path, unread: list[int]
) -> None:
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter=drafter, draft_impl="native", target_impl="native",
        rounds="device", lanes=3, length=3, branches=1, max_new_tokens=9,
    )  # fmt: skip
    engine, broken = run.engine, []
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(12))

    def follow(text: str) -> None:
        if unread and not broken:
            broken.append(text)
            raise InterruptedError

    sink: Any = _Keeps()
    with pytest.raises(InterruptedError):
        list(engine.run(run.conversations(entries, check=True), sink, on_text=follow))
    assert engine.rounds.lanes.live.tolist() == [0, 0, 0]
    assert not engine._joining
    assert sorted(sink.opened_ones) == sorted(sink.closed_ones)


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
