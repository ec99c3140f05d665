"""The requests of a row group: their names, keys and contexts, and what else their `request_info` says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.policy.context import RuleContext, context_from_header
from dflash.policy.noise import I64, U32, rng_key_words
from dflash.replay.errors import RequestUnknown


class Request(NamedTuple):
    """One request of a row group: its key, and what its `request_info` says."""

    request_id: str
    key: tuple[int, int]
    context: RuleContext
    info: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Requests(Sequence[Request]):
    """All requests of a row group, column by column, since there are thousands.

    Attributes:
        keys: `[requests, 2]`.
        contexts: that differ, in the order in which they are met.
        place: `[requests]` the context of each.
        infos: of each.
    """

    names: Sequence[str]
    keys: U32
    contexts: tuple[RuleContext, ...]
    place: I64
    infos: Sequence[dict[str, Any]]

    @classmethod
    def parse(cls, file: DraftFile, names: Sequence[str], texts: Sequence[str | None]) -> Requests:
        """Read the `request_info` of every request.

        Raises:
            RequestUnknown: a request does not say its key or its sampling.
        """
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            raise RequestUnknown(names[texts.index(None)], "text")
        # one document is parsed several times as fast as one a request
        infos: list[dict[str, Any]] = json.loads(f"[{','.join(known)}]")
        try:
            words = rng_key_words([info["rng_key"] for info in infos])
        except KeyError:
            unknown = next(name for name, info in zip(names, infos, strict=True) if "rng_key" not in info)
            raise RequestUnknown(unknown, "rng_key") from None
        own = [info["sampling"].get("temperature") if "sampling" in info else None for info in infos]
        found = {
            kind: context_from_header(file.header.raw, None if kind is None else float(kind))
            for kind in dict.fromkeys(own)
        }
        contexts = tuple(dict.fromkeys(found.values()))
        if len(contexts) < 2:
            return cls(names, words, contexts, np.zeros(len(infos), dtype=np.int64), infos)
        places = {kind: contexts.index(context) for kind, context in found.items()}
        return cls(names, words, contexts, np.array([places[kind] for kind in own], dtype=np.int64), infos)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        first, second = self.keys[index].tolist()
        context = self.contexts[int(self.place[index])]
        return Request(self.names[index], (first, second), context, self.infos[index])
