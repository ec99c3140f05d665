"""Tokens as text, if the target's tokenizer is at hand; as bare ids if it is not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli.output import warn
from dflash.draftfile.header import Header
from dflash.errors import UsageError
from dflash.target.catalogue import find_packaged, model_folder
from dflash.target.tokenizer_digest import tokenizer_digest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "tokenizer.json"


@dataclass(frozen=True, eq=False)
class Tokens:
    """Shows a token id, followed by its text if a tokenizer is known."""

    tokenizer: Tokenizer | None = None

    def __call__(self, token: int) -> str:
        if self.tokenizer is None:
            return str(token)
        text = self.tokenizer.decode([token], skip_special_tokens=False)
        return f"{token} {json.dumps(text, ensure_ascii=False)}"


def find_tokens(header: Header, given: Path | None = None) -> Tokens:
    """The target's tokens, by the tokenizer given, the target's folder, or the default target's cache.

    A tokenizer of the right size that is not the recording's is used with a warning if it was given, and not
    at all if it was found.

    Raises:
        UsageError: The tokenizer given cannot be read, or its vocabulary is not the file's.
    """
    if given is not None:
        return Tokens(_given(given, header))
    packaged = find_packaged(header.target["name"])
    for folder in (Path(header.target["name"]), *([model_folder(packaged)] if packaged else [])):
        found = _load(folder / NAME) if (folder / NAME).is_file() else None
        if found is not None and _is_recorded(found, header):
            return Tokens(found)
    return Tokens()


def _is_recorded(tokenizer: Tokenizer, header: Header) -> bool:
    if tokenizer.get_vocab_size() != header.vocab_size:
        return False
    return bool(tokenizer_digest(tokenizer) == header.tokenizer["digest"])


def _given(path: Path, header: Header) -> Tokenizer:
    place = path / NAME if path.is_dir() else path
    found = _load(place)
    if found is None:
        raise UsageError(f"Expected a tokenizer in {place}, found none that the package tokenizers can read.")
    size = header.vocab_size
    if found.get_vocab_size() != size:
        raise UsageError(f"Expected the file's {size} tokens, found {found.get_vocab_size()} in {place}.")
    if not _is_recorded(found, header):
        warn(f"{place} is not the tokenizer of the recording: the digests differ, and the text may be wrong.")
    return found


@cache
def _load(path: Path) -> Tokenizer | None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    # tokenizers raises bare Exception for anything it cannot parse
    try:
        return Tokenizer.from_file(str(path))
    except Exception:
        return None
