"""What a recording keeps of hidden states: a projection to 16 floats a token for drift audits, or all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.policy.philox import philox4x32

FINGERPRINT = 16
ENCODING = "bf16"
PROMPT_FEATURES = 3
# tokens of a prompt in one row
PROMPT_ROWS = 256
# a constant of the format, so that fingerprints of different runs compare
_KEY = (0xDF1A5401, 0x00000001)


def projection(width: int) -> NDArray[np.float32]:
    """Random signs over sqrt(width), shape [width, 16]; row t takes Philox counter (t, 0, 0, 0), one bit a
    column.
    """
    counter = np.zeros((width, 4), dtype=np.uint32)
    counter[:, 0] = np.arange(width)
    words = philox4x32(counter, np.array(_KEY, dtype=np.uint32))
    bits = (words[:, :1] >> np.arange(FINGERPRINT, dtype=np.uint32)) & 1
    signs = bits.astype(np.float32) * 2 - 1
    return (signs / np.sqrt(width)).astype(np.float32)


class Fingerprint:
    """Projects tapped hidden states; `taps` are Hugging Face `hidden_states` indices."""

    def __init__(self, taps: tuple[int, ...], hidden: int, device: torch.device) -> None:
        self.taps = taps
        self.matrix = torch.from_numpy(projection(len(taps) * hidden)).to(device)

    def of(self, states: torch.Tensor) -> NDArray[np.float32]:
        """Flat [tokens x 16] from `states` [tokens, taps x hidden]."""
        return (states.float() @ self.matrix).flatten().cpu().numpy()


class FeatureMode(StrEnum):
    """How much of the hidden states is kept."""

    NONE = "none"
    FINGERPRINT = "fingerprint"
    ALL = "all"


class Features:
    """The feature columns of rows, from the taps of the tokens committed in them."""

    def __init__(self, mode: FeatureMode, fingerprint: Fingerprint) -> None:
        self.mode = mode
        self.fingerprint = fingerprint

    def of(self, states: torch.Tensor) -> dict[str, Any]:
        """Columns of a row, from `states` [tokens, taps x hidden]."""
        columns: dict[str, Any] = {"feature_fingerprint": self.fingerprint.of(states)}
        if self.mode == FeatureMode.ALL:
            columns["feature_values"] = planes(states)
        return columns

    def prompt_rows(self, prompt: Sequence[int], states: torch.Tensor) -> Iterator[dict[str, Any]]:
        """Rows of the tokens before a prompt's last one, which the prefill row has, if all is kept."""
        if self.mode != FeatureMode.ALL or len(prompt) < 2:
            return
        # two copies from the device, however long the prompt
        before = states[: len(prompt) - 1]
        prints, words = self.fingerprint.of(before).reshape(-1, FINGERPRINT), _words(before)
        for start in range(0, len(words), PROMPT_ROWS):
            end = min(start + PROMPT_ROWS, len(words))
            yield {
                "kind": PROMPT_FEATURES,
                "round": -1,
                "anchor_position": end - 1,
                "anchor_token": prompt[end - 1],
                "feature_fingerprint": prints[start:end].ravel(),
                "feature_values": _planes(words[start:end]),
            }


def planes(states: torch.Tensor) -> bytes:
    """bfloat16 values of `states`, all high bytes before all low bytes."""
    return _planes(_words(states))


def _words(states: torch.Tensor) -> NDArray[np.uint16]:
    """bfloat16 values as the bits that they are."""
    words = states.detach().to(torch.bfloat16).cpu().contiguous().view(torch.int16)
    return words.numpy().view(np.uint16)


def _planes(words: NDArray[np.uint16]) -> bytes:
    return (words >> 8).astype(np.uint8).tobytes() + words.astype(np.uint8).tobytes()


def bytes_a_token(mode: FeatureMode, taps: int, hidden: int) -> int:
    """What features take before compression."""
    whole = 2 * taps * hidden if mode == FeatureMode.ALL else 0
    return 4 * FINGERPRINT + whole


def default_taps(layers: int) -> tuple[int, ...]:
    """The inputs of layers 1, L/2 and L-1, for drafters that tap nothing themselves."""
    return tuple(sorted({1, layers // 2, layers - 1} & set(range(layers)))) or (0,)
