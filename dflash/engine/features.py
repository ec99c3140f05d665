"""What a recording keeps of hidden states: a projection to 16 floats a token for drift audits, or all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

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

    def of(self, states: torch.Tensor) -> torch.Tensor:
        """`[tokens, 16]` from `states` [tokens, taps x hidden]."""
        return states.float() @ self.matrix


class PromptFeatures(NamedTuple):
    """Columns of the row of a prompt's last token, and rows of the tokens before it."""

    columns: dict[str, Any]
    rows: Iterator[dict[str, Any]]


class SentLines(NamedTuple):
    """Groups of tensors on their way to the host, in one copy.

    Attributes:
        groups: where each of them arrives.
        arrived: after the copy; None where there was nothing to wait for.
    """

    groups: list[list[torch.Tensor]]
    arrived: torch.cuda.Event | None

    @classmethod
    def of(cls, groups: Sequence[Sequence[torch.Tensor]]) -> SentLines:
        """Send groups of tensors, behind what computes them."""
        # those of larger numbers first, so that each starts where its numbers may
        every = sorted(chain.from_iterable(groups), key=lambda tensor: -tensor.itemsize)
        host = torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in every])
        arrived = None
        if host.is_cuda:
            whole, host = host, torch.empty(host.shape, dtype=torch.uint8, pin_memory=True)
            host.copy_(whole, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        parts = zip(every, host.split([tensor.nbytes for tensor in every]), strict=True)
        goals = {id(tensor): part.view(tensor.dtype).view(tensor.shape) for tensor, part in parts}
        return cls([[goals[id(tensor)] for tensor in group] for group in groups], arrived)

    def lines(self) -> list[list[NDArray[Any]]]:
        """Wait for them; the groups."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return [[tensor.numpy() for tensor in group] for group in self.groups]


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
        return self._columns(self.sent([states]).lines()[0])

    def prompt(self, tokens: Sequence[int], states: torch.Tensor) -> PromptFeatures:
        """What is kept of a prompt, from `states` [tokens, taps x hidden]."""
        last = states if self.whole is not None else states[-1:]
        return self.prompt_of(tokens, self.sent([last]).lines()[0])

    def sent(self, prompts: Sequence[torch.Tensor]) -> SentLines:
        """Encode the states of some tokens each, and send what is kept of them to the host."""
        return SentLines.of([self._encoded(states) for states in prompts])

    def prompt_of(self, tokens: Sequence[int], lines: Sequence[NDArray[Any]]) -> PromptFeatures:
        """What is kept of a prompt, the lines of whose tokens have arrived, or of its last one alone."""
        return PromptFeatures(self._columns([kept[-1:] for kept in lines]), self._prompt_rows(tokens, lines))

    def _prompt_rows(self, prompt: Sequence[int], lines: Sequence[NDArray[Any]]) -> Iterator[dict[str, Any]]:
        """Rows of the tokens before a prompt's last one, if all is kept."""
        if self.whole is None or len(prompt) < 2:
            return
        for start in range(0, len(prompt) - 1, PROMPT_ROWS):
            end = min(start + PROMPT_ROWS, len(prompt) - 1)
            yield {
                "kind": PROMPT_FEATURES,
                "round": -1,
                "anchor_position": end - 1,
                "anchor_token": prompt[end - 1],
                **self._columns([kept[start:end] for kept in lines]),
            }

    def _encoded(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Fingerprints of tokens, the bytes of their values, and scales, as far as they are kept."""
        found: list[torch.Tensor | None] = [self.fingerprint.of(states)]
        if self.whole is not None:
            values, scales = encode_features(states.detach(), self.whole)
            found += values.view(torch.uint8), scales
        return [lines for lines in found if lines is not None]

    def _columns(self, kept: Sequence[NDArray[Any]]) -> dict[str, Any]:
        """What `_encoded` found, as columns of one row."""
        prints, *packed = kept
        columns: dict[str, Any] = {"feature_fingerprint": prints.ravel()}
        if packed:
            values = packed[0]
            if self.whole == "bf16":
                values = planes(values, np.array([len(values)]))
            # where they arrived, which stays theirs as long as somebody holds it
            columns["feature_values"] = np.ascontiguousarray(values).reshape(-1).data
        if len(packed) > 1:
            columns["feature_scale"] = packed[1].ravel()
        return columns


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
