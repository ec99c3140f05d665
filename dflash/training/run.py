"""A training from beginning to end: texts, steps, held-out tau, checkpoints, and what is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from dflash.drafters.block.model import BlockDrafter, Borrowed
from dflash.target.load import Target
from dflash.training.checkpoint import load_checkpoint, save_checkpoint
from dflash.training.corpus import Corpus
from dflash.training.errors import NothingToDraft
from dflash.training.learner import Learner
from dflash.training.precision import mixed_precision
from dflash.training.settings import TrainSettings
from dflash.training.sizes import block_config
from dflash.training.walk import Tally, answers_of, greedy_tally
from dflash.training.warm_start import initialise, warm_start

Tell = Callable[[str, float], None]


class Texts(Protocol):
    """Where texts come from: the target itself, or draft files.

    `description` says it in words, `identity` is what a checkpoint must agree with.
    """

    @property
    def description(self) -> str:
        """In words, for the card."""

    @property
    def identity(self) -> Any:
        """What a checkpoint must agree with, as JSON has it."""

    def training(self, round_: int, into: Corpus | None, tell: Tell) -> Corpus:
        """The texts of a round, over those of another round if given."""

    def held_out(self, tell: Tell) -> Corpus:
        """Texts to measure tau on."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What was measured on the way: divergence in nats, agreement and held-out walk."""

    step: int
    divergence: float
    agreed: list[float]
    tally: Tally

    def __str__(self) -> str:
        tau = "no rounds" if self.tally.tau is None else f"held-out tau {self.tally.tau:.3f}"
        agreed = " ".join(f"{share:.2f}" for share in self.agreed)
        return f"step {self.step}: divergence {self.divergence:.3f}, agreement {agreed}, {tau}"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a training looks up and saves, in steps; 0 saves only at the end."""

    measure: int = 500
    save: int = 2000


@dataclass(slots=True)
class Clock:
    """Seconds spent by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def spent(self, what: str, device: torch.device) -> Iterator[None]:
        """Count the time of the block, device work included."""
        started = perf_counter()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[what] = self.seconds.get(what, 0.0) + perf_counter() - started


def new_drafter(target: Target, settings: TrainSettings) -> BlockDrafter:
    """An untrained drafter on the target's device, its tables borrowed; the same for the same seed."""
    drafter = BlockDrafter(block_config(target, settings.drafter))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        initialise(drafter)
    if settings.drafter.init == "target":
        warm_start(drafter, target.model)
    drafter.borrow(Borrowed.of(target.model))
    return drafter.to(target.device)


class Training:
    """Wires the parts of one training.

    Args:
        target: Whose drafter it is.
        settings: What decides the result.
        texts: Where texts come from.
        folder: Where checkpoints go; made once there is something to learn from.
        pace: When to look up.
        identity: What a checkpoint must agree with.
    """

    def __init__(
        self,
        target: Target,
        settings: TrainSettings,
        texts: Texts,
        folder: Path,
        pace: Pace,
        identity: Mapping[str, Any],
    ) -> None:
        self.target = target
        self.settings = settings
        self.texts = texts
        self.folder = folder
        self.pace = pace
        self.identity = identity
        self.clock = Clock()
        self.marks: list[Mark] = []

    def run(self, resume: bool, tell: Tell) -> BlockDrafter:
        """Train to the last step.

        Raises:
            NothingToDraft: No text has two tokens of an answer in a row.
            NothingToResume, OtherTraining: There is nothing to go on with.
        """
        device, steps = self.target.device, self.settings.step.steps
        state = load_checkpoint(self.folder, self.identity, device) if resume else None
        drafter = new_drafter(self.target, self.settings)
        with self.clock.spent("held-out texts", device):
            held_out = self.texts.held_out(tell)
        round_ = self._round(state["done"] if state else 0)
        with self.clock.spent("texts", device):
            corpus = self.texts.training(round_, None, tell)
        if not bool((corpus.own[:, 1:] & corpus.own[:, :-1]).any()):
            raise NothingToDraft
        self.folder.mkdir(parents=True, exist_ok=True)
        output = self.target.model.get_output_embeddings()
        learner = Learner(drafter, output, corpus, self.settings.step, self.settings.seed)
        if state:
            learner.load(state)
        while learner.done < steps:
            if self._round(learner.done) != round_:
                round_ = self._round(learner.done)
                with self.clock.spent("texts", device):
                    self.texts.training(round_, corpus, tell)
                learner.corpus_changed()
            with self.clock.spent("steps", device):
                self._steps(learner, self._next_stop(learner.done), tell)
            self._look_up(learner, held_out)
        return drafter

    def _round(self, step: int) -> int:
        """Which round of texts a step learns from."""
        return min(step, self.settings.step.steps - 1) * self.settings.text.rounds // self.settings.step.steps

    def _next_stop(self, done: int) -> int:
        """The next step after which something is to be done."""
        steps, rounds = self.settings.step.steps, self.settings.text.rounds
        stops = [steps, -(-steps * (self._round(done) + 1) // rounds)]
        stops += [every * (done // every + 1) for every in (self.pace.measure, self.pace.save) if every]
        return min(stop for stop in stops if stop > done)

    def _steps(self, learner: Learner, until: int, tell: Tell) -> None:
        while learner.done < until:
            learner.step()
            tell(self._said(), learner.done / self.settings.step.steps)

    def _said(self) -> str:
        return f"training; {self.marks[-1]}" if self.marks else "training"

    def _look_up(self, learner: Learner, held_out: Corpus) -> None:
        last = learner.done == self.settings.step.steps
        if last or (self.pace.measure and learner.done % self.pace.measure == 0):
            with self.clock.spent("measuring", self.target.device):
                mark = Mark(learner.done, *learner.measured(), self._tally(learner.drafter, held_out))
            self.marks.append(mark)
        if last or (self.pace.save and learner.done % self.pace.save == 0):
            save_checkpoint(self.folder, learner.state(), self.identity)

    def _tally(self, drafter: BlockDrafter, held_out: Corpus) -> Tally:
        return measured_tau(drafter, held_out, range(len(held_out.tokens)), self.settings.text.judged)


def measured_tau(drafter: BlockDrafter, corpus: Corpus, texts: Sequence[int], judged: int) -> Tally:
    """Greedy walk over the first answers of some texts, in the precision that drafts are made in."""
    with mixed_precision(corpus.tokens.device):
        return greedy_tally(drafter, corpus, answers_of(corpus, texts, judged))
