"""One line of JSON Lines as a prompt, in the forms that data sets have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from dflash.engine.prompts.errors import BadSetting, BrokenLine, UnknownKey, UnknownShape
from dflash.engine.prompts.prompt import Kind, Message, Prompt, Role, encodable, spoken
from dflash.policy.temperature import TEMPERATURES, is_temperature


def line_prompt(text: str, place: str) -> Prompt:
    """Parse one line of JSON Lines.

    Raises:
        PromptError: In one of its kinds, naming the place.
    """
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenLine(place, f"expected one complete JSON object, found broken JSON ({error}).") from error
    if not isinstance(line, dict):
        raise BrokenLine(place, f"expected one JSON object a line, found {_kind_of(line)}.")
    forms = [key for key in _FORMS if line.get(key) is not None]
    if len(forms) != 1:
        found = " and ".join(forms) or "none"
        raise UnknownShape(place, f"expected exactly one of {', '.join(_FORMS)}; found {found}.")
    kind, parse = _FORMS[forms[0]]
    history, turns = parse(line[forms[0]], forms[0], place)
    remark = _unread(line, place)
    return Prompt(
        turns=turns, history=history, kind=kind, place=place, remark=remark, **_settings(line, place)
    )


def looks_structured(text: str) -> bool:
    """Whether a line of text begins as an object of JSON Lines does, whole or broken."""
    return _OBJECT.match(text) is not None


_Parts = tuple[tuple[Message, ...], tuple[str, ...]]


def _from_text(value: Any, key: str, place: str) -> _Parts:
    if not isinstance(value, str):
        raise UnknownShape(place, f"expected {key!r} to be a string, found {_kind_of(value)}.")
    return (), (spoken(value, place),)


def _from_turns(value: Any, key: str, place: str) -> _Parts:
    if not isinstance(value, list) or not value or not all(isinstance(turn, str) for turn in value):
        found = "an empty one" if value == [] else _kind_of(value)
        raise UnknownShape(place, f"expected {key!r} to be a list of strings, found {found}.")
    return (), tuple(spoken(turn, place) for turn in value)


def _from_messages(value: Any, key: str, place: str) -> _Parts:
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise UnknownShape(place, f"expected {key!r} to be a list of messages, found {_kind_of(value)}.")
    messages = [_message(message, place) for message in value]
    asked = [index for index, message in enumerate(messages) if message.role is Role.USER]
    if not asked:
        raise UnknownShape(place, f"expected a user turn in {key!r}, found none.")
    last = asked[-1]
    return tuple(messages[:last]), (messages[last].content,)


_FORMS = {
    "prompt": (Kind.TEXT, _from_text),
    "text": (Kind.TEXT, _from_text),
    "turns": (Kind.TURNS, _from_turns),
    "messages": (Kind.MESSAGES, _from_messages),
    "conversations": (Kind.MESSAGES, _from_messages),
}
_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "human": Role.USER,
    "assistant": Role.ASSISTANT,
    "gpt": Role.ASSISTANT,
    "chatgpt": Role.ASSISTANT,
}


def _message(message: Mapping[str, Any], place: str) -> Message:
    named = message.get("role", message.get("from"))
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise UnknownShape(place, f"expected a role of {', '.join(_ROLES)}; found {named!r}.")
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        content = "".join(_text_part(part, place) for part in content)
    if not isinstance(content, str):
        raise UnknownShape(place, f"expected the text of a {role} turn, found {_kind_of(content)}.")
    return Message(role, spoken(content, place) if role is Role.USER else encodable(content, place))


def _text_part(part: Any, place: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    found = part.get("type") if isinstance(part, dict) else _kind_of(part)
    raise UnknownShape(place, f"expected content parts of type text, found {found!r}.")


def _unread(line: Mapping[str, Any], place: str) -> str | None:
    """A remark on the keys that data sets have beside a prompt; what is meant as a setting is refused."""
    unread = [
        key for key, value in line.items() if value not in _NOTHING and key not in {*_FORMS, *_SETTINGS}
    ]
    for key in unread:
        if key in _OF_THE_RUN:
            raise UnknownKey(
                place, f"expected no {key!r}, which is set for the whole run: {_OF_THE_RUN[key]}."
            )
        meant = _MEANT.get(key) or next(iter(get_close_matches(key, _SETTINGS, n=1, cutoff=0.82)), None)
        if meant is not None:
            raise UnknownKey(place, f"expected no {key!r}, which is not a setting. Did you mean {meant!r}?")
    return f"keys that are not read: {', '.join(map(repr, unread))}" if unread else None


def _settings(line: Mapping[str, Any], place: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, (meaning, check) in _SETTINGS.items():
        value = line.get(key)
        if value is None:
            continue
        if not check(value):
            raise BadSetting(place, f"expected {key!r} to be {meaning}, found {json.dumps(value)[:60]}.")
        settings[key] = value
    if "id" in settings:
        settings["id"] = str(settings["id"])
    if "stop" in settings:
        stop = settings["stop"]
        settings["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return settings


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or value == "":
        return False
    # half a surrogate pair cannot be stored, and would be found only after decoding
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _is_name(value: Any) -> bool:
    return _is_text(value) or _is_integer(value)


def _is_seed(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 2**64


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 1


def _is_stop(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, list) and all(_is_text(item) for item in value))


def _is_temperature(value: Any) -> bool:
    return (_is_integer(value) or isinstance(value, float)) and is_temperature(value)


_NOTHING: tuple[Any, ...] = (None, "", [], {})
# a word in quotes or not, and a colon
_OBJECT = re.compile(r"""\s*\{\s*(["']?)\w[\w -]*\1\s*:""")
_MEANT = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
}
_OF_THE_RUN = {
    "top_k": "use --top-k",
    "top_p": "use --top-p",
    "policy": "use --policy",
    "drafter": "use --drafter",
    "system": "use --system, or a system message in 'messages'",
}
_SETTINGS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "id": ("a string or an integer", _is_name),
    "seed": ("an integer from 0 to 2^64 - 1", _is_seed),
    "temperature": (TEMPERATURES, _is_temperature),
    "max_new_tokens": ("an integer of at least 1", _is_count),
    "stop": ("a string or a list of strings, none empty", _is_stop),
    "category": ("a string", _is_text),
}


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")
