"""Which models, settings and versions two runs do not share, the weightiest first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dflash.diff.flat import Block
from dflash.draftfile.header import Header

# when, where, by which share and in how much memory a run was recorded: no part of what it is
VOLATILE_KEYS = ("created_at", "host", "shard", "memory")
# the first that differs is named first
WEIGHTS = (
    "tokenizer.digest",
    "tokenizer.vocab_size",
    "target.quantisation",
    "target.weights_digest",
    "target.config_digest",
    "target.dtype",
    "target.revision",
    "target.name",
    "target",
    "tokenizer",
    "drafters",
    "sampling",
    "seed",
    "policy",
    "shape",
)


class Difference(NamedTuple):
    """One key of the header; a missing key is None."""

    key: str
    a: Any
    b: Any


@dataclass(slots=True)
class RequestSettings:
    """Differences between the `request_info` of aligned requests.

    Attributes:
        counts: requests by the key that differs.
        examples: the first difference of each key: request, value in A, value in B.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, Any, Any]] = field(default_factory=dict)

    def add(self, a: Block, b: Block) -> None:
        """Compare the prefill rows of aligned requests."""
        texts = [block.flat("request_info").values[block.starts] for block in (a, b)]
        for index in (texts[0] != texts[1]).nonzero()[0]:
            left, right = (dict(_leaves(read_info(text[index]))) for text in texts)
            for key in sorted(left.keys() | right.keys()):
                if left.get(key) != right.get(key):
                    name = str(a.ids()[a.starts[index]])
                    self.counts[key] += 1
                    self.examples.setdefault(key, (name, left.get(key), right.get(key)))

    def to_dict(self) -> dict[str, Any]:
        return {
            key: {"requests": count, **dict(zip(("request", "a", "b"), self.examples[key], strict=True))}
            for key, count in self.counts.most_common()
        }


def read_info(text: str | None) -> Any:
    """The value of a `request_info`; text that is no JSON stands for itself."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {"text": text}


def differences(a: Header, b: Header) -> list[Difference]:
    """Return what the headers do not share, volatile keys left out, the weightiest first."""
    left, right = (dict(_leaves(_kept(header))) for header in (a, b))
    found = [
        Difference(key, left.get(key), right.get(key))
        for key in left.keys() | right.keys()
        if left.get(key) != right.get(key)
    ]
    return sorted(found, key=_weight)


def same_headers(a: Header, b: Header) -> bool:
    """Whether two headers say the same but for volatile keys."""
    return _kept(a) == _kept(b)


def _kept(header: Header) -> dict[str, Any]:
    return {key: value for key, value in header.raw.items() if key not in VOLATILE_KEYS}


def _weight(difference: Difference) -> tuple[int, str]:
    for rank, prefix in enumerate(WEIGHTS):
        if difference.key == prefix or difference.key.startswith((f"{prefix}.", f"{prefix}[")):
            return rank, difference.key
    return len(WEIGHTS), difference.key


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a JSON value by its path, such as `drafters[0].dtype`; quantisations are whole."""
    if isinstance(value, Mapping) and value and not path.endswith("quantisation"):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
