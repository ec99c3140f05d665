"""transformers' own `generate` on the prompts of `bench decode`: plain, and assisted by prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

from dflash.engine.loop import synchronise
from dflash.target.load import Target

NEW_TOKENS = 64


class Peer(NamedTuple):
    """What one way to generate came to.

    Attributes:
        name: as printed.
        tokens: of all prompts.
        seconds: of all prompts, their own forwards included.
        failure: why there are no figures.
    """

    name: str
    tokens: int
    seconds: float
    failure: str | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """None after a failure."""
        return self.tokens / self.seconds if self.failure is None else None


def measure_peers(
    target: Target, prompts: Sequence[Sequence[int]], length: int, say: Callable[[str], None]
) -> list[Peer]:
    """Generate 64 greedy tokens for each prompt, one at a time, after one prompt that is not counted.

    Args:
        target: whose model generates.
        prompts: token ids.
        length: of a lookup's drafts.
        say: told what comes next.
    """
    ways: dict[str, dict[str, Any]] = {
        "transformers generate": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": length},
    }
    found = []
    for name, given in ways.items():
        say(name)
        try:
            found.append(_measure(target, prompts, name, given))
        except Exception as failure:
            found.append(Peer(name, 0, 0.0, f"{type(failure).__name__}: {failure}"[:300]))
    return found


def _measure(target: Target, prompts: Sequence[Sequence[int]], name: str, given: dict[str, Any]) -> Peer:
    tokens, seconds = 0, 0.0
    for place, ids in enumerate([prompts[0], *prompts]):
        rows = torch.tensor([list(ids)], device=target.device)
        synchronise(target.device)
        begun = perf_counter()
        made = target.model.generate(
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=NEW_TOKENS, do_sample=False, **given
        )
        synchronise(target.device)
        if place:
            seconds += perf_counter() - begun
            tokens += made.shape[1] - len(ids)
    return Peer(name, tokens, seconds)
