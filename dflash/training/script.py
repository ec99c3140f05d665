"""What the target is made to say around its own words: chat headers, prompts, openings of user turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

USER, ANSWER = 0, 1
# text that no template writes by itself
_MARK = "\u2063mark{}\u2063"


@dataclass(frozen=True, slots=True)
class Headers:
    """Tokens of a chat template around its messages; `after_user` and `after_answer` start with the token
    that ends the turn.

    A tokenizer without a template has no users: texts follow each other, each ended by its end token.
    """

    opening: tuple[int, ...]
    after_user: tuple[int, ...]
    after_answer: tuple[int, ...]
    follows_answer: int

    @classmethod
    def of(cls, tokenizer: Any) -> Headers:
        """Read them off the tokenizer's chat template."""
        if not tokenizer.chat_template:
            end = tokenizer.eos_token_id
            start = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
            return cls((start,), (end,), (end,), ANSWER)
        first, answer, second = (_MARK.format(number) for number in range(3))
        messages = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": second},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        opening, rest = text.split(first)
        after_user, rest = rest.split(answer)
        pieces = (opening, after_user, rest.split(second)[0])
        return cls(*(tuple(encode(tokenizer, piece)) for piece in pieces), USER)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a piece of a conversation; the template writes special tokens itself."""
    return list(tokenizer(text, add_special_tokens=False).input_ids)


@dataclass(frozen=True, slots=True)
class Stream:
    """One text to be written: what it begins with, who speaks next, and at which temperature answers are."""

    begins: tuple[int, ...]
    speaker: int
    temperature: float


def prompt_stream(prompt: Sequence[int], temperature: float) -> Stream:
    """An encoded prompt, up to where the answer begins."""
    return Stream(tuple(prompt), ANSWER, temperature)


def opened_stream(headers: Headers, words: Sequence[int], temperature: float) -> Stream:
    """A user turn that begins with `words`, and which the target is to finish and to answer."""
    return Stream((*headers.opening, *words), USER if headers.follows_answer == USER else ANSWER, temperature)


def answer_temperatures(count: int, greedy: float, generator: np.random.Generator) -> list[float]:
    """Temperatures of answers: a `greedy` share at 0, the others uniform in (0, 1]."""
    warm = 1.0 - generator.random(count)
    return np.where(generator.random(count) < greedy, 0.0, warm).tolist()
