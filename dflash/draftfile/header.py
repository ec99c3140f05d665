"""The header of a draft file: who drafted, who verified, and under which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.errors import HeaderInvalid
from dflash.draftfile.header_codec import Json, to_numbers, validate, with_floats

# a quarter of what a reader accepts as a footer
HEADER_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """A valid header with floats and integers as numbers; `raw` is the whole dictionary."""

    raw: Json

    @classmethod
    def parse(cls, text: str, path: Path | None = None) -> Self:
        """Reads the canonical JSON of a file.

        Raises:
            HeaderInvalid: No JSON, or JSON that breaks the schema.
        """
        try:
            encoded = json.loads(text)
        except ValueError as error:
            raise HeaderInvalid("the top", f"no JSON ({error})", path) from error
        validate(encoded, path)
        return cls(to_numbers(encoded))

    @property
    def target(self) -> Json:
        """Identity of the model that verifies."""
        return dict(self.raw["target"])

    @property
    def contexts(self) -> Json | None:
        """Where `target` scored stored drafts: identity of the model whose contexts they are; else None."""
        found = self.raw.get("contexts")
        return None if found is None else dict(found["target"])

    @property
    def drafters(self) -> list[Json]:
        """Identities of what proposes; `node_source` is an index into this list."""
        return list(self.raw["drafters"])

    @property
    def tokenizer(self) -> Json:
        """Digest, vocabulary sizes and chat-template digest."""
        return dict(self.raw["tokenizer"])

    @property
    def sampling(self) -> Json:
        """Temperature, top-k and top-p of the target."""
        return dict(self.raw["sampling"])

    @property
    def temperature(self) -> float:
        """Temperature of the target; 0 is greedy."""
        return float(self.raw["sampling"]["temperature"])

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.raw["seed"])

    @property
    def policy(self) -> Json:
        """The policy that decided."""
        return dict(self.raw["policy"])

    @property
    def shape(self) -> Json:
        """Largest length and branches that were drafted."""
        return dict(self.raw["shape"])

    @property
    def store_topk(self) -> int:
        """Top logits stored per slot."""
        return int(self.raw["store_topk"])

    @property
    def draft_topk(self) -> int | None:
        """Top-k that sampled proposals were drawn from."""
        found: int | None = self.raw["draft_topk"]
        return found

    @property
    def tie_tolerance(self) -> float:
        """Raw logits under which two tokens are a near-tie."""
        return float(self.raw["tie_tolerance"])

    @property
    def dense(self) -> bool:
        """Whether every committed position has a verified draft."""
        return bool(self.raw["dense"])

    @property
    def q_complete(self) -> bool:
        """Whether the stored draft logits are all of q."""
        return bool(self.raw["q_complete"])

    @property
    def features(self) -> Json:
        """What was kept of the target's hidden states."""
        return dict(self.raw["features"])

    @property
    def lanes(self) -> int:
        """Concurrent requests of the engine."""
        return int(self.raw["lanes"])

    @property
    def rng(self) -> Json:
        """Scheme and version of the noise."""
        return dict(self.raw["rng"])

    @property
    def engine(self) -> Json:
        """Versions, device and kernels."""
        return dict(self.raw["engine"])

    @property
    def vocab_size(self) -> int:
        """Logical vocabulary: ids that the tokenizer knows."""
        return int(self.raw["tokenizer"]["vocab_size"])

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the target's output layer."""
        return int(self.raw["tokenizer"]["padded_vocab_size"])


def encode_header(header: Mapping[str, Any]) -> str:
    """The canonical JSON of a header.

    Raises:
        HeaderInvalid: A key is missing, or a value is of the wrong kind.
    """
    try:
        text = canonical_json(with_floats(dict(header)))
    except (TypeError, ValueError) as error:
        raise HeaderInvalid("some value", str(error)) from error
    if len(text.encode()) > HEADER_LIMIT:
        raise HeaderInvalid("the top", f"expected at most {HEADER_LIMIT} bytes, found {len(text.encode())}")
    validate(json.loads(text))
    return text


def validate_header(header: Mapping[str, Any]) -> Header:
    """The header as a reader will see it.

    Raises:
        HeaderInvalid: A key is missing, or a value is of the wrong kind.
    """
    return Header.parse(encode_header(header))
