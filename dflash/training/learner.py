"""A drafter that learns: one optimiser step on fixed buffers, the same bits for the same step on a CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dflash.drafters.block.model import BlockDrafter
from dflash.training.corpus import Anchors, Corpus
from dflash.training.graph import Replayed
from dflash.training.muon import Muon
from dflash.training.objective import lesson
from dflash.training.precision import mixed_precision
from dflash.training.settings import StepSettings

_DRAWS = 2


class Learner:
    """Draws anchors, drafts from them, and follows the gradient.

    Weights are kept in float32; on CUDA they are used in bfloat16, and the whole step is one CUDA graph.

    Attributes:
        done: Steps taken.
        work: The update, captured once it has run a few times.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        output: nn.Linear,
        corpus: Corpus,
        settings: StepSettings,
        seed: int,
    ) -> None:
        self.drafter = drafter
        self.output = output
        self.corpus = corpus
        self.settings = settings
        self.seed = seed
        self.done = 0
        self.device = corpus.tokens.device
        self.anchors = Anchors(corpus.own)
        self._texts = torch.zeros(settings.texts, dtype=torch.long, device=self.device)
        self._places = torch.zeros(settings.texts, settings.anchors, dtype=torch.long, device=self.device)
        self._divergence = torch.zeros((), device=self.device)
        self._agreed = torch.zeros(drafter.config.drafts, device=self.device)
        self.muon, self.adam = self._optimisers()
        self.work = Replayed(self._update, self.device, warm=3)

    def step(self) -> None:
        """Take one step of the schedule."""
        draw = np.random.default_rng([self.seed, _DRAWS, self.done])
        texts, places = self.anchors.draw(self.settings.texts, self.settings.anchors, draw)
        self._texts.copy_(texts)
        self._places.copy_(places)
        rate = self.settings.rate * schedule(self.done / self.settings.steps, self.settings.warmup)
        for optimiser, share in ((self.muon, 1.0), (self.adam, self.settings.adam_share)):
            for group in optimiser.param_groups:
                group["lr"].fill_(rate * share)
        self.work()
        self.done += 1

    def measured(self) -> tuple[float, list[float]]:
        """Of the last step: the divergence in nats, and the share of slots that agree with the target."""
        return float(self._divergence), self._agreed.tolist()

    def corpus_changed(self) -> None:
        """Texts were written anew, in place."""
        self.anchors = Anchors(self.corpus.own)

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        return {
            "drafter": self.drafter.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "done": self.done,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; nothing has been learned yet."""
        self.drafter.load_state_dict(state["drafter"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.done = state["done"]

    def _optimisers(self) -> tuple[Muon, torch.optim.Optimizer]:
        matrices, others = [], []
        for name, weight in self.drafter.named_parameters():
            turned = weight.dim() == 2 and not name.startswith(("markov_head", "confidence_head"))
            (matrices if turned else others).append(weight)
        cuda = self.device.type == "cuda"
        adam = torch.optim.AdamW(
            others,
            lr=self._rate(),
            betas=(0.9, 0.95),
            weight_decay=0.0,
            capturable=cuda,
            fused=cuda,
        )
        return Muon(matrices, lr=self._rate()), adam

    def _rate(self) -> Tensor:
        return torch.zeros((), device=self.device)

    def _update(self) -> None:
        self.muon.zero_grad()
        self.adam.zero_grad()
        with mixed_precision(self.device):
            seen = lesson(
                self.drafter, self.output, self.corpus, self._texts, self._places, self.settings.decay
            )
        seen.loss.backward()
        self.muon.step()
        self.adam.step()
        self._divergence.copy_(seen.divergence)
        self._agreed.copy_(seen.agreed)


def schedule(progress: float, warmup: float) -> float:
    """Share of the peak rate at a share of the steps: a straight rise, then a cosine to zero."""
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))
