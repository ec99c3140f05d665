"""`dflash tune` compares no half walk with whole ones, and gives no speed-up over untimed plain rounds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timed import clocked, machine
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.cost import CostModel, fit_cost, load_cost
from dflash.replay.tune import tune
from dflash.replay.tuned import Tuned

SCHEMA = Path(__file__).parents[2] / "schemas" / "tune_v1.schema.json"
LOSSY = ["--sweep", "match:length=3", "--sweep", "threshold:t=0.05,length=3", "--max-divergence", "1"]


def record(path: Path, length: int = 3, **changes: Any) -> Path:
    changed: dict[str, Any] = {"temperature": 0.0, "requests": 6, "edit": clocked()} | changes
    return Recorder(proposal=Proposal.DETERMINISTIC, length=length, **changed).write(
        path, run_id=f"r{length}"
    )


def always_drafting(rows: list[dict[str, Any]]) -> None:
    """Time only rounds with nodes."""
    clocked()(rows)
    for row in rows:
        if row["kind"] == 0 and not len(row["node_token"]):
            row |= {"draft_us": None, "round_us": None}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("lossy") / "dense.parquet", dense=True)


@pytest.fixture(scope="module")
def untimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("untimed") / "live.parquet", edit=always_drafting)


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("law") / "law.json"
    path.write_text(json.dumps(machine().to_dict()), encoding="utf-8")
    return path


def told(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[dict[str, Any], list[str]]:
    """The document and the lines of one search."""
    found = []
    for more in (["--json"], []):
        assert run(["tune", str(path), "-q", *words, *more]) == 0
        found.append(capsys.readouterr().out)
    document = json.loads(found[0])
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(document)
    return document, found[1].splitlines()


def test_walks_that_stop_half_way_are_censored_and_compared_with_nothing(
    dense: Path, law: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, lines = told(capsys, dense, *LOSSY, "--cost", str(law))
    lossy, match = document["policies"]
    assert document["best"] == lossy["policy"]
    assert (lossy["censored"], match["censored"], match["covered"]) == (True, False, 1.0)
    assert 0 < lossy["covered"] < 1
    assert (lossy["front"], match["front"], lossy["best_share"]) == (False, True, None)
    assert (match["difference_to_best"], match["difference_interval"]) == (None, None)
    assert document["frugal"] == document["best"]
    assert lines[1].startswith(f"  censored: walked {lossy['covered']:.3f}")
    assert lines[2].startswith(f"  the fastest on whole answers: {match['policy']}, speed-up ")
    assert any("c censored" in line for line in lines)
    toml = tmp_path / "best.toml"
    assert run(["tune", str(dense), "-q", *LOSSY, "-o", str(toml)]) == 0
    assert "# censored: walked" in toml.read_text(encoding="utf-8")
    assert str(parse_policy(str(toml))) == document["best"]


def test_re_judged_policies_share_their_rounds_and_none_is_censored(
    dense: Path, law: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, lines = told(capsys, dense, *LOSSY, "--rejudge", "--cost", str(law))
    assert not any(item["censored"] or item["covered"] is not None for item in document["policies"])
    assert all(item["difference_to_best"] is not None for item in document["policies"])
    assert not any("censored: walked" in line for line in lines)


def test_a_speed_up_over_rounds_that_nobody_timed_is_not_known(
    untimed: Path, law: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, plain = tmp_path / "saved.json", record(tmp_path / "plain.parquet", 0)
    words = ["--sweep", "match:length=1..3"]
    assert run(["tune", str(untimed), "-q", *words, "--save-cost", str(saved)]) == 0
    capsys.readouterr()
    for path, costs, known in (
        (untimed, [], False),
        (untimed, [saved], False),
        (untimed, [untimed, plain], True),
        (untimed, [law], True),
    ):
        document, lines = told(
            capsys, path, *words, *(word for cost in costs for word in ("--cost", str(cost)))
        )
        assert document["plain_decoding_timed"] is known
        assert lines[1].startswith("  plain decoding was never timed") is not known


UNKNOWN = ("speed_up", "speed_up_interval", "difference_to_best", "difference_interval")


def test_no_speed_up_is_told_that_is_not_known_nor_a_best_that_the_times_do_not_tell(
    untimed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = fit_cost(open_run([untimed]).files).step_time.verify_us.axes[0]
    assert sizes[0] > 0
    for sweep, told in (
        ("match:length=3", True),
        ("match:length=2..3", False),
        ("match:length=0..3", False),
        ("match:length=0", False),
    ):
        toml, png = tmp_path / f"{sweep[-4:]}.toml", tmp_path / "map.png"
        document, lines = told_of(capsys, untimed, sweep)
        assert (document["best"] is not None) is told
        assert document["speculates"] is document["contest"] is None
        assert document["surface"] == []
        for item in document["policies"]:
            assert all(item[name] is None for name in UNKNOWN)
            assert item["tau"] is not None
            assert not (item["front"] and not told)
        assert not any(
            "speed-up" in line for line in lines[2:] if not line.startswith(("speed up:", "best:"))
        )
        assert lines[0].startswith("best: match" if told else "best: not known")
        assert run(["tune", str(untimed), "-q", "--sweep", sweep, "-o", str(toml)]) == (0 if told else 2)
        assert toml.exists() is told
        assert not told or "speed-up 1" not in toml.read_text(encoding="utf-8")
        assert run(["tune", str(untimed), "-q", "--sweep", sweep, "--surface", str(png)]) == 2
        assert "never timed" in capsys.readouterr().err


def told_of(capsys: pytest.CaptureFixture[str], path: Path, sweep: str) -> tuple[dict[str, Any], list[str]]:
    """The document and the lines before the words of one search."""
    document, lines = told(capsys, path, "--sweep", sweep)
    assert not any(line.startswith("speed up:") for line in lines)
    return document, lines


@pytest.mark.parametrize("policy", ["match", "match:length=1", "match:length=0"])
def test_replay_tells_no_speed_that_is_not_known(
    untimed: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", str(untimed), "--cost", "fit", "--policy", policy]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads(SCHEMA.with_name("replay_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    (row,) = document["runs"][0]["policies"]
    speed = row["speed"]
    assert all(speed[name] is None for name in ("speed_up", "interval", "difference", "best_share"))
    assert (speed["tokens_per_second"] is None) == (speed["round_us"] is None) == (policy != "match")
    assert speed["verified_per_token"] > 0
    assert run([*words, "-q"]) == 0
    text = capsys.readouterr().out
    assert "speed-up (95 %)" not in text
    assert ("tokens/s" in text) == (policy == "match")


@given(
    us=st.lists(st.floats(0.1, 1e6), min_size=4, max_size=4),
    length=st.integers(0, 3),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_decoding_is_as_fast_as_itself(dense: Path, us: list[float], length: int) -> None:
    """Whatever a search for drafts costs: who never drafts never pays it."""
    step = StepTime(
        Grid(((0.0, 3.0), (1.0,)), (us[0], us[1])), Grid(((0.0, 3.0), (1.0,), (1.0,)), (us[2], us[3]))
    )
    law = CostModel(step, "law", 1.0, (), (), 0)
    for rejudged in (True, False):
        texts = ("match:length=0", f"match:length={length}")
        policies = [parse_policy(text) for text in texts]
        found = tune(open_run([dense]).files, policies, law, dense=not rejudged)
        plain = next(item for item in found.candidates if str(item.policy) == texts[0])
        assert plain.speed.speed_up == pytest.approx(1.0)
        assert found.speculates() is (found.candidates[found.best].speed.speed_up > 1 and length > 0)


def test_where_nothing_was_drafted_there_is_nothing_to_tune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", str(record(tmp_path / "plain.parquet", 0))]) == 2
    assert "expected drafted nodes, found none in any live round" in capsys.readouterr().err


def test_replay_says_it_too(untimed: Path, law: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cost, known in (("fit", False), (str(law), True)):
        assert run(["replay", str(untimed), "--cost", cost]) == 0
        assert ("plain decoding was never timed" in capsys.readouterr().out) is not known


def test_a_fit_says_the_same_once_saved(untimed: Path, tmp_path: Path) -> None:
    model = fit_cost(open_run([untimed]).files)
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(model.step_time.to_dict()), encoding="utf-8")
    again = load_cost(path)
    assert not model.plain_timed
    assert not again.plain_timed
    nodes = np.arange(6)
    assert again.step_time.verify(nodes, 1, 9).tolist() == model.step_time.verify(nodes, 1, 9).tolist()


def searched(path: Path, *policies: str) -> Tuned:
    law = CostModel(machine(), "law", 1.0, (), (), 0)
    return tune(open_run([path]).files, [parse_policy(text) for text in policies], law)


@pytest.mark.parametrize("twins", [1, 2, 3])
def test_policies_that_tie_share_being_the_best(dense: Path, twins: int) -> None:
    alike = ["match:length=3,branches=1", "match:length=3", "match:branches=1"][:twins]
    found = searched(dense, *alike, "match:length=0")
    shares = {str(item.policy): item.speed.best_share for item in found.candidates}
    assert [shares[name] for name in alike] == pytest.approx([1 / twins] * twins)
    assert shares["match:length=0"] == 0.0


def test_rows_beyond_the_limit_are_explained(
    dense: Path, law: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sweep", "match:length=0..3", "--limit", "1", "--cost", str(law)]
    document, lines = told(capsys, dense, *words)
    beyond = sum(item["front"] for item in document["policies"][1:])
    assert beyond > 0
    assert any(re.search(rf"{beyond} rows beyond --limit 1 .* on the front", line) for line in lines)
