"""Every rule that runs live decides as replay does, from rows as stored; what cannot run live is refused."""

from __future__ import annotations

import draft_runs
import pytest

from dflash.draftfile.run import open_run
from dflash.errors import UsageError
from dflash.policy.catalogue import policies
from dflash.policy.errors import SampledOnly
from dflash.policy.registry import parse_policy
from dflash.replay.run import replay

TREES = ["coverage", "typical", "relaxed:k=4", "tolerance:k=2,tolerance=0.5", "margin", "threshold:t=0.3"]
CHAINS = ["fly:window=1", "ensemble:w=0.5", "synthetic:rates=0.9/0.8/0.5"]
# all of both laws, so that a mixture of two flat ones shows its likeliest token
GIVEN = {"length": 3, "max_new_tokens": 24, "store_topk": 1024}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", TREES + CHAINS)
def test_a_live_run_is_reproduced(tiny, tmp_path, policy, temperature):
    branches = 1 if policy in CHAINS else 3
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(2),
        tmp_path / "run.parquet",
        drafter="self",
        policy=policy,
        temperature=temperature,
        branches=branches,
        **GIVEN,
    )
    result = replay(open_run([path]).files, check=True)
    assert result.check.passed, result.check.listed
    (row,) = result.rows
    assert row.recorded
    assert row.unknown_bonus == 0
    assert row.tau > 1
    if policy in CHAINS and temperature > 0:
        proposal = open_run([path]).files[0].header.drafters[0]["proposal"]
        assert proposal == ("shared" if policy.startswith("synthetic") else "independent")


def test_a_lossy_run_has_off_choice_rounds(tiny, tmp_path):
    """A drafter that is nearly right and a rule that takes nearly anything: drafts that differ are kept."""
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(3),
        tmp_path / "run.parquet",
        drafter="self",
        policy="coverage:mass=1",
        temperature=0.8,
        proposal="independent",
        **GIVEN,
    )
    (row,) = replay(open_run([path]).files).rows
    assert row.off_choice_rounds > 0
    assert not row.lossless


def test_every_rule_that_runs_live_is_here_or_in_the_walks():
    tested = {policy.partition(":")[0] for policy in TREES + CHAINS}
    walked = {"block", "greedy", "match", "speculative"}
    assert {rule.name for rule in policies() if rule.live} <= tested | walked


@pytest.mark.parametrize("policy", ["vllm-v1", "sglang", "trtllm", "threshold:single=0.5"])
def test_what_is_for_replay_is_refused_before_a_target_is_loaded(tmp_path, policy):
    with pytest.raises(UsageError, match="is for replay"):
        draft_runs.record(None, ["One"], tmp_path / "a.parquet", policy=policy)


@pytest.mark.parametrize(
    ("policy", "given", "kind"),
    [
        ("fly", {"branches": 2}, UsageError),
        ("synthetic:rates=0.9/0.9/0.9", {"branches": 2}, UsageError),
        ("ensemble", {"branches": 1, "temperature": 0.8, "drafter": "ngram"}, SampledOnly),
    ],
)
def test_what_no_round_could_be_judged_for_is_refused_before_decoding(tiny, tmp_path, policy, given, kind):
    with pytest.raises(kind, match=parse_policy(policy).rule.name):
        draft_runs.record(tiny, ["One"], tmp_path / "a.parquet", policy=policy, **given)
    assert not list(tmp_path.iterdir())
