"""Live rounds of rules that emit drafts against their law: by text, and over several seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import draft_runs
import numpy as np

from dflash.draftfile.run import open_run
from dflash.policy.registry import parse_policy
from dflash.replay.dense import dense_batches
from dflash.replay.law_exact import LAW_COLUMNS, lengths, reach

NINETY_NINE = 2.576


class Law(NamedTuple):
    """By request: tokens after the first, expected rounds, their variance."""

    tokens: np.ndarray
    rounds: np.ndarray
    variance: np.ndarray

    def per_round(self) -> tuple[float, float]:
        """Tokens a round, and the half width of its 99 % interval over texts and coins."""
        ratio = self.tokens.sum() / self.rounds.sum()
        spread = ((self.tokens - ratio * self.rounds) ** 2).sum() + ratio**2 * self.variance.sum()
        return ratio, NINETY_NINE * math.sqrt(spread) / self.rounds.sum()


def law_of(path: Path, length: int, policy: str) -> Law:
    """The law of the rounds along every text of a dense file."""
    rule = parse_policy(policy).rule
    found = []
    for file in open_run([path]).files:
        for dense in dense_batches(file, {*LAW_COLUMNS, "node_token"}):
            one = lengths(dense, reach(dense, length, rule))
            found.append((one.tokens, one.rounds, one.variance))
    return Law(*(np.concatenate(part) for part in zip(*found, strict=True)))


def live_counts(path: Path) -> tuple[int, int]:
    """Live rounds and the tokens that they kept."""
    live = [row["emitted"] for row in draft_runs.rows(path) if row["kind"] == 0]
    return len(live), sum(live)


def hold(target: Any, folder: Path, asked: Any, seeds: int, **given: Any) -> tuple[float, float]:
    """Record one seed dense and others live; distance of the live means, in 99 % half widths and sigmas.

    Returns:
        How far the mean live emitted/round of the other seeds lies from the walk's, in half widths of the
        walk's 99 % interval; and how far the dense runs' own rounds lie from their law, in standard
        deviations.
    """
    common = {"policy": "speculative", "temperature": 0.8, "branches": 1, "features": "none"} | given
    dense = draft_runs.record(target, asked, folder / "dense.parquet", dense=True, seed=0, **common)
    law = law_of(dense, common["length"], common["policy"])
    rounds, kept = live_counts(dense)
    assert kept == law.tokens.sum()
    own = (rounds - law.rounds.sum()) / math.sqrt(law.variance.sum())
    ratio, half = law.per_round()
    counts = []
    for seed in range(1, 1 + seeds):
        path = draft_runs.record(target, asked, folder / f"{seed}.parquet", seed=seed, **common)
        counts.append(live_counts(path))
    live = sum(kept for _, kept in counts) / sum(rounds for rounds, _ in counts)
    print(
        f"{len(asked)} prompts: walk {ratio:.3f} ± {half:.3f} emitted/round (99 %), "
        f"live over {seeds} seeds {live:.3f}; the dense run's own rounds {own:+.2f} sigma off their law"
    )
    return (live - ratio) / half, own
