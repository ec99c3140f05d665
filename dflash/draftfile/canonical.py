"""Canonical JSON (RFC 8785) in which floats, and integers over 2^53, are strings."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

EXACT_INTEGERS = 2**53


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces, numbers that every reader parses alike.

    Floats become strings by their shortest round-trip form (`0.8`, `1e-05`), and so do integers
    beyond 2^53. What remains is what RFC 8785 writes for the same value.

    Raises:
        ValueError: NaN, an infinity, a lone surrogate, or a key that is not a string.
        TypeError: A value that JSON does not have.
    """
    text = json.dumps(portable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode("utf-8")
    return text


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical text, in hex; raises as `canonical_json` does."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def portable(value: Any) -> Any:
    """The value with floats and big integers as strings and keys in RFC 8785 order."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= EXACT_INTEGERS else str(int(value))
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Mapping):
        return _portable_mapping(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [portable(item) for item in value]
    raise TypeError(f"expected a JSON value, found {type(value).__name__}")


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {value}")
    return repr(float(value))


def _portable_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"expected string keys, found {key!r}")
    return {key: portable(value[key]) for key in sorted(value, key=_utf16)}


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")
