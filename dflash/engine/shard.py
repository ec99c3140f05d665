"""Shards: one recorder a GPU, each with its share of the prompts, all together one run.

Prompt j belongs to shard j modulo the count. Lists are often sorted by category or length, and dealing them
out gives every shard its part of each; it needs no end of the list, and dealing back restores the order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dflash.draftfile.run import OWN_KEYS, SUFFIX
from dflash.engine.prompts.prompt import Prompt
from dflash.errors import UsageError

MOST = 4096


class BadShard(UsageError):
    """A shard that is none of its run's."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"Expected --shard I/N, the I-th of N shares counted from 0, N at most {MOST}, found {text!r}."
        )


class Shard(NamedTuple):
    """Share `index` of `count`."""

    index: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """The shard that `I/N` names.

        Raises:
            BadShard: It names none.
        """
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text, re.ASCII)
        if found is None:
            raise BadShard(text)
        shard = Shard(int(found[1]), int(found[2]))
        if not shard.index < shard.count <= MOST:
            raise BadShard(text)
        return shard

    def place(self, order: int) -> int | None:
        """The place in this share of the prompt at `order` in the list; None if it is in another."""
        place, index = divmod(order, self.count)
        return place if index == self.index else None

    def output(self, given: Path) -> Path:
        """The file of this shard: the one given, or in the folder that was given."""
        if given.suffix == SUFFIX and not given.is_dir():
            return given
        digits = len(str(self.count - 1))
        return given / f"shard-{self.index:0{digits}}-of-{self.count}{SUFFIX}"


class PromptsDigest:
    """Digest of a list of prompts, by all that decides what is answered and how; `defaults` hold for all."""

    def __init__(self, defaults: str) -> None:
        self._digest = hashlib.sha256(defaults.encode())

    def add(self, prompt: Prompt) -> None:
        """Take in the next prompt."""
        asked = (prompt.id, prompt.turns, prompt.history, prompt.kind, prompt.category)
        wanted = (prompt.seed, prompt.temperature, prompt.max_new_tokens, prompt.stop)
        self._digest.update(json.dumps([asked, wanted]).encode() + b"\n")

    def hexdigest(self) -> str:
        """Of the prompts so far."""
        return self._digest.hexdigest()


def run_id_of(header: Mapping[str, Any], shard: Shard, prompts: str) -> str:
    """The identity that all shards of a run come to on their own: the same settings, prompts and count.

    Args:
        prompts: Digest of the whole list.
    """
    common = {name: value for name, value in header.items() if name not in OWN_KEYS}
    text = json.dumps([common, prompts, shard.count], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
