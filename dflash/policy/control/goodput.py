"""The control `goodput`: the length with the most expected tokens a second, for the whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash.policy.control.base import Asked, Frame, Learning, Load, Scheduler, Seen, State
from dflash.policy.errors import StepTimeMissing
from dflash.policy.noise import F64, I64
from dflash.policy.parameter import Number, Whole
from dflash.policy.step_time import StepTime

_SHORTEST_US = 1e-3
_KEPT = 512
# tokens; step times hardly change over fewer
_CONTEXTS = 64


@dataclass(frozen=True, slots=True)
class Goodput(Learning):
    """Take each request's acceptance as independent from draft to draft: 1 + a + ... + a^k tokens a round.

    A tree counts as one branch in the tokens and as all its nodes in the time, which is taken at the nearest
    multiple of 64 tokens of context. Requests of which fewer than `after` rounds are known count with
    `prior`, so that the first choice of all is the profile's.

    Attributes:
        lag: as everywhere; at 4, half of `every`, rounds on a device run in whole chains, one of which is
            under way while the next choice is made.
        weight: of the newest round in the moving average of acceptance.
        prior: acceptance before anything is known, which weighs as much as one draft.
        gain: share of tokens a second that another length must promise beyond the present one.
        shortest: the least length; rounds at 0 teach nothing.
        every: steps between two choices, so that many rounds may be queued in one shape.
        trial: rounds, those of all requests, whose outcomes a trial waits for, within `every` steps. At 0
            drafts are tried now and then, to learn.
        loss: share of the time that trials may lose, by what is known of acceptance: this says after how
            many steps at 0 the next one comes.
        again: the fewest of these steps, `rarely` the most. `again` 0 never tries.
    """

    lag: int = field(default=4, metadata={"type": Whole(0)})
    weight: float = field(default=0.1, metadata={"type": Number(0.0, 1.0, open_low=True)})
    prior: float = field(default=0.7, metadata={"type": Number(0.0, 1.0)})
    gain: float = field(default=0.03, metadata={"type": Number(0.0)})
    shortest: int = field(default=1, metadata={"type": Whole(0)})
    every: int = field(default=8, metadata={"type": Whole(1)})
    trial: int = field(default=64, metadata={"type": Whole(1)})
    loss: float = field(default=0.01, metadata={"type": Number(0.0, 1.0, open_low=True)})
    again: int = field(default=32, metadata={"type": Whole(0)})
    rarely: int = field(default=1024, metadata={"type": Whole(1)})

    name = "goodput"
    summary = "the length with the most expected tokens per predicted step time, one for the whole batch"
    source = "SmartSpec, Liu et al., arXiv 2406.14066"
    varies = ("length",)
    batch = True
    timed = True

    def scheduler(self, frame: Frame, size: int) -> Scheduler:
        """Return one that knows the prior; see `Control.scheduler`."""
        if frame.step_time is None:
            raise StepTimeMissing(self.name)
        return _Scheduler(self, frame, frame.step_time, size)


class _Scheduler(Scheduler):
    def __init__(self, control: Goodput, frame: Frame, step_time: StepTime, size: int) -> None:
        self.control = control
        self.step_time = step_time
        self.lengths = np.arange(min(control.shortest, frame.longest), frame.longest + 1)
        # a profile may say that nothing depends on one of these
        self._batched, self._long = (len(axis) > 1 for axis in step_time.verify_us.axes[1:])
        self._batched = self._batched or any(len(axis) > 1 for axis in step_time.draft_us.axes[2:])
        self._round_us: dict[tuple[int, int], F64] = {}
        super().__init__(frame, size)

    def fresh(self, size: int) -> State:
        """Return scopes that know nothing; see `Scheduler.fresh`."""
        whole = {"held": 0, "idle": 0, "wait": self.control.again, "_trial": 1, "_ran": self.frame.length}
        counts = {name: np.full(size, value, dtype=np.int64) for name, value in whole.items()}
        return {**super().fresh(size), "accepted": np.zeros(size), "tried": np.zeros(size), **counts}

    def ask(self, who: I64, load: Load) -> Asked:
        """Choose one length for the batch, or keep to the last choice; see `Scheduler.ask`."""
        state = self.state
        if (oldest := self._oldest(who)) >= 0:
            state["length"][who] = state["length"][oldest]
        else:
            known = state["known"][who] >= self.control.after
            worth = self._worth(np.where(known, self._rates(who), self.control.prior), load)
            length = self._best(worth, self._present(who), drafts=self._idled(who))
            state["_trial"][who] = self._trial(load)
            if not length:
                state["wait"][who] = self._wait(worth, load)
            state["length"][who] = length
        return super().ask(who, load)

    def passed(self, who: I64) -> None:
        """Count the steps since the last choice, and those without a draft; see `Scheduler.passed`."""
        state, length = self.state, self.state["length"][who]
        held, idle = self._most("held", who), not max(length.tolist())
        state["held"][who] = (held or self._chosen(who, drafts=not idle)) - 1
        state["idle"][who] = self._most("idle", who) + 1 if idle else 0
        state["_ran"][who] = length

    def _chosen(self, who: I64, *, drafts: bool) -> int:
        """Steps that a choice lasts which was just made."""
        tries = drafts and self._idled(who)
        return self._most("_trial", who) if tries else self.control.every

    def _trial(self, load: Load) -> int:
        """Steps of a trial, as many for some requests more or fewer."""
        lanes = 1 << (load.requests - 1).bit_length()
        return min(self.control.every, -(-self.control.trial // lanes) + self.control.delay)

    def _wait(self, worth: F64, load: Load) -> int:
        """Steps at 0 until a trial of the best draft loses no more than its share of their time."""
        if not self.control.again or len(worth) == 1:
            return self.control.again
        us, best = self._us(load), 1 + int(np.argmax(worth[1:]))
        lost = self._trial(load) * us[best] * (1.0 - worth[best] / worth[0])
        steps = lost / (self.control.loss * max(float(us[0]), _SHORTEST_US))
        return int(min(max(self.control.again, steps), max(self.control.again, self.control.rarely)))

    def held(self, who: I64) -> int:
        """Steps until the next choice; see `Scheduler.held`."""
        return self._most("held", who)

    def learn(self, who: I64, seen: Seen) -> None:
        """Average drafts that were accepted, and those that had a chance; see `Scheduler.learn`."""
        self.state["known"][who] += 1
        tried, weight = seen.tried.tolist(), self.control.weight
        if 0 in tried:
            some = seen.tried > 0
            who, seen = who[some], seen.each(lambda column: column[some])
        if not len(who):
            return
        for name, value in (("accepted", seen.accepted), ("tried", seen.tried)):
            column = self.state[name]
            column[who] = (1.0 - weight) * column[who] + weight * value

    def _oldest(self, who: I64) -> int:
        """A scope that keeps to the last choice; new ones follow it. -1 if it is time for another choice."""
        held = self.state["held"][who]
        place = int(held.argmax())
        return int(who[place]) if held[place] else -1

    def _idled(self, who: I64) -> bool:
        """Whether drafts are overdue."""
        wait = self._most("wait", who)
        return bool(wait) and self._most("idle", who) >= wait

    def _most(self, name: str, who: I64) -> int:
        """The largest of a state's numbers."""
        # of so few, an array takes six times as long
        most: int = max(self.state[name][who].tolist())
        return most

    def _present(self, who: I64) -> int:
        """The length of the step before, of which requests that just begin know nothing."""
        return int(self.state["_ran"][who[self.state["known"][who].argmax()]])

    def _rates(self, who: I64) -> F64:
        weight = self.control.weight
        accepted, tried = self.state["accepted"][who], self.state["tried"][who]
        rate: F64 = (accepted + weight * self.control.prior) / (tried + weight)
        return rate

    def _worth(self, rate: F64, load: Load) -> F64:
        """Tokens a microsecond by length."""
        tokens = np.cumsum(rate[:, None] ** np.arange(self.frame.longest + 1), axis=1).sum(axis=0)
        worth: F64 = tokens[self.lengths] / np.maximum(self._us(load), _SHORTEST_US)
        return worth

    def _best(self, worth: F64, present: int, *, drafts: bool) -> int:
        """The length with the most tokens a second, or the `present` one if that comes close to it.

        Where there is another, `drafts` leaves 0 out.
        """
        skipped = int(drafts and self.lengths[0] == 0 and len(self.lengths) > 1)
        best = skipped + int(np.argmax(worth[skipped:]))
        place = present - int(self.lengths[0])
        if skipped <= place and worth[best] <= (1.0 + self.control.gain) * worth[place]:
            best = place
        return int(self.lengths[best])

    def _us(self, load: Load) -> F64:
        """Microseconds of a round by length, at about this context; they are kept."""
        steps = round(load.context / _CONTEXTS)
        known = load.requests if self._batched else 0, steps if self._long else min(steps, 1)
        if known not in self._round_us:
            if len(self._round_us) == _KEPT:
                self._round_us.clear()
            branches, requests = self.frame.branches, load.requests
            draft = self.step_time.draft(self.lengths, branches, requests)
            verify = self.step_time.verify(self.lengths * branches, requests, float(_CONTEXTS * steps))
            self._round_us[known] = draft + verify
        return self._round_us[known]
