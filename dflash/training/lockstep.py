"""Many streams go forward in lock-step, a token a step: one cache, one position, one CUDA graph for each
range of lengths.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import sdpa_mask

from dflash.target.model import attending, cache_keyword

ATTENTION = "dflash_grouped"
BUCKET = 128


class Step(NamedTuple):
    """What one step computed of every stream.

    Attributes:
        logits: `[streams, vocabulary]`.
        taps: `[streams, taps x hidden]`.
        last: `[streams, hidden]`, what the output head reads.
    """

    logits: Tensor
    taps: Tensor
    last: Tensor


class _LockstepCache(Cache):
    """Keys and values `[streams, KV heads, capacity, head]` a layer; `position` is written, rows below
    `extent` are seen.
    """

    def __init__(self, capacity: int, position: Tensor) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.position = position
        self.extent = capacity
        self.rows: dict[tuple[int, str], Tensor] = {}

    def update(  # type: ignore[override]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the newest row, return the rows that may be seen."""
        return self._write(key_states, layer_idx, "key"), self._write(value_states, layer_idx, "value")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Callers pass positions."""
        return 0

    def _write(self, states: Tensor, layer: int, what: str) -> Tensor:
        if (layer, what) not in self.rows:
            streams, heads, _, width = states.shape
            self.rows[layer, what] = states.new_zeros(streams, heads, self.capacity, width)
        stored = self.rows[layer, what]
        stored.index_copy_(2, self.position, states)
        return stored[:, :, : self.extent]


class Lockstep:
    """A transformers model that reads one token a stream and step; equal positions in all streams.

    On CUDA the forward of every 128 positions is captured once and replayed.
    """

    def __init__(self, model: Any, streams: int, capacity: int, taps: tuple[int, ...]) -> None:
        self.model = model
        self.taps = taps
        self.device = next(model.parameters()).device
        self.capacity = capacity
        self.tokens = torch.zeros(streams, dtype=torch.long, device=self.device)
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.cache = _LockstepCache(capacity, self.position)
        self._keyword = cache_keyword(model)
        config = model.config.get_text_config()
        self._window = getattr(config, "sliding_window", None)
        self._layer_types = sorted(set(getattr(config, "layer_types", None) or ()))

    def extent(self, position: int) -> int:
        """Rows that the step at a position looks at: the end of its range of 128."""
        return min(self.capacity, (position // BUCKET + 1) * BUCKET)

    @torch.inference_mode()
    def forward(self, extent: int) -> Step:
        """Read `tokens` at `position`, below `extent`."""
        self.cache.extent = extent
        with attending(self.model, ATTENTION):
            output = self.model(
                input_ids=self.tokens[:, None],
                position_ids=self.position.expand(len(self.tokens), 1),
                attention_mask=self._masks(extent),
                use_cache=True,
                output_hidden_states=True,
                **{self._keyword: self.cache},
            )
        taps = torch.cat([output.hidden_states[tap][:, 0] for tap in self.taps], dim=-1)
        return Step(output.logits[:, 0], taps, output.hidden_states[-1][:, 0])

    def _masks(self, extent: int) -> Tensor | dict[str, Tensor]:
        distance = self.position - torch.arange(extent, device=self.device)
        seen = (distance >= 0)[None, None, None]

        def mask(window: int | None) -> Tensor:
            near = seen if window is None else seen & (distance < window)
            return near.expand(len(self.tokens), 1, 1, extent)

        if not self._layer_types:
            return mask(self._window)
        return {
            kind: mask(self._window if kind == "sliding_attention" else None) for kind in self._layer_types
        }


def _grouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **arguments: Any
) -> tuple[Tensor, None]:
    """One query a stream `[streams, heads, 1, head]`: the heads of a KV head become its queries, so that keys
    and values are read once and never repeated.
    """
    streams, _, _, width = query.shape
    packed = query.reshape(streams, key.shape[1], -1, width)
    mask = attention_mask.expand(-1, -1, packed.shape[2], -1)
    seen = functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=mask, scale=arguments.get("scaling")
    )
    return seen.reshape(streams, 1, -1, width), None


AttentionInterface.register(ATTENTION, _grouped)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
