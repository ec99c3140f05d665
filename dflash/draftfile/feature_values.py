"""How draft files keep hidden states: bfloat16 in two planes of bytes, or eight bits and scales."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dflash.draftfile.errors import OpenError

FeatureEncoding = Literal["bf16", "int8", "fp8"]
ENCODINGS: tuple[FeatureEncoding, ...] = get_args(FeatureEncoding)
GROUP = 128

Floats = npt.NDArray[np.float32]


class EncodingUnknown(OpenError):
    """Hidden states in an encoding that this version does not read."""

    def __init__(self, path: Path, found: object) -> None:
        super().__init__(
            f"{path}: expected hidden states encoded as {', '.join(ENCODINGS)}, found {found!r}; read them "
            "with the version of the toolkit that wrote them."
        )


def encoding_of(features: Mapping[str, Any], path: Path) -> FeatureEncoding:
    """The encoding that a header's `features` names.

    Raises:
        EncodingUnknown: None that this version reads.
    """
    for encoding in ENCODINGS:
        if features.get("encoding") == encoding:
            return encoding
    raise EncodingUnknown(path, features.get("encoding"))


def value_bytes(encoding: FeatureEncoding) -> int:
    """Bytes of one value, scales apart."""
    return 2 if encoding == "bf16" else 1


def groups_of(width: int) -> int:
    """Scales a token; the last group may be shorter than 128 values."""
    return -(-width // GROUP)


def decoded(values: bytes, scales: npt.ArrayLike | None, width: int, encoding: FeatureEncoding) -> Floats:
    """The hidden states of a row, float32 `[tokens, width]`.

    Args:
        values: its `feature_values`.
        scales: its `feature_scale`; of no meaning for `bf16`.
        width: numbers a token, taps x hidden.
        encoding: of the header.
    """
    codes = np.frombuffer(values, np.uint8)
    if encoding == "bf16":
        high, low = codes.reshape(2, -1).astype(np.uint32)
        return (high << 24 | low << 16).view(np.float32).reshape(-1, width)
    states = (codes.view(np.int8).astype(np.float32) if encoding == "int8" else _E4M3[codes]).reshape(
        -1, width
    )
    factors = np.asarray(scales, np.float32).reshape(-1, groups_of(width))
    return states * factors.repeat(GROUP, axis=1)[:, :width]


def _e4m3() -> Floats:
    """What each byte stands for: a sign, four bits of exponent, three of fraction; no infinities."""
    code = np.arange(256)
    power, fraction = code >> 3 & 15, code & 7
    small, normal = fraction / 8.0 * 2.0**-6, (1 + fraction / 8.0) * 2.0 ** (power - 7.0)
    size = np.where(power == 0, small, normal)
    size[code & 127 == 127] = np.nan
    return np.where(code & 128, -size, size).astype(np.float32)


_E4M3 = _e4m3()
