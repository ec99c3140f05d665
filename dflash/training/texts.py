"""Which texts a round of training is made of, and the ones that are held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dflash.draftfile.canonical import digest_of
from dflash.training.corpus import Corpus, empty_corpus
from dflash.training.openings import OPENINGS
from dflash.training.script import (
    Headers,
    Stream,
    answer_temperatures,
    encode,
    opened_stream,
    prompt_stream,
)
from dflash.training.settings import TextSettings
from dflash.training.writing import write

Tell = Callable[[str, float], None]

# a share of user turns is the target's from the first word
_UNOPENED = 0.2
_HELD_OUT_SEED = 1


class Library:
    """Makes the texts of a training from its target, its settings and its seed, and from nothing else.

    Args:
        model: A transformers causal language model.
        tokenizer: Its tokenizer.
        settings: Of the texts.
        taps: Hugging Face `hidden_states` indices.
        prompts: Encoded prompts, up to where the answer begins; the last of them are held out.
        seed: Of all choices.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: TextSettings,
        taps: tuple[int, ...],
        prompts: Sequence[Sequence[int]],
        seed: int,
    ) -> None:
        self.model = model
        self.settings = settings
        self.taps = taps
        self.seed = seed
        self.headers = Headers.of(tokenizer)
        longest = settings.length // 2
        fitting = [prompt for prompt in prompts if len(prompt) <= longest]
        held = min(len(fitting) // 4, settings.held_out // 2)
        self.prompts, self.held_out_prompts = fitting[: len(fitting) - held], fitting[len(fitting) - held :]
        self._openings = [encode(tokenizer, opening) for opening in OPENINGS]

    @property
    def description(self) -> str:
        """In words, for the card."""
        settings = self.settings
        tokens = settings.rounds * settings.texts * settings.length
        given = ""
        if self.prompts and settings.prompted:
            given = f"; {settings.prompted:.0%} start with one of {len(self.prompts)} given prompts"
        return (
            f"{tokens / 1e6:.1f} M tokens that the target wrote itself: user turns at temperature "
            f"{settings.manners.user_temperature:g}, answers greedy ({settings.greedy:.0%}) or up to 1, in "
            f"{settings.rounds * settings.texts} texts of {settings.length}{given}"
        )

    @property
    def identity(self) -> Any:
        """What is not in the settings: the prompts."""
        return digest_of([self.prompts, self.held_out_prompts])

    def training(self, round_: int, into: Corpus | None, tell: Tell) -> Corpus:
        """The texts of a round, written over those of another round if given."""
        settings = self.settings
        corpus = into or self._room(settings.texts)
        for first in range(0, settings.texts, settings.streams):
            count = min(settings.streams, settings.texts - first)
            generator = np.random.default_rng([self.seed, 0, round_, first])
            streams = self._streams(count, self.prompts, settings.prompted, settings.greedy, generator)

            def told(part: float, first: int = first, count: int = count) -> None:
                tell("writing texts", (first + count * part) / settings.texts)

            self._write(streams, corpus, first, generator, told)
        return corpus

    def held_out(self, tell: Tell) -> Corpus:
        """Greedy texts of other prompts and other words of users."""
        count = self.settings.held_out
        corpus = self._room(count)
        generator = np.random.default_rng([self.seed, _HELD_OUT_SEED])
        share = self.settings.prompted if self.held_out_prompts else 0.0
        streams = self._streams(count, self.held_out_prompts, share, 1.0, generator)
        self._write(streams, corpus, 0, generator, lambda part: tell("writing held-out texts", part))
        return corpus

    def _room(self, texts: int) -> Corpus:
        return empty_corpus(texts, self.settings.length, len(self.taps), self.model)

    def _streams(
        self,
        count: int,
        prompts: Sequence[Sequence[int]],
        prompted: float,
        greedy: float,
        generator: np.random.Generator,
    ) -> list[Stream]:
        warmth = answer_temperatures(count, greedy, generator)
        given = round(prompted * count) if prompts else 0
        chosen = generator.integers(len(prompts), size=given) if given else []
        streams = [prompt_stream(prompts[number], warmth[place]) for place, number in enumerate(chosen)]
        openings = generator.integers(len(self._openings), size=count - given)
        unopened = generator.random(count - given) < _UNOPENED
        for number, bare, heat in zip(openings, unopened, warmth[given:], strict=True):
            words = [] if bare else self._openings[number]
            streams.append(opened_stream(self.headers, words, heat))
        return streams

    def _write(
        self,
        streams: Sequence[Stream],
        corpus: Corpus,
        first: int,
        generator: np.random.Generator,
        tell: Callable[[float], None],
    ) -> None:
        noise = torch.Generator(corpus.tokens.device).manual_seed(int(generator.integers(2**62)))
        longest = corpus.length
        write(
            self.model,
            streams,
            self.headers,
            self.settings.manners,
            self.taps,
            corpus,
            first,
            noise,
            lambda position: tell(position / longest),
        )


def answered(
    model: Any,
    prompts: Sequence[Sequence[int]],
    longest: int,
    drafts: int,
    taps: tuple[int, ...],
    headers: Headers,
) -> Corpus:
    """Greedy answers to encoded prompts: `longest` tokens, and some more that judge the last drafts."""
    streams = [prompt_stream(prompt, 0.0) for prompt in prompts]
    length = max(map(len, prompts)) + longest + drafts + 1
    corpus = empty_corpus(len(prompts), length, len(taps), model)
    manners = replace(TextSettings().manners, longest_answer=length)
    noise = torch.Generator(corpus.tokens.device)
    write(model, streams, headers, manners, taps, corpus, 0, noise)
    return corpus
