"""Calibration, branch statistics and the knee, held against slow counts over single rounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from dflash.policy.decision import Decision, end_at
from dflash.policy.rounds import Rounds
from dflash.replay.branching import Branches, Branching
from dflash.replay.calibration import Calibration, Signal
from dflash.replay.knee import knee
from dflash.replay.statistics import resampled


class Judged(NamedTuple):
    rounds: Rounds
    decision: Decision


def judged(parents: list[list[int]], last: list[int], **values: list[float]) -> Judged:
    """Rounds with the path to the given node of each accepted (-1 = nothing)."""
    counts = np.array([len(parent) for parent in parents])
    flat = np.array([node for parent in parents for node in parent], dtype=np.int64)
    columns = {name: np.array(column) for name, column in values.items()}
    rounds = Rounds.build(
        counts,
        flat,
        np.zeros(len(parents), dtype=np.int64),
        np.zeros((len(parents), 2), np.uint32),
        columns,
    )
    ends = np.array(
        [start + node if node >= 0 else -1 for start, node in zip(rounds.node_offsets, last, strict=False)]
    )
    slots = np.zeros(len(flat) + len(parents), dtype=np.int64)
    return Judged(rounds, end_at(rounds, ends, slots))


def chains(random: np.random.Generator, rounds: int, skill: float) -> tuple[Judged, np.ndarray]:
    """Chains of four whose confidence is the chance to be accepted, bent by `skill` (1 = calibrated)."""
    confidence = random.uniform(0.02, 0.98, rounds * 4)
    right = (random.uniform(size=rounds * 4) < confidence**skill).reshape(rounds, 4)
    accepted = np.cumprod(right, axis=1).sum(axis=1)
    item = judged(
        [[-1, 0, 1, 2]] * rounds,
        (accepted - 1).tolist(),
        node_confidence=confidence.tolist(),
        node_margin=[np.nan] * (rounds * 4),
    )
    return item, accepted


def reached_nodes(item: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Scores and outcomes of all nodes whose parent is accepted, one by one."""
    scores, outcomes = [], []
    for node, parent in enumerate(item.rounds.parent_node.tolist()):
        if parent < 0 or item.decision.accepted[parent]:
            scores.append(item.rounds["node_confidence"][node])
            outcomes.append(bool(item.decision.accepted[node]))
    return np.array(scores), np.array(outcomes)


def test_calibration_is_that_of_the_nodes_one_by_one() -> None:
    item, _ = chains(np.random.default_rng(0), 400, skill=1.7)
    calibration = Calibration()
    owner = np.repeat(np.arange(20), 20)
    for begin in (0, 200):
        rows = np.arange(begin, begin + 200)
        part = item.rounds.take(rows)
        calibration.count([owner[:200]], [Judged(part, item.decision.take(part, rows))], 10)
    (found,) = calibration.report()
    scores, outcomes = reached_nodes(item)
    assert found.signal is Signal.CONFIDENCE
    assert (found.reached, found.accepted) == (len(scores), outcomes.sum())
    tenth = np.minimum((scores * 10).astype(int), 9)
    gaps = [abs((outcomes - scores)[tenth == number].sum()) for number in range(10)]
    assert found.ece == pytest.approx(sum(gaps) / len(scores))
    assert [item.reached for item in found.bins] == np.bincount(tenth, minlength=10).tolist()
    assert [item.accepted for item in found.bins] == np.bincount(tenth[outcomes], minlength=10).tolist()
    above = scores[outcomes][:, None] - scores[~outcomes][None]
    # the grid takes scores within a quarter of a logit as equal
    assert found.auc == pytest.approx(((above > 0) + 0.5 * (above == 0)).mean(), abs=0.01)


