"""Rounds on the device record what rounds through the host record, token for token and row for row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest

from dflash.cli.main import run as run_command
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.round import DeviceRound
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.errors import UsageError
from dflash.target.lane_prefill import PIECES, LanePrefill

pytestmark = pytest.mark.usefixtures("by_reference")


@pytest.fixture(scope="module")
def drafters(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return device_runs.write_drafters(target, tmp_path_factory.mktemp("drafters"))


def both(target: Any, tmp_path: Path, asked: list[Any], **given: Any) -> list[list[dict[str, Any]]]:
    """The rows of one recording through the host and of one on the device."""
    found = []
    drafts = {} if given["drafter"] == "none" else {"draft_impl": "native"}
    for rounds in ("host", "device"):
        output = tmp_path / f"{rounds}.parquet"
        settings = {"target_impl": "native", "rounds": rounds} | drafts | given
        run = draft_runs.session(target, output, **settings)
        assert isinstance(run.engine, DeviceEngine) == (rounds == "device")
        draft_runs.record(target, asked, output, **settings)
        found.append(draft_runs.rows(output))
    return found


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lanes", [1, 3])
def test_chains_are_the_same(
    target: Any, drafters: dict[str, str], tmp_path: Path, kind: str, temperature: float, lanes: int
) -> None:
    host, device = both(
        target, tmp_path, draft_runs.prompts(4), drafter=drafters[kind], length=3, branches=1, lanes=lanes,
        temperature=temperature, max_new_tokens=13,
    )  # fmt: skip
    assert any(row["accepted_nodes"] for row in host)
    device_runs.same_rows(device, host)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lanes", [1, 3])
def test_plain_decoding_is_the_same(target: Any, tmp_path: Path, temperature: float, lanes: int) -> None:
    host, device = both(
        target, tmp_path, draft_runs.prompts(4), drafter="none", length=0, branches=1, lanes=lanes,
        temperature=temperature, max_new_tokens=9,
    )  # fmt: skip
    device_runs.same_rows(device, host)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["dspark", "dflash"])
def test_trees_are_the_same(
    target: Any, drafters: dict[str, str], tmp_path: Path, kind: str, temperature: float
) -> None:
    """Branches that win are moved in the caches, so that later rounds see what they must."""
    host, device = both(
        target, tmp_path, draft_runs.prompts(5), drafter=drafters[kind], length=3, branches=3, lanes=2,
        temperature=temperature, draft_temperature=4.0, max_new_tokens=17, features="all",
    )  # fmt: skip
    assert any(path and path[0] % 3 for path in (row["accepted_nodes"] for row in host))
    device_runs.same_rows(device, host)


def test_a_nucleus_may_leave_fewer_siblings(target: Any, drafters: dict[str, str], tmp_path: Path) -> None:
    host, device = both(
        target, tmp_path, draft_runs.prompts(3), drafter=drafters["dspark"], length=2, branches=3,
        temperature=0.8, draft_temperature=4.0, draft_top_p=0.7, draft_top_k=4, store_topk=6,
        max_new_tokens=12,
    )  # fmt: skip
    assert len({len(row["node_token"]) for row in host if row["kind"] == 0}) > 1
    device_runs.same_rows(device, host)


@pytest.mark.parametrize(("length", "eos"), [(0, 125), (3, 125), (3, 70)])
def test_answers_end_inside_of_blocks(
    target: Any, drafters: dict[str, str], tmp_path: Path, length: int, eos: int
) -> None:
    """By an end-of-text token that was drafted, by a last token, and by a stop string."""
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(6)]
    asked[1] = replace(asked[1], max_new_tokens=4)
    asked[4] = replace(asked[4], stop=("gggg",))
    host, device = both(
        replace(target, eos=frozenset({258, eos})), tmp_path, asked, lanes=2, max_new_tokens=17,
        drafter=drafters["dflash"] if length else "none", length=length, branches=1,
    )  # fmt: skip
    cut = [row for row in host if row["kind"] == 0 and row["emitted"] <= len(row["accepted_nodes"])]
    assert {row["truncated_by"] for row in cut} >= ({"eos"} if eos == 70 else {"stop"} if length else set())
    assert {row["truncated_by"] for row in host} == {"none", "eos", "length", "stop"} - (
        {"stop"} if eos == 70 else set()
    )
    device_runs.same_rows(device, host)


@pytest.mark.parametrize(("chain", "wasted"), [(1, 1), (2, 3)])
def test_rounds_after_a_stop_string_are_wasted(
    target: Any, drafters: dict[str, str], tmp_path: Path, chain: int, wasted: int
) -> None:
    """They were begun before the host had read the round with the string; no row tells of them."""
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter=drafters["dflash"], length=3, branches=1,
        target_impl="native", draft_impl="native", chain=chain,
    )  # fmt: skip
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(6)[3:5]]
    asked = [replace(prompt, stop=("gggg",)) for prompt in asked]
    lanes = []
    run.record(run.conversations(with_ids(asked), check=True), on_request=lanes.append)
    assert [lane.finish for lane in lanes] == ["stop", "stop"]
    assert run.engine.wasted_rounds == 2 * wasted
    rounds = [row["round"] for row in draft_runs.rows(tmp_path / "run.parquet") if row["kind"] == 0]
    assert rounds == [number for lane in lanes for number in range(lane.rounds)]


def test_dense_rows_follow_rounds_on_the_device(
    target: Any, drafters: dict[str, str], tmp_path: Path
) -> None:
    """The host's caches know where the device left them; the file checks, and its walks are its rounds."""
    host, device = both(
        target, tmp_path, draft_runs.prompts(3), drafter=drafters["dspark"], length=3, branches=2, lanes=2,
        temperature=0.8, draft_temperature=4.0, max_new_tokens=9, dense=True,
    )  # fmt: skip
    device_runs.same_rows(device, host)
    for words in (["--check"], ["--policy", "match"]):
        assert run_command(["replay", str(tmp_path / "device.parquet"), *words]) == 0


