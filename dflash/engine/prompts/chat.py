"""Prompts become requests: chat template, turns, noise ordinals, context window."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash.engine.prompts.errors import PromptError
from dflash.engine.prompts.prompt import Kind, Message, Prompt, Role
from dflash.engine.request import Request
from dflash.target.load import Target
from dflash.target.sampling import Sampling


class NoChatTemplate(PromptError):
    """A conversation for a model that has no chat template."""


class PromptTooLong(PromptError):
    """A prompt that fills the context window."""


class RawConversation(PromptError):
    """A conversation where prompts are sent as they are."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings of a run that a prompt may override."""

    sampling: Sampling
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    system: str | None = None
    raw: bool = False


@dataclass(slots=True)
class Ordinals:
    """Counts identical prompts, so that each of them gets its own noise."""

    _seen: dict[bytes, int] = field(default_factory=dict)

    def take(self, tokens: list[int]) -> int:
        """How many identical prompts came before."""
        digest = hashlib.sha256(np.asarray(tokens, dtype="<i4").tobytes()).digest()
        self._seen[digest] = self._seen.get(digest, -1) + 1
        return self._seen[digest]


class ChatConversation:
    """One prompt and its turns; the source of one request a turn.

    The ordinal of the first request, counted in the order of the list, serves all turns. The first prompt is
    encoded at once, so that a list can be checked whole before anything is decoded.

    Raises:
        NoChatTemplate: There are several messages, and the target's tokenizer has no template for them.
        RawConversation: Likewise, and `raw` was asked for.
        PromptTooLong: The prompt leaves no room for an answer.
    """

    def __init__(
        self,
        order: int,
        prompt: Prompt,
        target: Target,
        defaults: Defaults,
        ordinals: Ordinals,
        on_lost: Callable[[PromptError], None],
    ) -> None:
        self.order = order
        self.prompt = prompt
        self.target = target
        self.defaults = defaults
        self._on_lost = on_lost
        self._messages = _opening(prompt, defaults)
        self._turn = 0
        self._refuse_unanswerable()
        self._text, self._tokens = self._encode()
        self._ordinal = ordinals.take(self._tokens)

    def next(self, answer: str | None) -> Request | None:
        """The request of the next turn; a turn that no longer fits the window ends the conversation."""
        if answer is not None:
            self._messages.append(Message(Role.ASSISTANT, answer))
            self._turn += 1
            if self._turn == len(self.prompt.turns):
                return None
            try:
                self._text, self._tokens = self._encode()
            except PromptTooLong as error:
                self._on_lost(error)
                return None
        return self._request()

    @property
    def room(self) -> int:
        """Most tokens that prompt and answers may come to, later turns taken for a token a character."""
        later = self.prompt.turns[self._turn + 1 :]
        words = len(self._tokens) + sum(map(len, later))
        return min(self.target.window, words + (1 + len(later)) * self._wanted)

    @property
    def _wanted(self) -> int:
        asked = self.prompt.max_new_tokens
        return self.defaults.max_new_tokens if asked is None else asked

    def _request(self) -> Request:
        prompt, defaults = self.prompt, self.defaults
        temperature = defaults.sampling.temperature if prompt.temperature is None else prompt.temperature
        several = len(prompt.turns) > 1
        return Request(
            request_id=f"{prompt.id}/{self._turn}" if several else str(prompt.id),
            prompt_tokens=self._tokens,
            prompt_text=self._text,
            sampling=Sampling(temperature, defaults.sampling.top_k, defaults.sampling.top_p),
            seed=defaults.seed if prompt.seed is None else prompt.seed,
            max_new_tokens=min(self._wanted, self.target.window - len(self._tokens)),
            stop=defaults.stop if prompt.stop is None else prompt.stop,
            ordinal=self._ordinal,
            order=self.order,
            info={
                "category": prompt.category,
                "conversation": prompt.id if several else None,
                "turn": self._turn,
                "template_digest": self.target.tokenizer_identity["template_digest"]
                if self._templated
                else None,
            },
        )

    @property
    def _templated(self) -> bool:
        return not self.defaults.raw and bool(self.target.tokenizer.chat_template)

    def _refuse_unanswerable(self) -> None:
        simple = self.prompt.kind is Kind.TEXT and not self.prompt.history
        if self._templated or simple:
            return
        if self.defaults.raw:
            raise RawConversation(self.prompt.place, "expected plain text under --raw, found a conversation.")
        raise NoChatTemplate(
            self.prompt.place,
            f"expected plain text, found a conversation, and {self.target.name} has no chat template for it.",
        )

    def _encode(self) -> tuple[str, list[int]]:
        """Text and tokens of the conversation so far, up to where the answer begins."""
        tokenizer: Any = self.target.tokenizer
        spoken = [*self._messages, Message(Role.USER, self.prompt.turns[self._turn])]
        if self._templated:
            messages = [{"role": str(role), "content": content} for role, content in spoken]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            # the template writes the special tokens itself: a second BOS would change every logit
            tokens = tokenizer(text, add_special_tokens=False).input_ids
        else:
            text = spoken[-1].content
            bos = tokenizer.bos_token
            tokens = tokenizer(text, add_special_tokens=not (bos and text.startswith(bos))).input_ids
        if not tokens:
            raise PromptTooLong(self.prompt.place, "expected at least one token, found none after encoding.")
        if len(tokens) >= self.target.window:
            raise PromptTooLong(
                self.prompt.place,
                f"expected a prompt under the context window of {self.target.window} tokens, "
                f"found {len(tokens)}.",
            )
        self._messages = spoken
        return text, list(tokens)


def _opening(prompt: Prompt, defaults: Defaults) -> list[Message]:
    if defaults.system is None or prompt.system is not None or defaults.raw:
        return list(prompt.history)
    return [Message(Role.SYSTEM, defaults.system), *prompt.history]
