"""The native step of Llama- and Qwen3-type targets: rows of drafted trees scored by fused kernels.

At most six launches a layer: Q/K/V, attention in one or two, O, gate/up, down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dflash.kernels.embed_rows import embed_rows
from dflash.kernels.lm_head_topk import HeadScores, lm_head_topk
from dflash.kernels.qkv_rope import Rotary
from dflash.kernels.row_product import row_product
from dflash.kernels.tree_attention import tree_attention
from dflash.target.layer_weights import LayerWeights, Sizes, layer_weights, rotary_table
from dflash.target.native_layers import (
    KeyValue,
    LayersOutput,
    Rows,
    StepSpace,
    Way,
    Workspace,
    final_norm,
    run_layers,
)
from dflash.target.native_support import check_native
from dflash.target.step_inputs import StepInputs


class StepOutput(NamedTuple):
    """What a step leaves; the next step of the same space overwrites it."""

    logits: Tensor | None
    """`[rows, vocabulary]`, of all rows or of those that are wanted; None where the best tokens were asked
    for."""
    best: HeadScores | None
    taps: Tensor | None
    """`[rows, taps x hidden]`."""


class LlamaStep:
    """A transformers model on the native kernels.

    Its weights are packed once; the model's modules keep views of them, so that it computes as before.

    Attributes:
        taps: transformers' `hidden_states` indices that a step keeps.
        top: how many of the best tokens are wanted instead of all logits; 0 for logits.
    """

    def __init__(
        self, name: str, model: Any, taps: Sequence[int] = (), *, top: int = 0, way: Way | None = None
    ) -> None:
        """Pack the weights.

        Raises:
            NativeUnsupported: lists everything that does not fit.
        """
        check_native(name, model)
        text = model.config.get_text_config()
        body = model.model
        eps = float(text.rms_norm_eps)
        self.way = way or Way()
        self.taps = tuple(taps)
        self.top = top
        self.layers = [layer_weights(layer, eps) for layer in body.layers]
        self.sizes = _sizes(text, self.layers[0], eps)
        self.embedding: Tensor = model.get_input_embeddings().weight.data
        self.norm: Tensor = body.norm.weight.data
        self.head: Tensor = model.get_output_embeddings().weight.data
        self._rotary_module = body.rotary_emb
        self.rotary = Rotary(*torch.empty(2, 0, self.sizes.head // 2))

    def reserve(self, positions: int) -> None:
        """Hold rotary positions below this; replaces the table that captured graphs read."""
        if len(self.rotary.cos) < positions:
            self.rotary = rotary_table(self._rotary_module, positions, self.embedding.device)

    def space(
        self, lanes: int, width: int, tail: int, cache: Sequence[KeyValue], pages: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> StepSpace:  # fmt: skip
        """Allocate the buffers of steps of one size.

        Args:
            lanes, width: rows of all lanes, padding included, are computed.
            tail: rows after the trunks that words may speak of, at most 64.
            cache: one a layer, for all lanes.
            pages: int32 `[lanes, 1]`, which of the cache's lanes each lane is; None for the same.
            wanted: int64, the rows whose logits are wanted, read when a step runs; None for all.
        """
        rows, like = lanes * width, self.embedding
        inputs = StepInputs.make(lanes, width, like.device)
        work = Workspace.make(self.sizes, self.layers[0], rows, self.way)
        taps = like.new_empty(rows, len(self.taps) * self.sizes.hidden) if self.taps else None
        wide = -(-len(self.head) // 16) * 16
        scored = rows if wanted is None else len(wanted)
        logits = None if self.top else like.new_empty(scored, wide)[:, : len(self.head)]
        hidden = like.new_empty(rows, self.sizes.hidden)
        attention = work.attention_scratch(self.sizes, cache[0], inputs, tail, self.way, pages)
        return StepSpace(inputs, tail, hidden, work, attention, taps, logits, pages, wanted)

    @torch.inference_mode()
    def run(self, space: StepSpace, cache: Sequence[KeyValue]) -> StepOutput:
        """Score the rows that the space's inputs hold, and write their K/V into the cache.

        Nothing here waits for the device: a CUDA graph can hold it.
        """
        inputs, hidden = space.inputs, space.hidden
        kept = self._kept(space)
        norm = space.work.first_norm._replace(gain=self.layers[0].norm)
        embed_rows(inputs.tokens, self.embedding, hidden, norm, impl=self.way.impl, pdl=self.way.pdl)
        if 0 in kept:
            kept[0].copy_(hidden)
        rows = Rows(hidden, inputs.positions, inputs.places, self.rotary)
        last = run_layers(
            self.layers, self.sizes, rows, norm, cache, self._attend(space), space.work, self.way, kept,
            self.norm,
        )  # fmt: skip
        end = len(self.layers)
        if end in kept:
            kept[end].copy_(final_norm(last.hidden, self.norm, self.sizes.eps))
        return StepOutput(*self._scored(space, last), space.taps)

    def _scored(self, space: StepSpace, last: LayersOutput) -> tuple[Tensor | None, HeadScores | None]:
        """Logits of the rows, all or those that are wanted, or their best tokens without them."""
        shared = {"norm": last.norm, "eps": self.sizes.eps, **self.way._asdict()}
        if self.top:
            return None, lm_head_topk(last.hidden, self.head, self.top, **shared)
        if space.wanted is not None:
            rows = final_norm(last.hidden.index_select(0, space.wanted), self.norm, self.sizes.eps)
            return row_product(rows, self.head, out=space.logits, **self.way._asdict()), None
        return row_product(last.hidden, self.head, out=space.logits, **shared), None

    def _kept(self, space: StepSpace) -> dict[int, Tensor]:
        if space.taps is None:
            return {}
        columns = space.taps.split(self.sizes.hidden, dim=1)
        return dict(zip(self.taps, columns, strict=True))

    def _attend(self, space: StepSpace) -> Any:
        inputs, lanes = space.inputs, len(space.inputs.lengths)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> Tensor:
            tree_attention(
                self.sizes.by_lane(queries, lanes), keys, values, inputs.lengths, inputs.words, space.tail,
                pages=space.pages, out=self.sizes.by_lane(out, lanes), scratch=space.attention,
                **self.way._asdict(),
            )  # fmt: skip
            return out

        return attend


def _sizes(text: Any, layer: LayerWeights, eps: float) -> Sizes:
    heads = int(text.num_attention_heads)
    head = layer.out.shape[1] // heads
    return Sizes(layer.out.shape[0], layer.down.shape[1], heads, int(text.num_key_value_heads), head, eps)
