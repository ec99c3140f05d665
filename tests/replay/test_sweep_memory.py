"""What a replay keeps of every policy is small, since there may be many policies and many requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dflash.bench.replay_files import Made, write
from dflash.draftfile.reader import open_draft_file
from dflash.policy.registry import parse_policy
from dflash.replay.branching import Branching
from dflash.replay.details import Details, Wanted
from dflash.replay.jobs import count_over
from dflash.replay.rejudge import Rejudging
from dflash.replay.run import recorded_policy
from dflash.replay.statistics import draws_of


@pytest.mark.parametrize(("per_request", "kind"), [(40, np.uint8), (300, np.uint16)])
def test_counts_are_kept_in_the_narrowest_type_and_chains_keep_no_branches(
    tmp_path: Path, per_request: int, kind: type
) -> None:
    file = open_draft_file(write(tmp_path / "made.parquet", Made(1200, per_request=per_request)))
    policies = [parse_policy("match:length=1"), parse_policy("match")]
    recorded = recorded_policy(file)
    details = Details.of(Wanted(), policies, recorded.shape)
    judging = Rejudging.of(policies, details.collectors(), recorded, file, None, None)
    count_over([file], [judging], 1, lambda: None)
    for tally, length in zip(judging.tallies, (1, 8), strict=True):
        kept = [*tally._lengths, *tally._reached]
        assert sum(part.nbytes for part in kept) <= 2 * file.requests * (length + 1) * kind().itemsize
        assert tally.lengths().sum() == 1200
        assert not any(item._sums for item in tally.collectors if isinstance(item, Branching))


@pytest.mark.parametrize("requests", [2, 255, 256, 257, 700])
def test_draws_are_sums_over_requests_whatever_they_are_taken_with(requests: int) -> None:
    """Sums in pieces of requests, or of columns, are the sums of all."""
    random = np.random.default_rng(requests)
    whole = random.integers(0, 90, (requests, 5)).astype(np.float64)
    parts = random.random((requests, 5))
    alone = np.stack([draws_of(whole[:, [column]], requests)[:, 0] for column in range(5)], axis=1)
    np.testing.assert_array_equal(draws_of(whole, requests), alone)
    wide = draws_of(np.concatenate((whole, parts), axis=1), requests)
    np.testing.assert_allclose(wide[:, :5], alone, rtol=1e-12)
    # every resample draws as many requests as there are
    np.testing.assert_array_equal(draws_of(np.ones((requests, 1)), requests), requests)
