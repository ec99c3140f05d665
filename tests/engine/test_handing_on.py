"""When rows reach the sink: once the next rounds are queued, and before anything else is waited for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import draft_runs
import pytest

from dflash.engine.device.adaptive import AdaptiveEngine
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.round import DeviceRound
from dflash.engine.prompts.files import text_prompt, with_ids

pytestmark = pytest.mark.usefixtures("by_reference")

WINDOW = "match:control=window,control.every=2,control.after=2"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none", "length": 0, "temperature": 0.8},
    "chain": {"length": 3, "temperature": 0.8, "features": "all"},
    "dense": {"length": 2, "temperature": 0.8, "dense": True},
    "window": {"length": 3, "policy": WINDOW},
}


def session_of(target: Any, output: Path, drafter: str, kind: str, **given: Any) -> Any:
    """A session whose rounds run on the device."""
    drafts = {"drafter": drafter, "draft_impl": "native", "draft_temperature": 4.0}
    chosen = {"branches": 1, **({} if kind == "plain" else drafts), **KINDS[kind], **given}
    return draft_runs.session(target, output, target_impl="native", rounds="device", **chosen)


class Noting:
    """Which requests a sink was told of, and how many rows of each."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.told: list[Any] = []
        self._names: dict[int, str] = {}

    def opened(self, lane: Any) -> None:
        self._names[lane.index] = lane.request.request_id
        self.rows[lane.request.request_id] = 0

    def row(self, lane: Any, row: Any) -> None:
        self.rows[self._names[lane.index]] += 1

    def closed(self, lane: Any) -> None:
        self.told.append(lane.request.request_id)

    def ended(self, order: int) -> None:
        self.told.append(order)


@pytest.mark.parametrize("kind", ["plain", "chain", "dense", "window"])
def test_nothing_is_held_back_while_an_engine_waits_for_a_prompt(
    target: Any, drafter: str, tmp_path: Path, kind: str
) -> None:
    run = session_of(target, tmp_path / "unused.parquet", drafter, kind, lanes=1, max_new_tokens=7)
    sink, seen = Noting(), []

    def arriving() -> Any:
        for conversation in run.conversations(with_ids(map(text_prompt, draft_runs.prompts(4)))):
            seen.append((list(sink.told), dict(sink.rows)))
            yield conversation

    lanes = [lane.request.request_id for lane in run.engine.run(arriving(), sink)]
    for place, (told, rows) in enumerate(seen):
        assert told == [name for order in range(place) for name in (lanes[order], order)]
        assert list(rows) == lanes[:place]
        assert all(rows.values())


class Follower(Noting):
    """Notes when it was called, `s`, beside what is launched, `L`, and read, `R`."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def row(self, lane: Any, row: Any) -> None:
        super().row(lane, row)
        self.log.append("s")

    def closed(self, lane: Any) -> None:
        super().closed(lane)
        self.log.append("s")


@pytest.mark.parametrize("kind", ["plain", "chain", "window"])
def test_rows_are_handed_on_only_once_the_next_rounds_are_queued(
    target: Any, drafter: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session_of(target, tmp_path / "unused.parquet", drafter, kind, lanes=2)
    log: list[str] = []
    places = (DeviceEngine, "_launched", "L"), (AdaptiveEngine, "_launch", "L"), (DeviceRound, "read", "R")
    for where, name, letter in places:

        def noted(*given: Any, own: Any = getattr(where, name), letter: str = letter) -> Any:
            log.append(letter)
            return own(*given)

        monkeypatch.setattr(where, name, noted)
    # one lane goes on while others end beside it
    sizes = [60, 5, 9, 4, 7]
    prompts = with_ids(
        replace(text_prompt(prompt), max_new_tokens=size)
        for prompt, size in zip(draft_runs.prompts(5), sizes, strict=True)
    )
    list(run.engine.run(run.conversations(prompts), Follower(log)))
    before, after = "".join(log).rsplit("R", 1)
    assert "LsR" in re.sub("s+", "s", before)
    assert "Rs" not in before
    assert "s" in after


@pytest.mark.parametrize("recorder", ["inline", "process"])
@pytest.mark.parametrize("kind", ["plain", "chain"])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_who_follows_a_text_may_break_a_recording_off_at_any_word(
    target: Any, drafter: str, tmp_path: Path, kind: str, recorder: str, call: int
) -> None:
    output = tmp_path / "run.parquet"
    run = session_of(target, output, drafter, kind, recorder=recorder, lanes=2, max_new_tokens=9)
    said: list[str] = []

    def told(text: str) -> None:
        said.append(text)
        if len(said) > call:
            raise KeyboardInterrupt

    found = run.record(run.conversations(with_ids(map(text_prompt, draft_runs.prompts(3)))), told)
    assert found.interrupted
    for row in draft_runs.rows(output):
        assert row["kind"] in (0, 2, 3)
