"""`dflash tune` recommends what a live run confirms, reads a file once, and says how sure it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from timed import clocked, machine
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.replay.cost import CostModel
from dflash.replay.errors import NothingToJudge, NothingToRecommend
from dflash.replay.run import replay
from dflash.replay.statistics import Interval
from dflash.replay.sweep import expand
from dflash.replay.tune import steps, strides, tune
from dflash.replay.tuned import Search, Tuned
from dflash.report import surface

SCHEMA = Path(__file__).parents[2] / "schemas" / "tune_v1.schema.json"
TWELVE = "match:length=1..4,branches=1..3"
LAW = CostModel(machine(), "law", 1.0, (), (), 0)


def recorder(**changes: Any) -> Recorder:
    shape = {"length": 4, "branches": 3, "requests": 12, "max_new_tokens": 24}
    return Recorder(**({"proposal": Proposal.SHARED, "edit": clocked()} | shape | changes))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    return recorder(dense=True).write(folder / "dense.parquet")


@pytest.fixture(scope="module")
def costs(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Times of the recording, which always drafts in full, and of one that never drafts."""
    path = tmp_path_factory.mktemp("plain") / "plain.parquet"
    plain = recorder(length=0, branches=1).write(path, run_id="plain")
    return ["--cost", str(dense), "--cost", str(plain)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """tau of a live run under each of twelve policies."""
    folder = tmp_path_factory.mktemp("live")
    found = {}
    for policy in expand(TWELVE):
        shape = {"length": policy.shape.length, "branches": policy.shape.branches}
        path = recorder(requests=6, **shape).write(folder / f"{len(found)}.parquet")
        rows = pq.read_table(path, columns=["kind", "accepted_nodes"]).to_pylist()
        counts = [len(row["accepted_nodes"]) for row in rows if row["kind"] == 0]
        found[str(policy)] = 1 + sum(counts) / len(counts)
    return found


def search(path: Path, sweep: str = TWELVE, **options: Any) -> Tuned:
    return tune(open_run([path]).files, expand(sweep), options.pop("model", LAW), **options)


def width(interval: Interval | None) -> float:
    assert interval is not None
    return interval.high - interval.low


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b of two rankings."""
    pairs = [
        (np.sign(one[i] - one[j]), np.sign(other[i] - other[j])) for i in range(len(one)) for j in range(i)
    ]
    ties = [sum(pair[side] != 0 for pair in pairs) for side in (0, 1)]
    return float(sum(a * b for a, b in pairs) / np.sqrt(ties[0] * ties[1]))


def test_a_walked_ranking_is_the_live_one(tmp_path: Path, live: dict[str, float]) -> None:
    found = search(recorder(requests=6, dense=True).write(tmp_path / "dense.parquet"))
    predicted = {str(item.policy): item.row.tau for item in found.candidates}
    assert {item.row.exactness for item in found.candidates} == {"path-exact"}
    assert predicted == pytest.approx(live)
    best = found.candidates[found.best]
    assert best.row.interval is not None
    assert best.row.interval.low <= live[str(best.policy)] <= best.row.interval.high


def test_a_ranking_re_judged_from_one_live_run_is_close_to_the_live_one(
    tmp_path: Path, live: dict[str, float]
) -> None:
    found = search(recorder(requests=6).write(tmp_path / "run.parquet"))
    predicted = {str(item.policy): item.row for item in found.candidates}
    names = sorted(live)
    ranking = [predicted[name].tau or 0.0 for name in names]
    assert kendall(ranking, [live[name] for name in names]) >= 0.9
    best = found.candidates[found.best]
    assert best.row.interval is not None
    assert best.row.interval.low <= live[str(best.policy)] <= best.row.interval.high


def test_the_best_is_the_fastest_and_differences_are_paired(dense: Path) -> None:
    found = search(dense)
    gains = [item.speed.speed_up for item in found.candidates]
    assert gains == sorted(gains, reverse=True)
    best = found.candidates[0]
    assert (best.speed.difference, best.speed.difference_interval) == (0.0, None)
    shares = [item.speed.best_share for item in found.candidates]
    assert sum(share or 0.0 for share in shares) == pytest.approx(1.0)
    for item in found.candidates[1:]:
        paired = item.speed.difference_interval
        assert item.speed.difference == pytest.approx(item.speed.speed_up - gains[0])
        assert paired is not None
        # requests are shared: a difference is surer than that of two runs on requests of their own
        own = [width(speed.interval) for speed in (item.speed, best.speed)]
        assert width(paired) < np.hypot(*own)
    frugal = found.candidates[found.frugal]
    assert frugal.speed.verified_per_token <= best.speed.verified_per_token
    assert any(item.front for item in found.candidates)


def test_a_search_by_halving_ends_where_the_grid_does(dense: Path) -> None:
    everything, few = search(dense), search(dense, search=Search.HALVING)
    assert [rung.requests for rung in few.rungs] == [4, 12]
    assert [(rung.policies, rung.kept) for rung in few.rungs] == [(12, 4), (4, 4)]
    assert len(few.candidates) + len(few.dropped) == 12
    assert few.candidates[0].policy == everything.candidates[0].policy
    grid = {item.policy: item.speed.speed_up for item in everything.candidates}
    assert all(item.speed.speed_up == pytest.approx(grid[item.policy]) for item in few.candidates)
    assert {cell[:2] for cell in few.surface} == {cell[:2] for cell in everything.surface}


@pytest.mark.parametrize(
    ("requests", "expected"), [(3, [1]), (12, [3, 1]), (36, [9, 3, 1]), (9999, [9, 3, 1])]
)
def test_rungs_are_thirds_of_the_requests(requests: int, expected: list[int]) -> None:
    assert strides(Search.HALVING, requests) == expected
    assert strides(Search.GRID, requests) == [1]


@pytest.mark.parametrize("how", list(Search))
def test_progress_reaches_its_end(dense: Path, how: Search) -> None:
    ticks: list[None] = []
    search(dense, search=how, progress=lambda: ticks.append(None))
    assert len(ticks) == steps(how, requests=12, policies=12, row_groups=1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of every pass over a file."""
    found: list[tuple[str, ...]] = []
    tables = DraftFile.tables

    def counted(self: DraftFile, columns: Sequence[str] | None = None, *threads: Any) -> Iterator[pa.Table]:
        found.append(tuple(columns or ()))
        return tables(self, columns, *threads)

    monkeypatch.setattr(DraftFile, "tables", counted)
    return found


def test_two_hundred_policies_are_judged_in_one_read(tmp_path: Path, reads: list[tuple[str, ...]]) -> None:
    path = recorder(length=3, branches=1, requests=3).write(tmp_path / "run.parquet")
    found = search(path, "threshold:t=0.01..0.67..0.01,length=1..3", max_divergence=1.0)
    assert len(found.candidates) == 201
    (columns,) = reads
    assert not [name for name in columns if name.startswith("feature") or name.endswith("_us")]


def test_a_dense_file_is_read_once_for_all_ways_of_replaying(
    tmp_path: Path, reads: list[tuple[str, ...]]
) -> None:
    shape = {"length": 3, "branches": 2, "requests": 3, "dense": True}
    path = recorder(proposal=Proposal.INDEPENDENT, **shape).write(tmp_path / "run.parquet")
    found = search(path, "match|speculative:length=1..3,branches=1..2")
    ways = {item.row.exactness for item in found.candidates}
    assert {"path-exact", "law-exact", "re-judge"} <= ways
    assert len(reads) == 1


def test_lossy_policies_are_recommended_only_as_far_as_allowed(tmp_path: Path) -> None:
    path = recorder(length=4, branches=1).write(tmp_path / "run.parquet")
    sweep = "match|threshold:length=4"
    strict, lax = (
        search(path, sweep),
        search(path, "threshold:t=0.05..0.65..0.2,length=4", max_divergence=1.0),
    )
    assert strict.candidates[strict.best].policy == parse_policy("match:length=4")
    diverging = [item.divergence for item in lax.candidates]
    assert max(diverging) > min(diverging) > 0
    assert all(item.divergence_interval is not None for item in lax.candidates)
    with pytest.raises(NothingToRecommend, match="--max-divergence"):
        search(path, "threshold:t=0.05..0.2..0.05,length=4")


def test_rules_that_emit_drafts_are_priced_by_their_law(tmp_path: Path) -> None:
    path = recorder(proposal=Proposal.INDEPENDENT, length=3, branches=1, dense=True).write(
        tmp_path / "run.parquet"
    )
    found = search(path, "match|speculative|block:length=2..3")
    items = {str(item.policy): item for item in found.candidates}
    for length in (2, 3):
        block, pairwise, match = (
            items[f"{rule}:length={length}"] for rule in ("block", "speculative", "match")
        )
        assert (block.row.exactness, match.row.exactness) == ("law-exact", "path-exact")
        assert block.speed.speed_up >= pairwise.speed.speed_up > match.speed.speed_up
        kept = block.row.emitted_per_round
        assert kept is not None
        assert block.speed.verified_per_token == pytest.approx((length + 1) / kept)
        profile, context = machine(), 16.0
        one = float(profile.draft(length, 1, 1) + profile.verify(length, 1, context))
        plain = float(profile.verify(0, 1, context))
        assert block.speed.speed_up == pytest.approx(kept * plain / one, rel=0.01)


def test_the_command_writes_policy_profile_and_figure(
    dense: Path, costs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, figure, profile = (tmp_path / name for name in ("best.toml", "surface.png", "profile.json"))
    words = ["tune", str(dense), *costs, "--sweep", TWELVE, "-o", str(best), "--surface", str(figure)]
    assert run([*words, "--save-cost", str(profile), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(found)
    assert str(parse_policy(str(best))) == found["best"] == found["policies"][0]["policy"]
    assert f"tau {found['policies'][0]['tau']:.3f}, 95 %" in best.read_text(encoding="utf-8")
    assert figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert {(cell["branches"], cell["length"]) for cell in found["surface"]} == {
        (width, length) for width in (1, 2, 3) for length in (1, 2, 3, 4)
    }
    priced = ["replay", str(dense), "--policy", str(best), "--cost", str(profile), "--json"]
    assert run(priced) == 0
    again = json.loads(capsys.readouterr().out)["runs"][0]["policies"][0]
    assert again["speed"]["speed_up"] == pytest.approx(found["policies"][0]["speed_up"])
    assert run(words) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_a_best_shape_at_the_edge_of_the_recording_is_told(dense: Path) -> None:
    assert search(dense, "match:length=4,branches=3").edges() == ("length", "branches")
    assert search(dense, "match:length=1..3,branches=1").edges() == ()
    assert search(dense, "match:length=2").edges() == ("branches",)
    assert search(dense, "match:length=0").edges() == ()


def test_text_tells_what_to_run_how_sure_it_is_and_what_words_mean(
    dense: Path, costs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", str(dense), *costs, "--sweep", TWELVE, "--limit", "3"]) == 0
    text = capsys.readouterr().out
    first = text.splitlines()[0].removeprefix("best: ")
    assert parse_policy(first) in expand(TWELVE)
    assert re.search(r"speed-up \d\.\d+ \(\d\.\d+ to \d\.\d+\) at batch 1, the fastest in \d+%", text)
    assert re.search(r"\d more policies", text)
    assert "residual" in text
    assert "assumes: " in text
    assert re.search(r"^1 .*\d\.\d\d", text, re.MULTILINE), "the surface is shown in the terminal"
    for word in ("tau", "speed up", "best share", "divergence", "front", "surface"):
        assert f"\n{word}: " in text
    assert run(["tune", str(dense), *costs, "--sweep", "match:length=4,branches=3"]) == 0
    assert "--length above 4 and --branches above 3 may be faster still" in capsys.readouterr().out


def test_a_figure_without_the_plotting_library_says_what_to_install(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(surface, "find_spec", lambda name: None)
    assert run(["tune", str(dense), "--surface", str(tmp_path / "surface.png")]) == 2
    assert "dflash-toolkit[plot]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_a_sweep_every_shape_is_tried_plain_decoding_among_them(
    dense: Path, costs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", str(dense), *costs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tried = {item["policy"]: item for item in found["policies"]}
    assert {str(policy) for policy in expand(TWELVE)} <= tried.keys()
    plain = tried["match:length=0,branches=1"]
    assert (plain["tau"], plain["verified_per_token"]) == (1.0, 1.0)
    assert plain["speed_up"] == pytest.approx(1.0)
    assert any(item["adaptive"] for item in found["policies"])
    assert found["contest"] is not None


def test_one_file_alone_is_priced_like_the_replay_of_it(dense: Path) -> None:
    file = open_draft_file(dense)
    policy = parse_policy("match:length=2,branches=1")
    row = replay([file], [policy]).rows[0]
    (item,) = search(dense, str(policy)).candidates
    assert (item.row.tau, item.row.interval) == (row.tau, row.interval)


def test_where_no_answer_has_a_round_no_rule_is_to_blame(recorded: Any) -> None:
    path = recorded(max_new_tokens=1)
    with pytest.raises(NothingToJudge, match="found none: every answer ended at its first token"):
        tune(open_run([path]).files, [parse_policy("match")], CostModel(machine(), "law", 1.0, (), (), 0))