def test_lanes_have_temperatures_of_their_own(target: Any, drafters: dict[str, str], tmp_path: Path) -> None:
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(4)]
    asked = [replace(asked[place], temperature=heat) for place, heat in enumerate((0.0, 1.5, 0.3, 0.0))]
    host, device = both(
        target, tmp_path, asked, drafter=drafters["dspark"], length=2, branches=1, lanes=3, temperature=0.8,
        max_new_tokens=9,
    )  # fmt: skip
    device_runs.same_rows(device, host)


def test_rounds_go_on_in_larger_caches(target: Any, drafters: dict[str, str], tmp_path: Path) -> None:
    found = []
    for capacity in (30, 1024):
        output = tmp_path / f"{capacity}.parquet"
        run = draft_runs.session(
            target, output, drafter=drafters["dspark"], draft_impl="native", target_impl="native", length=3,
            branches=2, lanes=2, max_new_tokens=40,
        )  # fmt: skip
        run.trunk.cache.capacity = run.drafter.cache.capacity = capacity
        entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(3))
        run.record(run.conversations(entries, check=True))
        assert (run.trunk.cache.capacity > capacity) == (capacity == 30)
        found.append(draft_runs.rows(output))
    device_runs.same_rows(*found)


REFUSED = {
    "moves the rule's threshold": {"policy": "threshold:t=0.8,control=window,control.dt=0.1"},
    "cuts the target's law": {"temperature": 0.8, "top_k": 5},
    "more than compare": {"policy": "typical", "temperature": 0.8},
    "does not run on the native kernels": {"drafter": "ngram"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_device_cannot_do_goes_through_the_host_and_is_said(
    target: Any, drafters: dict[str, str], tmp_path: Path, reason: str
) -> None:
    shared = {"drafter": drafters["dspark"], "draft_impl": "native", "target_impl": "native", "length": 2}
    given = shared | {"branches": 1} | REFUSED[reason]
    if given["drafter"] == "ngram":
        del given["draft_impl"]
    run = draft_runs.session(target, tmp_path / "run.parquet", **given)
    assert not isinstance(run.engine, DeviceEngine)
    assert reason in run.rounds_remark
    with pytest.raises(UsageError, match=reason):
        draft_runs.session(target, tmp_path / "run.parquet", **given | {"rounds": "device"})


@pytest.mark.parametrize("control", ["", ":control=window"])
def test_a_warm_up_changes_nothing_that_is_recorded(
    target: Any, drafters: dict[str, str], tmp_path: Path, control: str
) -> None:
    found = []
    for warm_up in (False, True):
        output = tmp_path / f"{warm_up}.parquet"
        draft_runs.record(
            target, draft_runs.prompts(3), output, drafter=drafters["dspark"], draft_impl="native",
            target_impl="native", length=3, branches=2, lanes=2, temperature=0.8, max_new_tokens=9,
            policy=f"match{control}", rounds="device", warm_up=warm_up,
        )  # fmt: skip
        found.append(draft_runs.rows(output))
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)


def test_a_warm_up_leaves_nothing_for_the_first_prompt(
    target: Any, drafters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers and graphs of rounds and prompts are made before, and no more of them while decoding."""
    made = []
    for owner, name in ((LanePrefill, "_make"), (DeviceRound, "_build")):
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, plain=plain: made.append(plain) or plain(*given))
    run = draft_runs.session(
        target, tmp_path / "run.parquet", drafter=drafters["dspark"], draft_impl="native",
        target_impl="native", length=3, branches=1, lanes=2, max_new_tokens=9, rounds="device", warm_up=True,
    )  # fmt: skip
    warm_up = run.engine.warm_up

    def counted(context: int) -> None:
        warm_up(context)
        # prompts have as many sizes as there are pieces
        assert len(made) == len(PIECES) + 1
        made.clear()

    monkeypatch.setattr(run.engine, "warm_up", counted)
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(3))
    run.record(run.conversations(entries, check=True))
    assert made == []