def test_a_calibrated_confidence_has_a_small_error_and_a_bent_one_has_not() -> None:
    errors = []
    for skill in (1.0, 3.0):
        calibration = Calibration()
        item, _ = chains(np.random.default_rng(1), 4000, skill)
        calibration.count([np.arange(4000) // 40], [item], 100)
        (found,) = calibration.report()
        assert found.ece_interval is not None
        assert found.ece_interval.low < found.ece_interval.high
        errors.append(found)
    good, bent = errors
    assert good.ece is not None
    assert good.ece < 0.02
    assert bent.ece_interval is not None
    assert bent.ece_interval.low > 0.1
    # bending is monotone, so that the order stays as good
    assert bent.auc is not None
    assert bent.auc > 0.7


def test_a_margin_speaks_of_the_first_sibling_alone() -> None:
    item = judged([[-1, -1]], [1], node_confidence=[np.nan] * 2, node_margin=[2.0, 2.0])
    calibration = Calibration()
    calibration.count([np.array([0])], [item], 1)
    (found,) = calibration.report()
    assert (found.signal, found.reached, found.accepted) == (Signal.MARGIN, 1, 0)
    assert found.ece == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert found.auc is None
    assert found.ece_interval is None


def test_nodes_below_a_rejected_one_say_nothing() -> None:
    item = judged([[-1, 0, 1]], [-1], node_confidence=[0.5, 0.9, 0.9], node_margin=[np.nan] * 3)
    calibration = Calibration()
    calibration.count([np.array([0])], [item], 1)
    (found,) = calibration.report()
    assert (found.reached, found.accepted) == (1, 0)


def branching(*items: Judged) -> Branches | None:
    found = Branching()
    for item in items:
        found.count([np.zeros(len(item.rounds), dtype=np.int64)], [item], 1)
    return found.report()


def test_branches_are_counted_in_order_of_proposal() -> None:
    three = [-1, -1, -1, 0, 1]
    item = judged(
        [three, three, [-1, 0], three],
        [3, 2, 1, -1],
        node_token=[7, 8, 7, 1, 1] * 2 + [1, 1] + [7, 8, 9, 1, 1],
    )
    found = branching(item)
    assert found is not None
    assert (found.branching_rounds, found.accepted_nothing) == (3, 1)
    assert found.wins == (1, 0, 1)
    assert found.later_branch_wins == pytest.approx(1 / 3)
    assert found.first_token_diversity == pytest.approx((2 + 2 + 3) / 9)
    assert found.duplicate_first_token_rate == pytest.approx(2 / 6)


def test_branches_that_part_later_begin_alike() -> None:
    found = branching(judged([[-1, 0, 0]], [2], node_token=[5, 6, 7]))
    assert found is not None
    assert found.wins == (0, 1)
    assert found.duplicate_first_token_rate == 1.0
    assert found.first_token_diversity == 0.5


def test_chains_have_no_branch_statistics() -> None:
    assert branching(judged([[-1, 0]], [1], node_token=[1, 2])) is None
    assert Branching().report() is None


class Counted:
    """What the bootstrap asks of a tally."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.counts = lengths

    def lengths(self) -> np.ndarray:
        return self.counts

    reached = lengths


@pytest.mark.parametrize("seed", range(20))
def test_the_knee_lies_farthest_above_the_chord(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 50, (6, 7)) * np.array([9, 7, 5, 3, 2, 1, 1])
    (draws,) = resampled([Counted(lengths)])  # type: ignore[list-item]
    found = knee(lengths.sum(axis=0), 6, draws.knee)
    assert found is not None
    accepted = np.repeat(np.arange(7), lengths.sum(axis=0))
    curve = [1 + np.minimum(accepted, length).mean() for length in range(7)]
    assert found.curve == pytest.approx(curve)
    chord = np.linspace(curve[0], curve[-1], 7)
    assert found.length == int(np.argmax(np.round(np.array(curve) - chord, 12)))
    assert found.interval is not None
    assert found.interval.low <= found.length <= found.interval.high


def test_a_straight_curve_has_no_knee() -> None:
    always = knee(np.array([0, 0, 0, 13]), 3)
    assert always is not None
    assert always.length is None
    assert always.curve == (1.0, 2.0, 3.0, 4.0)
    assert knee(np.zeros(4, dtype=np.int64), 3) is None
    never = knee(np.array([9]), 3)
    assert never is not None
    assert (never.length, never.curve) == (None, (1.0, 1.0, 1.0, 1.0))


def test_positions_that_no_round_accepts_count_for_the_knee() -> None:
    found = knee(np.array([5, 3, 2]), 6)
    assert found is not None
    assert (found.length, len(found.curve)) == (2, 7)
