"""Prompts as users bring them: files and streams of text lines or JSON Lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dflash.engine.prompts.errors import (
    DuplicateId,
    NoPrompts,
    PromptError,
    PromptFileUnreadable,
    SeveralBadPrompts,
)
from dflash.engine.prompts.json_line import line_prompt, looks_structured
from dflash.engine.prompts.lines import read_lines
from dflash.engine.prompts.prompt import Prompt, text_prompt

__all__ = [
    "CheckedPrompts",
    "Prompt",
    "check_prompts",
    "read_prompt_file",
    "read_prompt_stream",
    "refuse_bad",
    "text_prompt",
    "with_ids",
    "with_remarks",
]


class CheckedPrompts(NamedTuple):
    """Prompts that can be used, and the errors of those that were left out."""

    prompts: tuple[Prompt, ...]
    refused: tuple[PromptError, ...]


def read_prompt_file(path: Path) -> Iterator[Prompt | PromptError]:
    """Every prompt of a file, and an error in the place of every line that holds none.

    Raises:
        PromptFileUnreadable: The file cannot be opened.
        DamagedCompression: The file is compressed, and cut short or corrupt.
    """
    try:
        with path.open("rb") as stream:
            yield from _parsed(stream, str(path))
    except OSError as error:
        reason = f"expected a file of prompts, but {(error.strerror or str(error)).lower()}."
        raise PromptFileUnreadable(str(path), reason) from error


def read_prompt_stream(stream: BinaryIO, name: str = "stdin") -> Iterator[Prompt | PromptError]:
    """Prompts as they arrive; a stream that breaks off yields its error last."""
    try:
        yield from _parsed(stream, name)
    except PromptError as error:
        yield error


def with_ids(entries: Iterable[Prompt | PromptError]) -> Iterator[Prompt | PromptError]:
    """Number the prompts that have no id, and turn a repeated id into an error."""
    seen: dict[str, str] = {}
    for order, entry in enumerate(entries):
        if isinstance(entry, PromptError):
            yield entry
            continue
        chosen = entry.id or _free_id(order, seen)
        names = _request_ids(chosen, len(entry.turns))
        if taken := [name for name in names if name in seen]:
            yield DuplicateId(
                entry.place, f"expected its own id, found {taken[0]!r} again, as at {seen[taken[0]]}."
            )
            continue
        seen |= dict.fromkeys(names, entry.place)
        yield replace(entry, id=chosen)


def with_remarks(
    entries: Iterable[Prompt | PromptError], tell: Callable[[str], None]
) -> Iterator[Prompt | PromptError]:
    """Tell every remark once, at the first prompt that has it."""
    told: set[str] = set()
    for entry in entries:
        if isinstance(entry, Prompt) and entry.remark is not None and entry.remark not in told:
            told.add(entry.remark)
            tell(f"{entry.place}: {entry.remark}")
        yield entry


def check_prompts(
    entries: Iterable[Prompt | PromptError], *, skip_bad: bool = False, name: str = "prompts"
) -> CheckedPrompts:
    """Read everything, so that nothing is decoded if anything is wrong; see `refuse_bad`."""
    prompts: list[Prompt] = []
    refused = refuse_bad(entries, skip_bad=skip_bad, name=name, each=prompts.append)
    return CheckedPrompts(tuple(prompts), refused)


def refuse_bad(
    entries: Iterable[Prompt | PromptError],
    *,
    skip_bad: bool = False,
    name: str = "prompts",
    each: Callable[[Prompt], None] = lambda prompt: None,
) -> tuple[PromptError, ...]:
    """Read everything and keep nothing but the errors.

    Args:
        entries: Prompts and errors, as the readers yield them.
        skip_bad: Leave bad prompts out instead of refusing the run.
        name: What errors call the source of the prompts.
        each: Told of every prompt.

    Raises:
        PromptError: One prompt is bad.
        SeveralBadPrompts: More than one is.
        NoPrompts: None is left.
    """
    refused: list[PromptError] = []
    good = False
    for entry in entries:
        if isinstance(entry, PromptError):
            refused.append(entry)
        else:
            good = True
            each(entry)
    if refused and not skip_bad:
        raise refused[0] if len(refused) == 1 else SeveralBadPrompts(refused)
    if not good:
        found = f"only {len(refused)} that cannot be used" if refused else "none"
        raise NoPrompts(name, f"expected at least one prompt, found {found}.")
    return tuple(refused)


def _request_ids(chosen: str, turns: int) -> list[str]:
    """The id and, of a conversation, the ids of its requests."""
    return [chosen, *(f"{chosen}/{turn}" for turn in range(turns) if turns > 1)]


def _free_id(order: int, seen: Mapping[str, str]) -> str:
    number = str(order)
    while number in seen:
        number += "+"
    return number


def _parsed(stream: BinaryIO, name: str) -> Iterator[Prompt | PromptError]:
    structured: bool | None = None
    for place, text in read_lines(stream, name):
        if isinstance(text, PromptError):
            yield text
            continue
        if structured is None:
            structured = _is_json_lines(name, text)
        try:
            yield line_prompt(text, place) if structured else _plain(text, place)
        except PromptError as error:
            yield error


def _plain(text: str, place: str) -> Prompt:
    remark = "sent as plain text, though it looks like JSON Lines; those are read from a file named .jsonl"
    prompt = text_prompt(text, place)
    return replace(prompt, remark=remark) if looks_structured(text) else prompt


def _is_json_lines(name: str, first: str) -> bool:
    suffix = Path(name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
    if suffix in (".jsonl", ".ndjson", ".json"):
        return True
    return suffix != ".txt" and first.lstrip().startswith("{")
