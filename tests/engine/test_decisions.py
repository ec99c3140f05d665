"""Whatever the settings, replay derives every decision of a live run from the numbers that it stored."""

from __future__ import annotations

import itertools

import pytest
from click.testing import CliRunner

from dflash.cli.main import app
from dflash.drafters.base import ProposalKind

POLICIES = ("match", "greedy", "speculative", "threshold:t=0.3", "match:length=2,branches=1")
SAMPLINGS = (
    {},
    {"temperature": 0.9},
    {"temperature": 1.3, "top_k": 7},
    {"temperature": 0.7, "top_p": 0.6, "draft_temperature": 1.1},
    {"temperature": 1.0, "draft_top_k": 3, "draft_top_p": 0.8},
)
DRAFTERS = ({"drafter": "ngram"}, {"drafter": "self", "branches": 1}, {"drafter": "self", "branches": 3})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_decision_is_reproduced(tiny, record, tmp_path, policy, sampling):
    kinds = [None] if not sampling else [None, ProposalKind.INDEPENDENT, ProposalKind.SHARED]
    for number, (drafter, kind) in enumerate(itertools.product(DRAFTERS, kinds)):
        path = tmp_path / f"{number}.parquet"
        settings = {"length": 4, "max_new_tokens": 24, "lanes": 2, "proposal": kind, **drafter, **sampling}
        rows = record(tiny, ["ab ab", "go"], path=path, policy=policy, **settings)
        result = CliRunner().invoke(app, ["replay", str(path), "--check"], standalone_mode=False)
        assert result.exception is None, (settings, result.exception)
        assert result.return_value in (0, None), (settings, result.output)
        live = [row for row in rows if row["kind"] == 0]
        tau = sum(len(row["accepted_nodes"]) + 1 for row in live) / len(live)
        assert f"{tau:.3f}" in result.output
