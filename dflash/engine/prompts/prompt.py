"""A prompt: what to answer, and under which settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dflash.engine.prompts.errors import EmptyPrompt, NotUtf8


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Kind(StrEnum):
    """What form a prompt came in; only text can be sent to a model without a chat template."""

    TEXT = "text"
    TURNS = "turns"
    MESSAGES = "messages"


class Message(NamedTuple):
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to answer, and under which settings; None leaves a setting to the run.

    Attributes:
        turns: User turns to be answered in order, a request each, own answers as context.
        history: Given messages before the first of them; a system message, if any, comes first.
        kind: The form it came in.
        place: Where it was read, for messages.
        id: Unique in a run once `with_ids` has seen it.
        category: A label for reports.
        seed: Noise seed, unsigned 64 bit.
        temperature: At least 0.
        max_new_tokens: At least 1.
        stop: Strings that end the answer.
        remark: What its author may not expect of how the line was read.
    """

    turns: tuple[str, ...]
    history: tuple[Message, ...] = ()
    kind: Kind = Kind.TEXT
    place: str = "the command line"
    id: str | None = None
    category: str | None = None
    seed: int | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    remark: str | None = None

    @property
    def system(self) -> str | None:
        """The given system message."""
        return next((content for role, content in self.history if role is Role.SYSTEM), None)


def text_prompt(text: str, place: str = "the command line") -> Prompt:
    """One user turn.

    Raises:
        EmptyPrompt: There is nothing but white space.
        NotUtf8: The text holds half a surrogate pair.
    """
    return Prompt(turns=(spoken(text, place),), place=place)


def spoken(text: str, place: str) -> str:
    """The text of a user turn, which must not be empty.

    Raises:
        EmptyPrompt: There is nothing but white space.
        NotUtf8: The text holds half a surrogate pair.
    """
    if not text.strip():
        raise EmptyPrompt(place, "expected some text to answer, found an empty prompt.")
    return encodable(text, place)


def encodable(text: str, place: str) -> str:
    """The text, which must be one that UTF-8 can hold.

    Raises:
        NotUtf8: The text holds half a surrogate pair.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotUtf8(place, f"expected text, found half a character at {error.start + 1}.") from error
    return text
