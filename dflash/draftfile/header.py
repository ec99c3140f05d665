"""The header of a draft file: who drafted, who verified, and under which settings."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.errors import HeaderInvalid

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

FLOAT = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")

# a quarter of what a reader accepts as a footer
HEADER_LIMIT = 4 << 20

Json = dict[str, Any]


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
        _validate(encoded, path)
        return cls(_walk(encoded, header_schema(), _decode))

    @property
    def target(self) -> Json:
        """Identity of the model that verifies."""
        return dict(self.raw["target"])

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


@cache
def header_schema() -> Json:
    """The JSON Schema of the header as it stands in the file."""
    path = resources.files("dflash").joinpath("schemas", "header_v1.schema.json")
    schema: Json = json.loads(path.read_text("utf-8"))
    return schema


def encode_header(header: Mapping[str, Any]) -> str:
    """The canonical JSON of a header.

    Raises:
        HeaderInvalid: A key is missing, or a value is of the wrong kind.
    """
    try:
        text = canonical_json(_walk(copy.deepcopy(dict(header)), header_schema(), _numeric))
    except (TypeError, ValueError) as error:
        raise HeaderInvalid("some value", str(error)) from error
    if len(text.encode()) > HEADER_LIMIT:
        raise HeaderInvalid("the top", f"expected at most {HEADER_LIMIT} bytes, found {len(text.encode())}")
    _validate(json.loads(text))
    return text


def validate_header(header: Mapping[str, Any]) -> Header:
    """The header as a reader will see it.

    Raises:
        HeaderInvalid: A key is missing, or a value is of the wrong kind.
    """
    return Header.parse(encode_header(header))


def _validate(encoded: Any, path: Path | None = None) -> None:
    error = next(_validator().iter_errors(encoded), None)
    if error is not None:
        where = ".".join(str(step) for step in error.absolute_path) or "the top"
        raise HeaderInvalid(where, error.message.replace("\n", " ")[:300], path)


@cache
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(header_schema())


def _walk(value: Any, node: Json, change: Callable[[Any, str], Any]) -> Any:
    """Applies `change(value, definition)` wherever the schema refers to a number or a free value."""
    reference = node.get("$ref")
    if reference is not None:
        name = reference.rpartition("/")[2]
        changed = change(value, name)
        return _walk(changed, header_schema()["$defs"][name], change)
    branches = [branch for branch in node.get("anyOf", []) if branch != {"type": "null"}]
    if branches and value is not None:
        return _walk(value, branches[0], change)
    if isinstance(value, dict):
        known, other = node.get("properties", {}), node.get("additionalProperties", {})
        return {key: _walk(item, known.get(key, other), change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, node.get("items", {}), change) for item in value]
    return value


def _numeric(value: Any, definition: str) -> Any:
    if definition == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if definition == "value" and _free(value) != value:
        raise ValueError(f"a string that reads as a number in {value!r}")
    return value


def _decode(value: Any, definition: str) -> Any:
    if definition == "float" and isinstance(value, str):
        return float(value)
    if definition == "big_integer" and isinstance(value, str):
        return int(value)
    return _free(value) if definition == "value" else value


def _free(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _free(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_free(item) for item in value]
    is_float = isinstance(value, str) and FLOAT.fullmatch(value) and ("." in value or "e" in value)
    return float(value) if is_float else value
