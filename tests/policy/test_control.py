"""Schedulers against plain loops over one request's rounds, written from their description alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dflash.policy.control import CONTROLS
from dflash.policy.control.base import Frame, Load
from dflash.policy.control.confidence import ConfidenceScheduled
from dflash.policy.control.controller import Controller, Outcome, same_shape
from dflash.policy.control.ema import Ema
from dflash.policy.control.goodput import Goodput
from dflash.policy.control.heuristic import Heuristic
from dflash.policy.control.schedule import Schedule
from dflash.policy.control.window import Window
from dflash.policy.errors import BadParameter, StepTimeMissing, ThresholdMissing
from dflash.policy.step_time import Grid, StepTime

STEP_TIME = StepTime(
    Grid(((0.0, 4.0, 16.0), (1.0, 4.0)), (10.0, 10.0, 50.0, 60.0, 180.0, 210.0)),
    Grid(((0.0, 8.0, 64.0), (1.0, 16.0), (0.0, 4096.0)), tuple(100.0 + 25.0 * n for n in range(12))),
)
LEARNING = (
    Window(window=20, every=4, after=4),
    Window(window=6, low=0.45, high=0.6, every=3, after=5, lag=1),
    Window(window=9, every=2, after=2, dt=0.1, lag=0),
    Heuristic(after=3),
    Heuristic(up=1, down=2, after=1, lag=4),
    Ema(after=4, every=3),
    Ema(candidates=(0, 2, 5), alpha=0.5, after=2, every=1, ceiling=1.5, lag=0),
    Goodput(after=3, every=2, gain=0.0),
    Goodput(after=1, weight=0.5, shortest=0, lag=0, every=1, again=3, rarely=7),
    Goodput(after=1, weight=0.3, shortest=0, lag=1, every=6, again=4, trial=2, gain=0.1),
    Goodput(after=2, weight=0.5, every=5, gain=0.0),
)
FRAME = Frame(4, 2, 8, 3, t=0.5, step_time=STEP_TIME)


def rates(rng, rounds):
    """A chance of acceptance that drifts."""
    return np.clip(0.6 + 0.4 * np.sin(np.arange(rounds) / 9 + rng.random() * 6), 0.02, 0.98)


def draw(rng, rate, length):
    """(accepted, drafted) of one round; now and then the drafter has less to say than it was asked for."""
    drafted = length if rng.random() < 0.8 else int(rng.integers(0, length + 1))
    accepted = 0
    while accepted < drafted and rng.random() < rate:
        accepted += 1
    return accepted, drafted


def run(control, seed, rounds=100, frame=FRAME):
    """Rounds of one request: what was asked, and what came of it."""
    rng, controller = np.random.default_rng(seed), Controller(control, frame, 1)
    who, asked, outcomes = np.zeros(1, dtype=np.int64), [], []
    for rate in rates(rng, rounds):
        now = controller.ask(who, Load(1, 100.0))
        length = int(now.length[0])
        asked.append((length, int(now.branches[0]), float(now.t[0]), bool(now.clipped[0])))
        outcomes.append((*draw(rng, rate, length), length))
        controller.tell(who, Outcome(*(np.array([value]) for value in outcomes[-1])))
    return asked, outcomes


class PlainWindow:
    def __init__(self, c):
        self.c, self.length, self.branches, self.shift = c, FRAME.length, FRAME.branches, 0
        self.kept, self.seen, self.clipped = [], 0, False

    def asked(self):
        t = min(max(FRAME.t + self.c.dt * self.shift, min(self.c.dt, FRAME.t)), 1.0)
        return self.length, self.branches, t, self.clipped

    def learn(self, accepted, drafted, length):
        self.kept, self.seen = [*self.kept, (accepted, drafted)][-self.c.window :], self.seen + 1
        total = sum(deep for _, deep in self.kept)
        if len(self.kept) < min(self.c.every, self.c.window) or self.seen < self.c.after or not total:
            return
        share, before = sum(count for count, _ in self.kept) / total, self.asked()[:3]
        self.clipped = False
        if share < self.c.low:
            self.length, self.branches = max(self.length - 2, 1), max(self.branches - 1, 1)
            self.move(-1)
        elif share > self.c.high:
            if self.length < FRAME.longest:
                self.length += 1
            elif self.branches < FRAME.widest:
                self.branches += 1
            else:
                self.clipped = True
            self.move(1)
        if self.asked()[:3] != before:
            self.kept = []

    def move(self, way):
        old, t = self.shift, self.asked()[2]
        self.shift += way if self.c.dt else 0
        if self.asked()[2] == t:
            self.shift = old


class PlainHeuristic:
    def __init__(self, c):
        self.c, self.length, self.seen, self.clipped = c, FRAME.length, 0, False

    def asked(self):
        return self.length, FRAME.branches, FRAME.t, self.clipped

    def learn(self, accepted, drafted, length):
        self.seen += 1
        if self.seen < self.c.after:
            return
        wanted = self.length + self.c.up if accepted == length else max(1, self.length - self.c.down)
        self.clipped, self.length = wanted > FRAME.longest, min(wanted, FRAME.longest)


class PlainEma:
    def __init__(self, c):
        self.c, self.seen, self.clipped = c, 0, False
        self.length = max(step for step in c.candidates if step <= FRAME.length)
        self.mean = self.length - 1.0

    def asked(self):
        return self.length, FRAME.branches, FRAME.t, self.clipped

    def learn(self, accepted, drafted, length):
        self.mean = (1 - self.c.alpha) * self.mean + self.c.alpha * accepted
        self.seen += 1
        if self.seen <= self.c.after or (self.seen - self.c.after) % self.c.every:
            return
        steps = list(self.c.candidates)
        place = steps.index(self.length)
        while place and self.mean <= steps[place - 1] - 0.5 + self.c.down:
            place -= 1
        while place < len(steps) - 1 and self.mean > steps[place] - 0.5 + self.c.up:
            place += 1
        if self.c.ceiling:
            while place and steps[place] > math.ceil(self.mean * self.c.ceiling):
                place -= 1
        self.length = steps[place]


class PlainGoodput:
    def __init__(self, c):
        self.c, self.seen, self.accepted, self.tried, self.length = c, 0, 0.0, 0.0, FRAME.length
        self.kept, self.idle, self.wait = 0, 0, c.again

    def asked(self):
        if self.kept:
            self.kept -= 1
        else:
            overdue = self.c.again and self.idle >= self.wait
            self.length, self.kept = self.best(overdue), self.c.every - 1
            trial = min(self.c.every, self.c.trial + self.c.lag)
            if overdue and self.length:
                self.kept = trial - 1
            elif self.length == 0:
                self.wait = self.patience(trial)
        self.idle = 0 if self.length else self.idle + 1
        return self.length, FRAME.branches, FRAME.t, False

    def patience(self, trial):
        """So many plain steps that a trial of the best draft costs no more than a share of their time."""
        if not self.c.again:
            return 0
        tokens_a_us, us = self.worth(), self.us
        draft = max((k for k in us if k), key=lambda k: (tokens_a_us[k], -k))
        # microseconds in which plain decoding would have made what the trial makes
        needed = us[draft] * tokens_a_us[draft] / tokens_a_us[0]
        plain = trial * (us[draft] - needed) / self.c.loss / us[0]
        return int(max(self.c.again, min(plain, max(self.c.rarely, self.c.again))))

    def worth(self):
        w = self.c.weight
        rate = (
            (self.accepted + w * self.c.prior) / (self.tried + w)
            if self.seen >= self.c.after
            else self.c.prior
        )
        worth, self.us = {}, {}
        for k in range(self.c.shortest, FRAME.longest + 1):
            us = STEP_TIME.draft(k, FRAME.branches, 1) + STEP_TIME.verify(k * FRAME.branches, 1, 128.0)
            worth[k], self.us[k] = sum(rate**i for i in range(k + 1)) / float(us), float(us)
        return worth

    def best(self, overdue):
        worth = {k: value for k, value in self.worth().items() if k or not overdue}
        best = max(worth.values())
        if self.length in worth and best <= worth[self.length] * (1 + self.c.gain):
            return self.length
        return min(k for k, value in worth.items() if value > best * (1 - 1e-12))

    def learn(self, accepted, drafted, length):
        w, self.seen = self.c.weight, self.seen + 1
        if drafted:
            self.accepted = (1 - w) * self.accepted + w * accepted
            self.tried = (1 - w) * self.tried + w * min(accepted + 1, drafted)


PLAIN = {Window: PlainWindow, Heuristic: PlainHeuristic, Ema: PlainEma, Goodput: PlainGoodput}


@pytest.mark.parametrize("control", LEARNING, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_a_scheduler_does_what_its_description_says(control, seed):
    asked, outcomes = run(control, seed)
    plain = PLAIN[type(control)](control)
    for number, found in enumerate(asked):
        if number > control.lag:
            plain.learn(*outcomes[number - 1 - control.lag])
        assert found == pytest.approx(plain.asked()), number
    assert len({length for length, *_ in asked}) > 1


@pytest.mark.parametrize("control", LEARNING, ids=str)
def test_an_outcome_is_known_lag_rounds_later_and_no_sooner(control):
    asked, outcomes = run(control, 3, rounds=60)
    changed = set()
    for spoiled in range(60):
        controller, who = Controller(control, FRAME, 1), np.zeros(1, dtype=np.int64)
        for number, (outcome, before) in enumerate(zip(outcomes, asked, strict=True)):
            now = controller.ask(who, Load(1, 100.0))
            same = (int(now.length[0]), int(now.branches[0]), float(now.t[0])) == before[:3]
            if not same:
                changed.add(number - spoiled)
                break
            accepted, drafted, length = outcome
            other = 0 if number == spoiled and accepted else accepted
            controller.tell(who, Outcome(*(np.array([value]) for value in (other, drafted, length))))
    assert min(changed) == 1 + control.lag


# the others choose once for the whole batch
@pytest.mark.parametrize("control", [control for control in LEARNING if not control.batch], ids=str)
def test_requests_side_by_side_are_requests_alone(control):
    seeds, size = range(5), 5
    alone = [run(control, seed) for seed in seeds]
    controller, who = Controller(control, FRAME, size), np.arange(size)
    for number in range(100):
        now = controller.ask(who, Load(size, 100.0))
        assert now.length.tolist() == [asked[number][0] for asked, _ in alone]
        columns = np.array([outcomes[number] for _, outcomes in alone]).T
        controller.tell(who, Outcome(*columns))


def test_a_new_request_starts_anew_and_a_stream_goes_on():
    for scope, expected in (("request", [4, 4]), ("stream", [8, 8])):
        controller, who = Controller(Heuristic(scope=scope, after=1, lag=1), FRAME, 2), np.arange(2)
        for _ in range(9):
            length = controller.ask(who, Load(2, 1.0)).length
            controller.tell(who, Outcome(length, length, length))
        controller.open(who)
        assert controller.ask(who, Load(2, 1.0)).length.tolist() == expected
        controller.tell(who, Outcome(*(np.array([4, 4]),) * 3))
        again = controller.ask(who, Load(2, 1.0)).length.tolist()
        # the old request's last outcome, still on its way, is nobody's
        assert again == expected


def test_a_stream_sees_the_rounds_of_a_step_as_one():
    control = Ema(scope="stream", after=0, every=1, lag=0, alpha=1.0, candidates=(1, 2, 3, 4, 5, 6))
    controller, who = Controller(control, FRAME, 3), np.arange(3)
    controller.ask(who, Load(3, 1.0))
    controller.tell(who, Outcome(np.array([4, 1, 1]), np.array([4, 4, 4]), np.array([4, 4, 4])))
    assert controller.facts(2)["ema"] == 2.0
    assert controller.facts(0)["known"] == 1


@pytest.mark.parametrize(("batch", "expected"), [(1, 5), (8, 5), (9, 3), (32, 3), (33, 1), (64, 1), (65, 0)])
def test_a_schedule_is_read_off_by_batch_size(batch, expected):
    who = np.arange(batch)
    controller = Controller(Schedule(), Frame(2, 1, 4, 1), batch)
    asked = controller.ask(who, Load(batch, 10.0))
    assert asked.length.tolist() == [min(expected, 4)] * batch
    assert asked.clipped.tolist() == [expected > 4] * batch


@pytest.mark.parametrize("seed", range(20))
def test_nodes_are_admitted_while_tokens_a_second_rise(seed):
    rng = np.random.default_rng(seed)
    lanes, length = int(rng.integers(1, 9)), 8
    survival = np.cumprod(rng.uniform(0.4, 1.0, (lanes, length)), axis=1)
    controller = Controller(
        ConfidenceScheduled(lag=0), Frame(length, 1, length, 1, step_time=STEP_TIME), lanes
    )
    who = np.arange(lanes)
    assert not controller.ask(who, Load(lanes, 50.0)).survival.any()
    whole = np.full(lanes, length)
    controller.tell(who, Outcome(whole, whole, whole, survival.ravel()))
    ranked, admitted = sorted(survival.ravel().tolist(), reverse=True), 0

    def speed(count):
        us = STEP_TIME.draft(length, 1, lanes) + STEP_TIME.verify(count / lanes, lanes, 50.0)
        return (lanes + sum(ranked[:count])) / float(us)

    while admitted < len(ranked) and speed(admitted + 1) > speed(admitted):
        admitted += 1
    lowest = controller.ask(who, Load(lanes, 50.0)).survival[0]
    assert (survival >= lowest).sum() == admitted


def test_a_flat_table_admits_everything_and_a_steep_one_nothing():
    for us, expected in (((100.0, 100.0), 24), ((1.0, 1e6), 0)):
        profile = StepTime(Grid(((0.0,), (1.0,)), (0.0,)), Grid(((0.0, 8.0), (1.0,), (0.0,)), us))
        controller = Controller(ConfidenceScheduled(lag=0), Frame(8, 1, 8, 1, step_time=profile), 3)
        who, whole = np.arange(3), np.full(3, 8)
        controller.ask(who, Load(3, 1.0))
        controller.tell(who, Outcome(whole, whole, whole, np.full(24, 0.5)))
        assert controller.facts(0)["admitted"] == expected


def test_what_makes_no_control_is_refused():
    with pytest.raises(BadParameter, match="low"):
        Window(low=0.8, high=0.2)
    for control in CONTROLS:
        if control.timed:
            with pytest.raises(StepTimeMissing, match=control.name):
                control().scheduler(Frame(1, 1, 1, 1), 1)
    with pytest.raises(ThresholdMissing):
        Window(dt=0.1).scheduler(Frame(1, 1, 1, 1), 1)


STREAMS = [replace(control, scope="stream") for control in LEARNING]


@pytest.mark.parametrize("control", [*LEARNING, *STREAMS, Schedule("1:3/2:1/4:0")], ids=str)
@pytest.mark.parametrize("foresees", [False, True])
@pytest.mark.parametrize("steps", [2, 10**6])
def test_what_is_sure_comes_true_whatever_happens(control, foresees, steps):
    """Steps in which no request comes or goes are foreseen, and states do not tell that somebody looked.

    Who needs a few steps only may be told what was found before outcomes came.
    """
    rng, lanes = np.random.default_rng(7), 4
    seer, blind = Controller(control, FRAME, lanes, foresees=foresees), Controller(control, FRAME, lanes)
    who, sure, beyond = np.arange(lanes), {}, {}
    for step in range(150):
        if rng.random() < 0.1:
            fresh = rng.permutation(lanes)[:2]
            seer.open(fresh)
            blind.open(fresh)
            who, sure, beyond = np.flatnonzero(rng.random(lanes) < 0.8), {}, {}
            who = who if len(who) else np.arange(1)
        load = Load(len(who), 100.0)
        if rng.random() < 0.7:
            ahead = seer.foresee(who, load, steps)
            assert ahead.sure >= min(steps, control.delay + 1)
            if steps > control.delay:
                assert 0 < ahead.chained <= ahead.sure
                # once the steps that may be read together are over, more is known, while some still run
                assert step + ahead.sure > beyond.get(step, 0)
            if ahead.lasts and steps > control.delay:
                beyond[step + ahead.chained] = step + ahead.sure
            assert same_shape(ahead.at(0), blind.ask(who, load))
            sure |= {step + more: ahead.at(more) for more in range(min(ahead.sure, 40))}
        asked, expected = seer.ask(who, load), blind.ask(who, load)
        assert same_shape(asked, expected)
        assert seer.columns(who) == blind.columns(who)
        if step in sure:
            assert same_shape(asked, sure[step])
        drafted = np.where(rng.random(len(who)) < 0.9, asked.length, asked.length // 2)
        outcome = Outcome(np.minimum(rng.geometric(0.4, len(who)) - 1, drafted), drafted, asked.length)
        seer.tell(who, outcome)
        blind.tell(who, outcome)


@pytest.mark.parametrize("chain", [1, 2, 4])
def test_rounds_of_a_choice_that_lasts_run_in_whole_chains_and_never_wait_for_the_next(chain):
    rng, who, load = np.random.default_rng(chain), np.arange(3), Load(3, 100.0)
    controller = Controller(Goodput(scope="stream", shortest=0), FRAME, 3, foresees=True)
    flying = 0
    for _ in range(300):
        ahead = controller.foresee(who, load)
        while flying < 2 and ahead.together(flying * chain, chain) and ahead.last(flying * chain, chain):
            flying += 1
        # one that is read, and one that runs meanwhile
        assert flying == 2
        for _ in range(chain):
            asked = controller.ask(who, load)
            accepted = np.minimum(rng.geometric(0.5, 3) - 1, asked.length)
            controller.tell(who, Outcome(accepted, asked.length, asked.length))
        flying -= 1


@pytest.mark.parametrize("every", [1, 5, 16])
def test_a_length_lasts_as_long_as_it_was_said(every):
    control = Goodput(after=2, weight=0.5, shortest=0, every=every, again=0, gain=0.0, scope="stream")
    asked, _ = run(control, 5, rounds=400)
    changes = np.flatnonzero(np.diff([length for length, *_ in asked]))
    assert len(changes)
    assert all((change + 1) % every == 0 for change in changes)
