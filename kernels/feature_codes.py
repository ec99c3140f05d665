"""How features are encoded: bfloat16, or eight bits with a scale for 128 values; the specification."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Encoding = Literal["bf16", "int8", "fp8"]
GROUP = 128
CODES: dict[Encoding, torch.dtype] = {
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
LARGEST = {"int8": 127.0, "fp8": 448.0}
# below this the largest value of a group counts as this, so that no reciprocal overflows
LEAST = 2.0**-100


def groups_of(width: int) -> int:
    """Scales a token; the last group may be shorter than 128 values."""
    return -(-width // GROUP)


def encode_features(states: Tensor, encoding: Encoding) -> tuple[Tensor, Tensor | None]:
    """Encode hidden states; a group that holds what is not finite gets the scale NaN and zeros.

    Args:
        states: `[tokens, width]`, any float.
        encoding: `bf16` rounds; `int8` and `fp8` (e4m3) divide each 128 values of a token by a float32 scale,
            so that the largest becomes 127 or 448, and round to nearest, ties to even.

    Returns:
        Values `[tokens, width]` and scales float32 `[tokens, ceil(width / 128)]`, None for `bf16`, in the
        order in which draft files keep them.
    """
    if encoding == "bf16":
        return states.to(torch.bfloat16), None
    width = states.shape[1]
    groups = F.pad(states.float(), (0, -width % GROUP)).unflatten(1, (-1, GROUP))
    peak = groups.abs().amax(-1, keepdim=True)
    finite = peak < torch.inf
    held = peak.clamp_min(LEAST)
    # a tensor, because torch multiplies by the reciprocal of a number
    largest = torch.full_like(held, LARGEST[encoding])
    scaled = torch.where(finite, groups * (largest / held), 0.0)
    values = scaled.round().to(torch.int8) if encoding == "int8" else scaled.to(torch.float8_e4m3fn)
    scales = torch.where(finite, held / largest, torch.nan)
    return values.flatten(1)[:, :width], scales[..., 0]


def decode_features(values: Tensor, scales: Tensor | None) -> Tensor:
    """The float32 states that codes stand for, `[tokens, width]`."""
    if scales is None:
        return values.float()
    return values.float() * scales.repeat_interleave(GROUP, 1)[:, : values.shape[1]]
