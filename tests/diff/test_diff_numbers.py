"""The numbers of a comparison against recounts that share no code with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from drifted import Requests, columns, compare, edited, recording, save
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_recorder import Recorder

from dflash.diff import On
from dflash.diff.matching import match
from dflash.diff.probability import divergence
from dflash.diff.spread import KEPT, Spread


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def outputs(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows_of(path):
        tokens = [*(row["node_token"][node] for node in row["accepted_nodes"]), row["bonus_token"]]
        found.setdefault(row["request_id"], []).extend(tokens[: row["emitted"]])
    return found


def noisy(scale: float, **settings: Any) -> Recorder:
    """The same target with noise on its logits: a quantisation of it."""
    recorder = Recorder(**settings)
    noise = np.random.default_rng(9).normal(0.0, scale, recorder.target.shape)
    recorder.target = recorder.target + noise.astype(np.float32)
    return recorder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    a = Recorder(requests=30).write(folder / "a.parquet")
    return a, noisy(0.3, requests=30).write(folder / "b.parquet")


def test_tau_and_its_paired_interval(pair: tuple[Path, Path]) -> None:
    lengths: list[dict[str, list[int]]] = []
    for path in pair:
        lengths.append({})
        for row in rows_of(path):
            if row["kind"] == 0:
                lengths[-1].setdefault(row["request_id"], []).append(len(row["accepted_nodes"]) + 1)
    names = sorted(lengths[0])
    means = [np.mean([n for name in names for n in side[name]]) for side in lengths]
    told = compare(*pair)["sections"]["acceptance"]["tau"]
    assert [told["a"], told["b"]] == pytest.approx(means)
    random, drawn = np.random.default_rng(123), []
    for _ in range(2000):
        some = random.choice(names, len(names))
        drawn.append(
            np.subtract(*[np.mean([n for name in some for n in side[name]]) for side in lengths[::-1]])
        )
    assert told["difference_interval"] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.03)


def test_acceptance_at_every_position(pair: tuple[Path, Path]) -> None:
    told = compare(*pair)
    for side, path in zip("ab", pair, strict=True):
        counts = np.array([len(row["accepted_nodes"]) for row in rows_of(path) if row["kind"] == 0])
        for position, shift in enumerate(told["sections"]["acceptance"]["positions"], 1):
            assert shift[side] == pytest.approx((counts >= position).mean())
            assert told["metrics"][f"accept@{position}"][side] == shift[side]
            low, high = shift["difference_interval"]
            assert low - 1e-9 <= shift["difference"] <= high + 1e-9


def test_first_differences_and_their_margins(pair: tuple[Path, Path]) -> None:
    told = compare(*pair, limit=100)["sections"]["tokens"]
    texts = [outputs(path) for path in pair]
    parted, shared, total = {}, 0, 0
    for name, left in texts[0].items():
        right = texts[1][name]
        common = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), None)
        shared += min(len(left), len(right)) if common is None else common
        total += max(len(left), len(right))
        if common is not None:
            parted[name] = common
    assert {row["request_a"]: row["output"] for row in told["listed"]} == parted
    assert (told["parted"], told["shared_tokens"], told["output_tokens"]) == (len(parted), shared, total)
    for side, path in zip("ab", pair, strict=True):
        rows = rows_of(path)
        for row in told["listed"]:
            left = row["output"]
            for found in (r for r in rows if r["request_id"] == row["request_a"]):
                if left < found["emitted"]:
                    slot = 0 if left == 0 else found["accepted_nodes"][left - 1] + 1
                    assert row[f"gap_{side}"] == pytest.approx(found["slot_gap"][slot])
                    break
                left -= found["emitted"]


@pytest.mark.parametrize("on", list(On))
def test_what_is_compared(pair: tuple[Path, Path], on: On) -> None:
    """Rounds pair by number or anchor, and only while all tokens up to the anchor are the same."""
    told = compare(*pair, on=on)["sections"]["requests"]["rows"]
    texts, expected = [outputs(path) for path in pair], 0
    anchors: list[dict[str, list[int]]] = [{}, {}]
    for path, found in zip(pair, anchors, strict=True):
        for row in rows_of(path):
            if row["kind"] == 0:
                found.setdefault(row["request_id"], []).append(row["anchor_position"] - 3)
    for name, left in texts[0].items():
        common = 0
        while common < min(len(left), len(texts[1][name])) and left[common] == texts[1][name][common]:
            common += 1
        whole = common == min(len(left), len(texts[1][name]))
        first, second = anchors[0][name], anchors[1][name]
        partners = set(first) & set(second)
        if on is On.ROUNDS:
            partners = {x for x, y in zip(first, second, strict=False) if x == y}
        expected += sum(1 for anchor in partners if whole or anchor < common)
    assert told["a"]["compared"] == told["b"]["compared"] == expected
    for count in told.values():
        assert count["total"] == sum(count[name] for name in count if name != "total")


def test_probabilities_against_the_whole_law(tmp_path: Path) -> None:
    """A Markov target over a dozen tokens: with every logit stored KL is exact, with four it is a bound."""
    made = [Recorder(requests=12), noisy(0.3, requests=12)]
    a, b = (recorder.write(tmp_path / f"{index}.parquet") for index, recorder in enumerate(made))
    told = compare(a, b, on=On.ANCHORS)["sections"]["probabilities"]
    laws = [r.target - np.log(np.exp(r.target.astype(np.float64)).sum(axis=1, keepdims=True)) for r in made]
    kl = (np.exp(laws[0]) * (laws[0] - laws[1])).sum(axis=1)
    assert 0 < told["kl"]["mean"] <= kl.max()
    assert told["kl"]["percentiles"]["100"] <= kl.max() + 1e-5
    assert told["kl"]["percentiles"]["0"] >= -1e-6
    assert told["same_top1"]["share"] == pytest.approx(1.0) or (laws[0].argmax(1) != laws[1].argmax(1)).any()


def test_change_of_p(tmp_path: Path) -> None:
    """Every slot of two files of equal trees, counted in a loop."""
    rng = np.random.default_rng(0)

    def edit(found: Requests) -> None:
        for row in (row for rows in found.values() for row in rows):
            noise = rng.normal(size=len(row["slot_choice_logit"]))
            row["slot_choice_logit"] = np.asarray(row["slot_choice_logit"] + noise, np.float32)
            row["slot_argmax"] = np.where(noise > 1, 5, row["slot_argmax"])

    base = recording()
    other = edited(base, edit)
    expected, same = [], []
    for name, rows in base.items():
        for left, right in zip(rows, other[name], strict=True):
            p, q = (
                np.exp(np.minimum(row["slot_choice_logit"] - row["slot_lse"], 0.0)) for row in (left, right)
            )
            expected.extend(q - p)
            same.extend(left["slot_argmax"] == right["slot_argmax"])
    told = compare(save(tmp_path / "a.parquet", base), save(tmp_path / "b.parquet", other))
    change, top1 = (told["sections"]["probabilities"][name] for name in ("change_of_p", "same_top1"))
    assert change["count"] == len(expected)
    assert change["mean"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert change["rms"] == pytest.approx(np.sqrt(np.mean(np.square(expected))), abs=1e-6)
    assert change["percentiles"]["50"] == pytest.approx(np.median(expected), abs=1e-6)
    assert top1["share"] == told["metrics"]["same_top1"]["b"] == pytest.approx(np.mean(same))


LOGITS = st.lists(st.floats(-6, 6), min_size=12, max_size=12)


@settings(max_examples=200, deadline=None)
@given(p=LOGITS, q=LOGITS, listed=st.integers(1, 12))
def test_the_divergence_is_a_lower_bound(p: list[float], q: list[float], listed: int) -> None:
    logs = [np.array(x) - np.log(np.exp(x).sum()) for x in (p, q)]
    exact = float((np.exp(logs[0]) * (logs[0] - logs[1])).sum())
    order = [np.argsort(-log, kind="stable")[:listed] for log in logs]
    place = {int(token): index for index, token in enumerate(order[1])}
    partner = np.array([[place.get(int(token), -1) for token in order[0]]])
    found = float(divergence(logs[0][order[0]][None], logs[1][order[1]][None], partner)[0])
    assert found <= exact + 1e-4
    if listed == 12:
        assert found == pytest.approx(exact, abs=1e-4)


def test_lists_with_nothing_in_common_are_far_apart() -> None:
    """Merging everything would say 0: what the other list leaves bounds the probability of what it lacks."""
    log_p, log_q = (np.log(np.array([[0.6, 0.3]])) for _ in range(2))
    assert divergence(log_p, np.log(np.array([[0.9, 0.001]])), np.array([[-1, -1]]))[0] > 3
    assert divergence(log_p, log_q, np.array([[0, 1]]))[0] == pytest.approx(0.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=20), st.lists(st.integers(0, 5), max_size=20))
def test_match_pairs_equal_keys_in_order(a: list[int], b: list[int]) -> None:
    left, right = match(np.array(a, np.int64), np.array(b, np.int64))
    assert len(left) == sum(min(a.count(key), b.count(key)) for key in set(a))
    assert [a[i] for i in left] == [b[i] for i in right]
    assert (np.diff(left) > 0).all()
    for key in set(a):
        assert [j for i, j in zip(left, right, strict=True) if a[i] == key] == [
            j for j, other in enumerate(b) if other == key
        ][: a.count(key)]


def test_spread_is_what_numpy_says() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    spread = Spread()
    for part in np.array_split(values, 7):
        spread.add(part)
    assert spread.mean == pytest.approx(values.mean())
    assert spread.error == pytest.approx(values.std(ddof=1) / np.sqrt(len(values)))
    assert spread.rms == pytest.approx(np.sqrt((values**2).mean()))
    found = spread.percentiles((100, 99, 50, 0))
    assert found["99"] == pytest.approx(np.percentile(values, 99), abs=1e-5)
    assert (found["100"], found["0"]) == (values.max(), values.min())


def test_spread_keeps_a_bounded_share() -> None:
    spread = Spread()
    for _ in range(5):
        spread.add(np.linspace(0, 1, KEPT // 2))
    assert spread.count == 5 * (KEPT // 2)
    assert spread.share == 0.25
    assert spread.percentiles([50])["50"] == pytest.approx(0.5, abs=0.01)


def test_trees_match_by_the_tokens_of_their_paths(tmp_path: Path) -> None:
    """The second file drafts the same nodes in another order, and one more."""

    def edit(found: Requests) -> None:
        row = found["r0"][1]
        first, below, other = row["node_token"]
        row |= {"node_token": [other, first, below], "node_parent": [-1, -1, 1], "accepted_nodes": [1]}
        for name, value in row.items():
            if name.startswith("node_") and name not in {"node_token", "node_parent"}:
                row[name] = np.asarray(value)[[2, 0, 1]]

    def reorder_slots(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name.startswith(("slot_", "draft_")) and hasattr(value, "__len__"):
                width = len(value) // 4
                row[name] = np.asarray(value).reshape(4, width)[[0, 3, 1, 2]].ravel()

    def both(found: Requests) -> None:
        edit(found)
        reorder_slots(found["r0"][1])

    base = recording()
    a, b = save(tmp_path / "a.parquet", base), save(tmp_path / "b.parquet", edited(base, both))
    told = compare(a, b)
    drafts = told["sections"]["drafts"]
    assert drafts["common"] == drafts["nodes_a"] == drafts["nodes_b"]
    assert set(columns(told, "drafts")) == {"node_token", "node_parent"}
    assert columns(told, "probabilities") == {}
    assert columns(told, "decisions")["accepted_nodes"]["beyond_tolerance"] == 0


def test_request_settings_are_told_under_identity(tmp_path: Path) -> None:
    a = Recorder(temperatures=[0.8] * 4).write(tmp_path / "a.parquet")
    b = Recorder(temperatures=[0.8, 0.8, 0.5, 0.5], seed=6).write(tmp_path / "b.parquet")
    told = compare(a, b)
    identity = told["sections"]["identity"]
    assert identity["requests"]["sampling.temperature"]["requests"] == 2
    assert identity["requests"]["seed"]["requests"] == 4
    assert [row["key"] for row in identity["header"]] == ["seed"]
    assert any(cause.startswith("Sampling differs (seed") for cause in told["causes"])
    json.dumps(told, allow_nan=False)
