"""What `dflash tune` predicts, the engine then does: the ranking of twelve policies, and tau of the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import draft_runs
import numpy as np
import pytest

from dflash.cli.main import run
from dflash.target.load import load_target

TWELVE = "match:length=1..4,branches=1..3"
LARGEST = {"length": 4, "branches": 3}


def tuned(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, dict[str, Any]]:
    """Every policy of a search by name, the best first."""
    assert run(["tune", str(path), "--sweep", TWELVE, "--json", "-q", *more]) == 0
    found = {item["policy"]: item for item in json.loads(capsys.readouterr().out)["policies"]}
    assert len(found) == 12
    return found


def live_tau(path: Path) -> float:
    counts = [len(row["accepted_nodes"]) for row in draft_runs.rows(path) if row["kind"] == 0]
    return 1 + sum(counts) / len(counts)


def kendall(one: list[float], other: list[float]) -> float:
    """Kendall's tau-b of two rankings."""
    upper = np.triu_indices(len(one), 1)
    signs = [np.sign(np.subtract.outer(values, values)[upper]) for values in (one, other)]
    ties = [np.count_nonzero(sign) for sign in signs]
    return float(signs[0] @ signs[1] / np.sqrt(ties[0] * ties[1]))


def hold(
    target: Any, folder: Path, capsys: pytest.CaptureFixture[str], asked: Any, **given: Any
) -> tuple[float, float]:
    """Record once, tune, run every policy live; Kendall's tau with the walked and the re-judged ranking."""
    common = LARGEST | {"features": "none"} | given
    path = draft_runs.record(target, asked, folder / "tuned.parquet", dense=True, **common)
    searches = {"walked": tuned(path, capsys), "re-judged": tuned(path, capsys, "--rejudge")}
    live = {}
    for number, policy in enumerate(searches["walked"]):
        output = folder / f"live{number}.parquet"
        live[policy] = live_tau(draft_runs.record(target, asked, output, policy=policy, **common))
    scores = []
    for way, found in searches.items():
        predicted = [found[policy]["tau"] for policy in live]
        scores.append(kendall(predicted, list(live.values())))
        best, item = next(iter(found.items()))
        low, high = item["tau_interval"]
        assert low <= live[best] <= high
        off = np.abs(np.subtract(predicted, list(live.values()))).max()
        with capsys.disabled():
            print(
                f"\n{given['drafter'].partition(':')[0]}, {way}: Kendall {scores[-1]:.3f}, tau off by up to "
                f"{off:.3f}; best {best}: {item['tau']:.3f} ({low:.3f} to {high:.3f}), live {live[best]:.3f}"
            )
    return scores[0], scores[1]


@pytest.mark.slow
def test_the_ranking_of_twelve_policies_is_the_live_one(
    tiny: Any, drafter_named: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"drafter": drafter_named("model:fair"), "max_new_tokens": 20, "temperature": 0.8}
    walked, rejudged = hold(tiny, tmp_path, capsys, draft_runs.prompts(5), **given)
    assert walked == pytest.approx(1.0)
    assert rejudged >= 0.9


@pytest.mark.evidence
@pytest.mark.network
@pytest.mark.parametrize("drafter", ["ngram", "self"])
def test_evidence_the_ranking_on_the_sample_prompts_is_the_live_one(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], drafter: str
) -> None:
    lines = (root / "sample_runs" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line)["prompt"] for line in lines]
    temperature = 0.8 if drafter == "self" else 0.0
    given = {"drafter": drafter, "max_new_tokens": 32, "temperature": temperature, "lanes": 3}
    walked, rejudged = hold(load_target(), tmp_path, capsys, asked, **given)
    assert walked >= 0.9
    assert rejudged >= 0.9 or drafter == "ngram"
