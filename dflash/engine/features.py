"""What a recording keeps of hidden states: a projection to 16 floats a token for drift audits, or all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.draftfile.feature_values import groups_of, value_bytes
from dflash.engine.recorder.feature_columns import planes
from dflash.kernels.feature_codes import Encoding, encode_features
from dflash.policy.philox import philox4x32

FINGERPRINT = 16
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
    """The feature columns of rows, from the taps of the tokens committed in them.

    Attributes:
        whole: How hidden states themselves are kept; None if they are not.
    """

    def __init__(self, mode: FeatureMode, fingerprint: Fingerprint, encoding: Encoding = "bf16") -> None:
        self.whole: Encoding | None = encoding if mode == FeatureMode.ALL else None
        self.fingerprint = fingerprint

    def of(self, states: torch.Tensor) -> dict[str, Any]:
        """Columns of a row, from `states` [tokens, taps x hidden]."""
        prints = {"feature_fingerprint": self.fingerprint.of(states)}
        return prints if self.whole is None else prints | _columns(_encoded(states, self.whole), self.whole)

    def prompt_rows(self, prompt: Sequence[int], states: torch.Tensor) -> Iterator[dict[str, Any]]:
        """Rows of the tokens before a prompt's last one, which the prefill row has, if all is kept."""
        if self.whole is None or len(prompt) < 2:
            return
        # few copies from the device, however long the prompt
        before = states[: len(prompt) - 1]
        prints, packed = self.fingerprint.of(before).reshape(-1, FINGERPRINT), _encoded(before, self.whole)
        for start in range(0, len(before), PROMPT_ROWS):
            part = slice(start, min(start + PROMPT_ROWS, len(before)))
            yield {
                "kind": PROMPT_FEATURES,
                "round": -1,
                "anchor_position": part.stop - 1,
                "anchor_token": prompt[part.stop - 1],
                "feature_fingerprint": prints[part].ravel(),
                **_columns([array[part] for array in packed], self.whole),
            }


def _encoded(states: torch.Tensor, encoding: Encoding) -> list[NDArray[Any]]:
    """Bytes `[tokens, bytes]` of values, and their scales where there are any, on the host."""
    values, scales = encode_features(states.detach(), encoding)
    found = [values.contiguous().view(torch.uint8).cpu().numpy()]
    return found if scales is None else [*found, scales.cpu().numpy()]


def _columns(packed: Sequence[NDArray[Any]], encoding: Encoding) -> dict[str, Any]:
    """The columns of one row, from what `_encoded` gives of its tokens."""
    values, *scales = packed
    if encoding == "bf16":
        values = planes(values, np.array([len(values)]))
    columns: dict[str, Any] = {"feature_values": values.tobytes()}
    return columns | {"feature_scale": scales[0].ravel()} if scales else columns


def bytes_a_token(mode: FeatureMode, taps: int, hidden: int, encoding: Encoding = "bf16") -> int:
    """What features take before compression."""
    if mode != FeatureMode.ALL:
        return 4 * FINGERPRINT
    width = taps * hidden
    scales = 0 if encoding == "bf16" else 4 * groups_of(width)
    return 4 * FINGERPRINT + value_bytes(encoding) * width + scales


def default_taps(layers: int) -> tuple[int, ...]:
    """The inputs of layers 1, L/2 and L-1, for drafters that tap nothing themselves."""
    return tuple(sorted({1, layers // 2, layers - 1} & set(range(layers)))) or (0,)
