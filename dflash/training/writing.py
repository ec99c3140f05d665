"""The target writes its own training text: many dialogues in lock-step, its hidden states kept as it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dflash.training.corpus import Corpus, HiddenOpinions
from dflash.training.dialogue import Dialogue, Manners
from dflash.training.graph import Replayed
from dflash.training.lockstep import Lockstep
from dflash.training.script import Headers, Stream


@torch.inference_mode()
def write(
    model: Any,
    streams: Sequence[Stream],
    headers: Headers,
    manners: Manners,
    taps: tuple[int, ...],
    corpus: Corpus,
    first: int,
    generator: torch.Generator,
    tell: Callable[[int], None] = lambda position: None,
) -> None:
    """Fill texts `first`, `first` + 1, … of a corpus, each to its full length.

    Args:
        model: A transformers causal language model.
        streams: How each text begins.
        headers: What stands around turns.
        manners: How long turns may be.
        taps: Hugging Face `hidden_states` indices to keep.
        corpus: Made by `empty_corpus`.
        first: The first text to fill.
        generator: Of all sampling, on the model's device.
        tell: Told after each position.
    """
    lockstep = Lockstep(model, len(streams), corpus.length, taps)
    dialogue = Dialogue(streams, headers, manners, lockstep.device)
    part = slice(first, first + len(streams))
    tokens, own, kept = corpus.tokens[part], corpus.own[part], corpus.taps[part]
    opinions = corpus.opinions
    assert isinstance(opinions, HiddenOpinions)
    last = opinions.last[part]
    lockstep.tokens.copy_(dialogue.first().tokens)
    tokens[:, 0] = lockstep.tokens

    def advance(extent: int) -> None:
        seen = lockstep.forward(extent)
        kept.index_copy_(1, lockstep.position, seen.taps[:, None])
        last.index_copy_(1, lockstep.position, seen.last[:, None])
        said = dialogue.next(seen.logits, generator)
        lockstep.tokens.copy_(said.tokens)
        lockstep.position.add_(1)
        tokens.index_copy_(1, lockstep.position, said.tokens[:, None])
        own.index_copy_(1, lockstep.position, said.own[:, None])

    pool = torch.cuda.graph_pool_handle() if lockstep.device.type == "cuda" else None
    steps: dict[int, Replayed] = {}
    for position in range(corpus.length - 1):
        extent = lockstep.extent(position)
        if extent not in steps:
            steps[extent] = Replayed(
                lambda extent=extent: advance(extent), lockstep.device, generator, pool, warm=1
            )
        steps[extent]()
        tell(position + 1)
