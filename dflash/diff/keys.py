"""By what a request of one file is found in the other: its prompt, and which of the equal prompts it is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.run import Run

DIGEST_BYTES = 16


class PromptKey(StrEnum):
    """What of the prompt is compared."""

    TEXT = "text"
    TOKENS = "tokens"


class Key(NamedTuple):
    """A prompt's digest, its ordinal among equal prompts, and its occurrence under this ordinal."""

    digest: bytes
    ordinal: int
    occurrence: int


class Place(NamedTuple):
    """One request in a table.

    Attributes:
        name: its `request_id`.
        row: its first row.
        rows: how many it has.
    """

    key: Key
    name: str
    row: int
    rows: int


def prompt_key(a: Run, b: Run) -> PromptKey:
    """Texts are compared if both runs kept some, else tokens."""
    field = str(COLUMN["prompt_text"].field_id)
    kept = [any(field in file.column_digests for file in run.files) for run in (a, b)]
    return PromptKey.TEXT if all(kept) else PromptKey.TOKENS


class KeyReader:
    """Gives the requests of one run their keys, table by table."""

    def __init__(self, by: PromptKey) -> None:
        self._by = by
        self._seen: Counter[tuple[bytes, int]] = Counter()

    def places(self, table: pa.Table) -> Iterator[Place]:
        """Yield the requests of a table in order."""
        starts = request_starts(table)
        sizes = np.diff(np.append(starts, table.num_rows))
        first = table.select(["request_id", "prompt_text", "prompt_tokens", "request_info"])
        first = first.take(pa.array(starts))
        tokens = first["prompt_tokens"].combine_chunks()
        for index, (name, text, info) in enumerate(
            zip(
                *(first[name].to_pylist() for name in ("request_id", "prompt_text", "request_info")),
                strict=True,
            )
        ):
            digest, ordinal = self._digest(text, tokens[index].values), int(_info(info).get("ordinal", 0))
            occurrence = self._seen[digest, ordinal]
            self._seen[digest, ordinal] += 1
            yield Place(Key(digest, ordinal, occurrence), name, int(starts[index]), int(sizes[index]))

    def _digest(self, text: str | None, tokens: pa.Array | None) -> bytes:
        if self._by is PromptKey.TEXT and text is not None:
            data = b"text" + text.encode()
        else:
            data = b"tokens" + (b"" if tokens is None else tokens.to_numpy().astype("<i4").tobytes())
        return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def request_starts(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the first row of every request of a table."""
    ids = table["request_id"].combine_chunks()
    changed = np.ones(len(ids), dtype=bool)
    if len(ids) > 1:
        changed[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changed)


def _info(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
