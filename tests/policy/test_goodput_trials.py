"""Trials of `goodput` after steps without drafts: when they come, how long they last, what they cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dflash.policy.control.base import Frame, Load
from dflash.policy.control.controller import Controller, Outcome
from dflash.policy.control.goodput import Goodput
from dflash.policy.step_time import Grid, StepTime


def step_time(draft_us):
    """Plain steps of 100 us; a draft of 8 takes so much longer, shorter ones in proportion."""
    return StepTime(Grid(((0.0, 8.0), (1.0,)), (0.0, draft_us)), Grid(((0.0,), (1.0,), (0.0,)), (100.0,)))


def drafted(control, draft_us, steps, accepts=False):
    """Lengths and states of a stream of two requests whose drafts are all accepted, or none of them."""
    frame = Frame(4, 1, 4, 1, step_time=step_time(draft_us))
    controller, who, lengths, states = Controller(control, frame, 2), np.arange(2), [], []
    for _ in range(steps):
        length = controller.ask(who, Load(2, 1.0)).length
        lengths.append(int(length[0]))
        states.append(controller.facts(0))
        controller.tell(who, Outcome(length * accepts, length, length))
    return lengths, states


def plain_runs(lengths):
    """The steps of each run without drafts."""
    plain = np.flatnonzero(np.array(lengths) == 0)
    return np.split(plain, np.flatnonzero(np.diff(plain) > 1) + 1)


TRYING = Goodput(after=1, lag=0, shortest=0, every=4, again=10, rarely=300, trial=5, scope="stream")


def test_a_batch_without_drafts_tries_them_when_it_said_and_learns_nothing_meanwhile():
    lengths, states = drafted(replace(TRYING, loss=0.02), 400.0, 600)
    runs = plain_runs(lengths)
    assert len(runs) > 4
    for run in runs[:-1]:
        # what is left of the choice in which a wait is over is kept to
        waited = states[run[-1]]["wait"]
        assert TRYING.again <= waited <= TRYING.rarely
        assert len(run) == -(-waited // TRYING.every) * TRYING.every
    # five rounds of two requests
    assert {after[0] - before[-1] - 1 for before, after in pairwise(runs)} == {3}
    for step in range(1, len(lengths)):
        if not lengths[step] and not lengths[step - 1]:
            for name in ("accepted", "tried"):
                assert states[step][name] == states[step - 1][name]


@pytest.mark.parametrize("loss", [0.01, 0.05])
@pytest.mark.parametrize("draft_us", [100.0, 400.0, 1600.0])
def test_trials_lose_their_share_of_the_time_whatever_they_cost(loss, draft_us):
    control = replace(TRYING, again=1, rarely=10**6, loss=loss, prior=0.0)
    lengths, _ = drafted(control, draft_us, 20_000)
    spent = np.where(np.array(lengths) > 0, 100.0 + draft_us / 8 * np.array(lengths), 100.0)
    # nothing is accepted, so that the time beyond a plain step's is lost
    assert 0.5 * loss < (spent - 100.0).sum() / spent.sum() <= loss


@pytest.mark.parametrize("rarely", [10, 40])
def test_trials_come_at_the_latest_when_it_was_said(rarely):
    lengths, _ = drafted(replace(TRYING, again=4, rarely=rarely, loss=1e-6), 1600.0, 400)
    assert all(len(run) < rarely + TRYING.every for run in plain_runs(lengths))
    assert len(plain_runs(lengths)) >= 400 // (rarely + TRYING.every + 3)


def test_drafts_that_pay_again_are_kept_after_a_trial():
    lengths, _ = drafted(replace(TRYING, prior=0.0, loss=0.05), 400.0, 60, accepts=True)
    first = plain_runs(lengths)[0]
    assert first[0] == 0
    assert len(first) < 60
    assert all(lengths[len(first) :])


@pytest.mark.parametrize(("requests", "fewer"), [(4, 3), (8, 5), (16, 9), (64, 33), (9, 8), (5, 4)])
def test_a_trial_lasts_as_long_for_some_requests_fewer(requests, fewer):
    """So that a lane that falls idle meanwhile seldom changes what was foreseen."""
    control = Goodput(after=1, shortest=0, prior=0.0, again=8, rarely=8, every=64, scope="stream")
    dear = Frame(4, 1, 4, 1, step_time=step_time(400.0))
    found = []
    for count in (requests, fewer):
        controller, who, lengths = Controller(control, dear, count), np.arange(count), []
        for _ in range(200):
            length = controller.ask(who, Load(count, 1.0)).length
            lengths.append(int(length[0]))
            controller.tell(who, Outcome(np.zeros_like(length), length, length))
        found.append([after[0] - before[-1] - 1 for before, after in pairwise(plain_runs(lengths))])
    # 9 and 5 are more than a power of two, which 8 and 4 are
    assert (found[0] == found[1]) == (requests not in (9, 5))
    assert found[0]
    assert set(found[0]) == {min(64, -(-64 // (1 << (requests - 1).bit_length())) + 4)}
