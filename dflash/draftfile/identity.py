"""Whether two sets of models are the same, and if not, what differs: weights, tokenizer, template, ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from dflash.errors import DflashError

Identity = Mapping[str, Any]


class Part(StrEnum):
    """What an identity check compares."""

    TARGET = "target"
    DRAFTER = "drafter"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"


# which parts must agree: a resumed run, a warm state or cache, stored drafts, another target on stored drafts
EVERYTHING = tuple(Part)
WARM = (Part.TARGET, Part.TOKENIZER, Part.TEMPLATE)
STORED_DRAFTS = EVERYTHING
RESCORE = (Part.TOKENIZER,)

MODEL_FACTS = {
    "weights": "weights_digest",
    "config": "config_digest",
    "quantisation": "quantisation",
    "taps": "tap_convention",
}
TOKENIZER_FACTS = {
    "tokenizer": "digest",
    "vocabulary": "vocab_size",
    "padded vocabulary": "padded_vocab_size",
}


class Difference(NamedTuple):
    """One fact in which two identities disagree.

    Attributes:
        owner: `target`, `drafter 0`, `tokenizer` or `template`.
        fact: weights, config, quantisation, taps, tokenizer, vocabulary, template, or number.
    """

    part: Part
    owner: str
    fact: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.owner} {self.fact} (expected {_short(self.expected)}, found {_short(self.found)})"


class IdentityMismatch(DflashError):
    """The models are not those of the file.

    Attributes:
        differences: Every fact that differs.
    """

    def __init__(self, file: object, differences: Sequence[Difference]) -> None:
        self.differences = tuple(differences)
        told = "; ".join(str(difference) for difference in differences)
        super().__init__(f"{file} was recorded with other models: {told}. Use the models that it names.")


def differences(expected: Identity, found: Identity) -> list[Difference]:
    """Everything that differs between two headers, or a header and the loaded models in the same form.

    Args:
        expected, found: `target`, `drafters` and `tokenizer` as in the header.
    """
    return list(_differences(expected, found))


def require_same(
    expected: Identity, found: Identity, parts: Sequence[Part], file: object
) -> list[Difference]:
    """Refuses other models, and returns the differences in the parts that may differ.

    Args:
        parts: What must agree: `EVERYTHING`, `WARM`, `STORED_DRAFTS` or `RESCORE`.
        file: Named in the error.

    Raises:
        IdentityMismatch: A part that must agree differs.
    """
    every = differences(expected, found)
    refused = [difference for difference in every if difference.part in parts]
    if refused:
        raise IdentityMismatch(file, refused)
    return every


def _differences(expected: Identity, found: Identity) -> Iterator[Difference]:
    yield from _compare(Part.TARGET, "target", expected["target"], found["target"], MODEL_FACTS)
    mine, yours = expected["drafters"], found["drafters"]
    if len(mine) != len(yours):
        yield Difference(Part.DRAFTER, "drafter", "number", len(mine), len(yours))
    for number, (one, two) in enumerate(zip(mine, yours, strict=False)):
        yield from _compare(Part.DRAFTER, f"drafter {number}", one, two, {"family": "family", **MODEL_FACTS})
    tokenizers = expected["tokenizer"], found["tokenizer"]
    yield from _compare(Part.TOKENIZER, "tokenizer", *tokenizers, TOKENIZER_FACTS)
    yield from _compare(Part.TEMPLATE, "chat", *tokenizers, {"template": "template_digest"})


def _compare(
    part: Part, owner: str, expected: Identity, found: Identity, facts: Mapping[str, str]
) -> Iterator[Difference]:
    for fact, key in facts.items():
        if expected.get(key) != found.get(key):
            yield Difference(part, owner, fact, expected.get(key), found.get(key))


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if len(text) == 64 else text
