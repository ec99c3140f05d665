"""Laws of a comparison: of a file with itself, both ways round, in any order, under a shift of logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drifted import OTHER_LOGITS, Requests, columns, compare, edited, head, recording, save, shifted
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sample_drafts import digest, tables, write
from tiny_recorder import Proposal, Recorder

from dflash.diff import On
from dflash.draftfile.columns import COLUMNS
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.writer import RunStatus

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LISTS = {"listed", "columns"}
TREE = ("node_logq", "node_margin", "draft_lse")


def files(folder: Path) -> dict[str, Path]:
    """Files of every sort: chain, tree, sampled, empty, one request, no rounds, all columns, random."""
    made = {
        "match": Recorder().write(folder / "match.parquet"),
        "tree": Recorder(policy="match", branches=2, length=3).write(folder / "tree.parquet"),
        "iid": Recorder(policy="speculative", proposal=Proposal.IID, branches=2).write(
            folder / "iid.parquet"
        ),
        "greedy": Recorder(temperature=0.0, proposal=Proposal.DETERMINISTIC).write(folder / "greedy.parquet"),
        "plain": Recorder(length=0, proposal=Proposal.DETERMINISTIC).write(folder / "plain.parquet"),
        "one": Recorder(requests=1).write(folder / "one.parquet"),
        "full": save(folder / "full.parquet", recording()),
    }
    for name, requests in (("random", tables(3, dense=2)), ("empty", []), ("bare", tables(4, rounds=0))):
        write(folder / f"{name}.parquet", requests)
        made[name] = folder / f"{name}.parquet"
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return files(tmp_path_factory.mktemp("made"))


NAMES = ["match", "tree", "iid", "greedy", "plain", "one", "full", "random", "bare"]


@pytest.mark.parametrize("name", [*NAMES, "empty"])
def test_a_file_and_itself(made: dict[str, Path], name: str) -> None:
    told = compare(made[name], made[name])
    assert (told["verdict"], told["exit_code"], told["read"]) == ("identical", 0, "digests")
    assert told["causes"] == []


@pytest.mark.parametrize("on", list(On))
@pytest.mark.parametrize("name", NAMES)
def test_a_file_and_itself_row_by_row(made: dict[str, Path], name: str, on: On) -> None:
    told = compare(made[name], made[name], timing=True, on=on)
    assert (told["verdict"], told["exit_code"], told["read"]) == ("identical", 0, "rows")
    rows = told["sections"]["requests"]["rows"]["a"]
    assert rows["compared"] == rows["total"]
    assert told["sections"]["probabilities"]["kl"]["mean"] in (None, pytest.approx(0.0, abs=1e-9))
    assert {name for name, metric in told["metrics"].items() if metric["change"]} <= {"kl_mean"}


@pytest.mark.parametrize("name", ["match", "tree", "full", "random"])
def test_equal_digests_tell_what_the_rows_tell(made: dict[str, Path], name: str) -> None:
    quick, slow = compare(made[name], made[name]), compare(made[name], made[name], timing=True)
    for section in ("requests", "identity"):
        assert quick["sections"][section] == slow["sections"][section]
    for key in ("requests", "rounds", "lengths"):
        assert quick["sections"]["acceptance"][key] == slow["sections"]["acceptance"][key]
    assert quick["metrics"]["tau"] == slow["metrics"]["tau"]
    assert quick["sections"]["tokens"]["output_tokens"] == slow["sections"]["tokens"]["output_tokens"]


def test_volatile_header_keys_do_not_count(made: dict[str, Path], tmp_path: Path) -> None:
    later = save(tmp_path / "b.parquet", recording(), created_at="2027-01-01T00:00:00Z", host="elsewhere")
    assert compare(made["full"], later)["read"] == "digests"
    other = save(tmp_path / "c.parquet", recording(), engine={"toolkit": "9"})
    told = compare(made["full"], other)
    assert (told["verdict"], told["exit_code"]) == ("equal within tolerance", 0)
    assert [row["key"] for row in told["sections"]["identity"]["header"]] == [
        "engine.toolkit",
        "engine.torch",
    ]


def signed(document: dict[str, Any], turn: bool) -> dict[str, Any]:
    """What must be equal when A and B change places; `turn` looks at it from the other side."""
    sections = document["sections"]
    sign, sides = (-1, ("b", "a")) if turn else (1, ("a", "b"))
    probabilities, tau = sections["probabilities"], sections["acceptance"]["tau"]
    kl = ("kl_reverse", "kl") if turn else ("kl", "kl_reverse")
    interval = tau["difference_interval"] and [sign * bound for bound in tau["difference_interval"]][::sign]
    drafts = sections["drafts"]
    return {
        "verdict": document["verdict"],
        "kl": [probabilities[name]["mean"] for name in kl],
        "change": (probabilities["change_of_p"]["mean"] or 0.0) * sign,
        "top1": probabilities["same_top1"],
        "tau": (tau["difference"] or 0.0) * sign,
        "interval": interval,
        "rows": [sections["requests"]["rows"][side] for side in sides],
        "nodes": [drafts[f"nodes_{side}"] for side in sides] + [drafts["common"]],
        "more": [sections["decisions"][name] for name in (("fewer", "more") if turn else ("more", "fewer"))],
        "tokens": {key: value for key, value in sections["tokens"].items() if key not in LISTS},
        "columns": {
            (name, row["column"]): (row["changed"], row["beyond_tolerance"], row["largest_distance"])
            for name in ("tokens", "drafts", "probabilities", "decisions", "features")
            for row in sections[name]["columns"]
        },
    }  # fmt: skip


def assert_turned(a: Path, b: Path, **asked: Any) -> dict[str, Any]:
    there, back = compare(a, b, **asked), compare(b, a, **asked)
    left, right = signed(there, False), signed(back, True)
    assert left.pop("change") == pytest.approx(right.pop("change"), abs=1e-12)
    assert left.pop("interval") == pytest.approx(right.pop("interval"))
    assert left.pop("kl") == pytest.approx(right.pop("kl"))
    assert left == right
    return there


@pytest.mark.parametrize("on", list(On))
@pytest.mark.parametrize(
    "change",
    [{"seed": 6}, {"temperature": 0.7}, {"length": 2}, {"branches": 2}, {"policy": "threshold:t=0.2"}],
    ids=str,
)
def test_both_ways_round(made: dict[str, Path], tmp_path: Path, change: dict[str, Any], on: On) -> None:
    told = assert_turned(made["match"], Recorder(**change).write(tmp_path / "b.parquet"), on=on)
    assert told["exit_code"] == 1


def shuffled(rng: np.random.Generator, row: dict[str, Any], name: str) -> Any:
    """A column of one row in another order; lists of tokens each on their own, since none lists one twice."""
    if not name.endswith("topk_token"):
        return rng.permutation(row[name])
    slots = np.isfinite(row["draft_lse"]) if name.startswith("draft") else row["slot_choice"]
    count = int(np.sum(slots)) if name.startswith("draft") else len(slots)
    lists = np.reshape(row[name], (count, -1)) if count else np.reshape(row[name], (0, 1))
    return rng.permuted(lists, axis=1).reshape(-1)


@QUICK
@example(seed=55965)
@given(seed=st.integers(0, 2**16))
def test_both_ways_round_whatever_changed(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    names = [
        c.name for c in COLUMNS if c.is_list and c.group in {"tree", "target"} and c.name != "node_parent"
    ]

    def edit(found: Requests) -> None:
        for rows in found.values():
            row = rows[int(rng.integers(1, len(rows)))]
            name = str(rng.choice(names))
            row[name] = shuffled(rng, row, name)
            if rng.random() < 0.3 and "bonus_token" in row:
                row["bonus_token"] = int(rng.integers(0, 100))

    base = recording(seed=seed)
    a, b = save(tmp_path / "a.parquet", base), save(tmp_path / "b.parquet", edited(base, edit))
    assert_turned(a, b)


@QUICK
@given(order=st.permutations(["r0", "r1", "r2", "r3", "r4"]))
def test_reordered_prompts_align(order: list[str], tmp_path: Path) -> None:
    base = recording(5)
    a, b = save(tmp_path / "a.parquet", base), save(tmp_path / "b.parquet", base, order)
    told = compare(a, b)
    assert told["verdict"] == "identical"
    assert told["sections"]["requests"]["aligned"] == 5


def test_a_shift_of_all_logits_is_the_same_law(made: dict[str, Path], tmp_path: Path) -> None:
    moved = save(tmp_path / "b.parquet", shifted(recording(), 3.0))
    told = assert_turned(made["full"], moved)
    assert (told["verdict"], told["exit_code"]) == ("same law", 0)
    assert told["sections"]["probabilities"]["status"] == "same law"
    assert "log p did not" in told["causes"][-1]
    assert columns(told, "probabilities")["slot_topk_logit"]["beyond_as_log_p"] == 0
    assert told["metrics"]["kl_mean"]["b"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("left_out", ["slot_lse", "slot_choice_logit", "slot_topk_logit", *OTHER_LOGITS])
def test_a_shift_of_some_logits_is_another_law(made: dict[str, Path], tmp_path: Path, left_out: str) -> None:
    names = [
        name
        for name in ("slot_choice_logit", "slot_lse", "slot_topk_logit", "slot_cutoff", *OTHER_LOGITS)
        if name != left_out
    ]
    told = compare(made["full"], save(tmp_path / "b.parquet", shifted(recording(), 3.0, names)))
    assert (told["verdict"], told["exit_code"]) == ("drifted, acceptance unchanged", 1)


def test_a_small_change_is_equal_within_tolerance(made: dict[str, Path], tmp_path: Path) -> None:
    def edit(found: Requests) -> None:
        for name in TREE:
            found["r1"][1][name] = np.asarray(found["r1"][1][name]) + np.float32(2e-5)

    near = save(tmp_path / "b.parquet", edited(recording(), edit))
    told = compare(made["full"], near)
    assert (told["verdict"], told["exit_code"]) == ("equal within tolerance", 0)
    assert set(columns(told, "drafts")) == set(TREE)
    from dflash.diff import parse_tolerances

    strict = compare(made["full"], near, tolerances=parse_tolerances(["1e-7"], ["0"]))
    assert strict["exit_code"] == 1
    mixed = parse_tolerances(["1e-7", *(f"{name}=1e-3" for name in TREE)], ["0"])
    assert compare(made["full"], near, tolerances=mixed)["exit_code"] == 0


@pytest.mark.parametrize(("dtype", "verdict"), [("bfloat16", 0), ("float16", 0), ("float32", 1)])
def test_sixteen_bits_are_judged_more_gently(tmp_path: Path, dtype: str, verdict: int) -> None:
    def edit(found: Requests) -> None:
        found["r1"][1]["slot_gap"] = np.asarray(found["r1"][1]["slot_gap"]) + np.float32(5e-3)

    target = head()["target"] | {"dtype": dtype}
    a = save(tmp_path / "a.parquet", recording(), target=target)
    b = save(tmp_path / "b.parquet", edited(recording(), edit), target=target)
    assert compare(a, b)["exit_code"] == verdict


def test_tokens_that_fall_off_the_end_of_a_list(made: dict[str, Path], tmp_path: Path) -> None:
    def edit(found: Requests) -> None:
        row = found["r1"][1]
        row["slot_topk_token"][3] = min(set(range(128)) - set(row["slot_topk_token"]))

    told = compare(made["full"], save(tmp_path / "b.parquet", edited(recording(), edit)))
    assert told["verdict"] == "equal within tolerance"
    assert columns(told, "probabilities")["slot_topk_token"]["beyond_tolerance"] == 0


def test_requests_without_a_partner(made: dict[str, Path], tmp_path: Path) -> None:
    fewer = save(tmp_path / "b.parquet", recording(2))
    told = assert_turned(made["full"], fewer)
    assert (told["verdict"], told["exit_code"]) == ("different", 1)
    assert told["sections"]["requests"]["listed_a"] == ["r2"]


def test_no_prompt_in_common(made: dict[str, Path], tmp_path: Path) -> None:
    def edit(found: Requests) -> None:
        for name, rows in found.items():
            rows[0]["prompt_text"] = f"something else {name}"

    told = compare(made["full"], save(tmp_path / "b.parquet", edited(recording(), edit)))
    assert (told["verdict"], told["exit_code"]) == ("no aligned request", 2)
    assert "text of the prompts" in told["summary"]
    read = set(told["sections"]) - {"identity", "schema", "requests", "timing"}
    assert {told["sections"][name]["status"] for name in read} == {"not compared"}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "identical"),
        ({"created_at": "2026-12-01T00:00:00Z", "host": "elsewhere"}, "identical"),
        ({"policy": {"rule": {"name": "greedy"}, "shape": {}, "control": {"name": "static"}}}, "equal"),
        ({"seed": 12345}, "equal"),
    ],
)
def test_equal_digests_are_identical_under_headers_that_differ_in_time_and_place_alone(
    made: dict[str, Path], tmp_path: Path, changes: dict[str, Any], verdict: str
) -> None:
    other = save(tmp_path / "b.parquet", recording(), **changes)
    assert open_draft_file(other).content_digest == open_draft_file(made["full"]).content_digest
    told = compare(made["full"], other)
    assert told["verdict"].startswith(verdict)
    assert told["exit_code"] == 0
    assert told["read"] == ("digests" if verdict == "identical" else "rows")


def test_without_texts_tokens_align(tmp_path: Path) -> None:
    def edit(found: Requests) -> None:
        for rows in found.values():
            rows[0]["prompt_text"] = None

    mute = save(tmp_path / "a.parquet", edited(recording(), edit))
    told = compare(mute, save(tmp_path / "b.parquet", recording(), ["r2", "r0", "r1"]))
    assert told["sections"]["requests"]["aligned_by"] == "tokens"
    assert told["sections"]["requests"]["aligned"] == 3
    assert told["verdict"] == "equal within tolerance" or told["exit_code"] == 1


def test_equal_prompts_align_by_ordinal(tmp_path: Path) -> None:
    def edit(found: Requests) -> None:
        for number, rows in enumerate(found.values()):
            rows[0] |= {"prompt_text": "the same", "prompt_tokens": [1, 2], "anchor_position": 1}
            rows[0]["request_info"] = f'{{"ordinal":{number}}}'

    base = edited(recording(), edit)
    a, b = save(tmp_path / "a.parquet", base), save(tmp_path / "b.parquet", base, ["r2", "r1", "r0"])
    told = compare(a, b)
    assert (told["verdict"], told["sections"]["requests"]["renamed"]) == ("identical", 0)


def test_different_tokenizers_make_noise(made: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = head()["tokenizer"] | {"digest": digest(77)}
    quantised = head()["target"] | {"quantisation": {"method": "int4"}}
    other = save(tmp_path / "b.parquet", recording(), tokenizer=tokenizer, target=quantised)
    told = compare(made["full"], other)
    assert (told["verdict"], told["exit_code"]) == ("different", 1)
    assert told["causes"][0].startswith("The tokenizers differ")
    assert "noise" in told["causes"][0]
    assert told["sections"]["identity"]["header"][0]["key"] == "tokenizer.digest"
    assert {told["sections"][name]["status"] for name in ("tokens", "drafts", "probabilities")} == {"noise"}


def broken(requests: Requests, rounds: int, missing: int) -> Requests:
    """What an interruption leaves: r0 whole, r1 with its first rounds and their dense rows, no last ones."""

    def cut(found: Requests) -> None:
        rows = found["r1"][: 1 + rounds]
        rows[-1]["truncated_by"] = "interrupted"
        end = rows[-1]["anchor_position"]
        dense = [row for row in found["r1"] if row["kind"] == 1 and row["anchor_position"] < end]
        found["r1"] = rows + dense
        for number in range(len(found) - missing, len(found)):
            del found[f"r{number}"]

    return edited(requests, cut)


@pytest.mark.parametrize("on", list(On))
@pytest.mark.parametrize("status", ["interrupted", "recovered", "finished"])
@pytest.mark.parametrize(("rounds", "missing"), [(0, 0), (2, 0), (3, 1)])
def test_a_recording_that_was_broken_off_is_no_drift(
    tmp_path: Path, rounds: int, missing: int, status: RunStatus, on: On
) -> None:
    whole = recording()
    a = save(tmp_path / "a.parquet", whole)
    b = save(tmp_path / "b.parquet", broken(whole, rounds, missing), status=status)
    for name, told in (("B", compare(a, b, on=on)), ("A", compare(b, a, on=on))):
        assert told["exit_code"] == 1
        if status == "finished":
            assert told["verdict"] != "equal as far as both go"
            continue
        assert told["verdict"] == "equal as far as both go"
        (cause,) = told["causes"]
        assert cause.startswith(
            f"{name} was {status}: 1 of its requests end sooner and {missing} are missing"
        )


@pytest.mark.parametrize("change", ["bonus_token", "slot_lse", "truncated_by", "other side"])
def test_what_else_differs_is_not_put_down_to_the_end(tmp_path: Path, change: str) -> None:
    whole = recording()
    short = broken(whole, 2, 0)
    if change == "other side":
        whole["r0"], status = whole["r0"][:3], "interrupted"
    else:
        row, status = short["r0"][2], "interrupted"
        row[change] = {"bonus_token": 3, "slot_lse": np.asarray(row["slot_lse"]) + 1, "truncated_by": "stop"}[
            change
        ]
    a, b = save(tmp_path / "a.parquet", whole), save(tmp_path / "b.parquet", short, status=status)
    told = compare(a, b)
    assert told["verdict"] in ("different", "drifted, acceptance unchanged")
    assert not any("interrupted" in cause for cause in told["causes"])
