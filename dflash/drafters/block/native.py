"""The native step of a block drafter: the blocks at the ends of all lanes' contexts, on fused kernels."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dflash.drafters.block.config import BlockConfig
from dflash.drafters.block.model import BlockDrafter
from dflash.kernels.attention_checks import HEAD_SIZES, MAX_GROUP
from dflash.kernels.block_attention import block_attention
from dflash.kernels.embed_rows import embed_rows
from dflash.kernels.lm_head_topk import HeadScores, lm_head_topk
from dflash.kernels.qkv_rope import Rotary, qkv_rope
from dflash.kernels.row_norm import Norm, carried_norm
from dflash.kernels.row_product import row_product
from dflash.kernels.tree_attention import tree_attention
from dflash.target.errors import NativeUnsupported
from dflash.target.layer_weights import Sizes, layer_weights, rotary_table
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
from dflash.target.native_support import rope_misfits
from dflash.target.step_graphs import StepGraphs
from dflash.target.step_inputs import LaneRow, StepInputs


class BlockOutput(NamedTuple):
    """What a step leaves; the next one overwrites it."""

    hidden: Tensor | None
    """`[lanes, block, hidden]` after the final norm; None where only the best tokens are wanted."""
    logits: Tensor | None
    """`[lanes, block, draft vocabulary]`, where the head is part of the step."""
    best: HeadScores | None
    """The best tokens of all rows `[lanes x block, …]`, where they are."""


class Place(NamedTuple):
    """Where a block hangs: an anchor at the end of a lane's context."""

    lane: int
    token: int
    position: int


def check_native_block(name: str, model: BlockDrafter) -> None:
    """Refuse a drafter that the native step cannot compute.

    Raises:
        NativeUnsupported: lists every reason.
    """
    reasons = [*_misfits(model.config), *_module_misfits(model)]
    if reasons:
        raise NativeUnsupported(name, reasons)


def _misfits(config: BlockConfig) -> Iterator[str]:
    if config.convolution is not None:
        yield "its sublayers have convolutions (DFlash 2)"
    if any(mask.window is not None for mask in config.layers):
        yield "it has layers with a window"
    if config.head_dim not in HEAD_SIZES:
        yield f"its heads have {config.head_dim} numbers, not one of {', '.join(map(str, HEAD_SIZES))}"
    if config.heads // config.kv_heads > MAX_GROUP:
        yield f"a KV head serves {config.heads // config.kv_heads} heads, more than {MAX_GROUP}"
    for what in ("hidden_size", "intermediate_size"):
        if getattr(config, what) % 16:
            yield f"its {what} {getattr(config, what)} is no multiple of 16"
    yield from rope_misfits(config.rope)


def _module_misfits(model: BlockDrafter) -> Iterator[str]:
    if len({parameter.dtype for parameter in model.layers.parameters()}) > 1:
        yield "its layers have several dtypes"
    linear = [module for module in model.layers.modules() if isinstance(module, nn.Linear)]
    if any(type(module.weight.data) is not Tensor for module in linear):
        yield "its weights are quantised"


class BlockStep:
    """A `BlockDrafter` on the native kernels; its modules keep views of the packed weights.

    Attributes:
        head: whether the output head is part of the step.
        top: how many of the best tokens of each row are part of it, without logits; 0 for none.
    """

    def __init__(
        self, name: str, model: BlockDrafter, *, head: bool = False, top: int = 0, way: Way | None = None
    ) -> None:
        """Pack the weights.

        Raises:
            NativeUnsupported: lists everything that does not fit.
        """
        check_native_block(name, model)
        self.model = model
        self.config = config = model.config
        self.head = head
        self.top = top
        self.way = way or Way()
        self.layers = [layer_weights(layer, config.norm_eps) for layer in model.layers]
        self.sizes = Sizes(
            config.hidden_size, config.intermediate_size, config.heads, config.kv_heads, config.head_dim,
            config.norm_eps,
        )  # fmt: skip
        self._queries = config.heads * config.head_dim
        self.rotary = Rotary(*torch.empty(2, 0, config.head_dim // 2))
        self.graphs = StepGraphs(self)

    def beside(self) -> BlockStep:
        """A step on the same packed weights, with graphs of its own."""
        found = copy.copy(self)
        found.graphs = StepGraphs(found)
        return found

    def blocks(self, places: Sequence[Place], cache: Sequence[KeyValue]) -> BlockOutput:
        """Compute one block a lane.

        Args:
            places: anchors, each where its lane's context ends.
            cache: one a layer, for all lanes, with room for a block behind each context. The rows there
                are written.
        """
        width = self.config.block_size
        return self.graphs.run(cache, width, width, lambda inputs: self._fill(inputs, places))

    @torch.inference_mode()
    def append(self, lane: int, taps: Tensor, start: int, cache: Sequence[KeyValue]) -> None:
        """Project taps `[m, taps x target hidden]` into every layer's rows start, start + 1, … of a lane."""
        self.reserve(cache[0].keys.shape[2])
        positions = torch.arange(start, start + len(taps), dtype=torch.int32, device=taps.device)
        places = torch.stack([torch.full_like(positions, lane), positions], 1)
        self.project(taps, positions, places, cache)

    def project(self, taps: Tensor, positions: Tensor, places: Tensor, cache: Sequence[KeyValue]) -> None:
        """Write every layer's keys and values of committed tokens, one launch a layer after one for all.

        Args:
            taps: `[m, taps x target hidden]`.
            positions: int32 `[m]`.
            places: int32 `[m, 2]`: lane and cache row; lane -1 stores nothing.
            cache: one a layer, for all lanes.
        """
        rows, norm = self._context(taps.to(self.model.fc.weight.dtype))
        for layer, store in zip(self.layers, cache, strict=True):
            qkv_rope(
                rows, layer.qkv[self._queries :], norm, self.rotary, positions, places, *store,
                eps=self.sizes.eps, head_norms=layer.head_norms,
                bias=None if layer.qkv_bias is None else layer.qkv_bias[self._queries :],
                **self.way._asdict(),
            )  # fmt: skip

    def _context(self, taps: Tensor) -> tuple[Tensor, Norm]:
        """Fused context rows of taps, and the norm that is still to be applied; None if it is applied."""
        weight, gain = self.model.fc.weight.data, self.model.hidden_norm.weight.data
        if type(weight) is not Tensor or weight.dtype != gain.dtype:
            return self.model.context(taps), None
        carried = carried_norm(gain, len(taps), taps.shape[1], self.way.mode)
        return row_product(taps, weight, carry=carried, **self.way._asdict()), carried

    def empty_rows(self) -> list[KeyValue]:
        """No rows of each layer, `[1, KV heads, 0, head]`, to make a cache like."""
        shape = (1, self.sizes.kv_heads, 0, self.sizes.head)
        return [KeyValue(*layer.norm.new_empty(2, *shape)) for layer in self.layers]

    def reserve(self, positions: int) -> None:
        """Hold rotary positions below this; replaces the table that captured graphs read."""
        if len(self.rotary.cos) < positions:
            device = self.layers[0].norm.device
            self.rotary = rotary_table(self.model.rotary, positions, device)

    def space(self, lanes: int, width: int, tail: int, cache: Sequence[KeyValue]) -> StepSpace:
        """Allocate the buffers of blocks of `lanes` lanes."""
        like = self.layers[0].norm
        inputs = StepInputs.make(lanes, width, like.device)
        work = Workspace.make(self.sizes, self.layers[0], lanes * width, self.way)
        hidden = like.new_empty(lanes * width, self.sizes.hidden)
        attention = work.attention_scratch(self.sizes, cache[0], inputs, tail, self.way)
        return StepSpace(inputs, tail, hidden, work, attention)

    @torch.inference_mode()
    def run(self, space: StepSpace, cache: Sequence[KeyValue], *, head: bool | None = None) -> BlockOutput:
        """Compute the blocks that the space's inputs hold; nothing here waits for the device.

        Args:
            space: of the inputs.
            cache: one a layer, for all lanes.
            head: whether the output head is part of it; None as the step was made.
        """
        head = self.head if head is None else head
        inputs, lanes = space.inputs, len(space.inputs.lengths)
        norm = self._embed(space)
        rows = Rows(space.hidden, inputs.positions, inputs.places, self.rotary)
        gain = self.model.norm.weight.data
        last = run_layers(
            self.layers, self.sizes, rows, norm, cache, self._attend(space), space.work, self.way,
            final=gain if self.top or head else None,
        )  # fmt: skip
        best = self._best(last) if self.top else None
        if best is not None and not head:
            return BlockOutput(None, None, best)
        hidden = final_norm(last.hidden, gain, self.sizes.eps).view(lanes, -1, last.hidden.shape[1])
        return BlockOutput(hidden, self._logits(last, hidden) if head else None, best)

    def _logits(self, last: LayersOutput, hidden: Tensor) -> Tensor:
        """Logits `[lanes, block, draft vocabulary]` of all rows."""
        weight = self.model.plain_head()
        if weight is None or weight.dtype != last.hidden.dtype:
            return self.model.logits(hidden)
        given = {"norm": last.norm, "eps": self.sizes.eps, **self.way._asdict()}
        logits = row_product(last.hidden, weight, **given)
        return self.model.capped(logits.view(*hidden.shape[:2], -1))

    def _embed(self, space: StepSpace) -> Norm:
        """Fill the space's rows with embeddings; their norm, carried where one launch can make both."""
        tokens, table, gain = space.inputs.tokens, self.model.embedding_table, self.layers[0].norm
        if self.model.mask_embedding is not None or table.dtype != gain.dtype:
            blocks = tokens.view(len(space.inputs.lengths), -1)
            space.hidden.copy_(self.model.embedded_rows(blocks).flatten(0, 1))
            return gain
        norm = space.work.first_norm._replace(gain=gain)
        given = {"scale": self.config.embedding_scale, "impl": self.way.impl, "pdl": self.way.pdl}
        embed_rows(tokens, table, space.hidden, norm, **given)
        return norm

    def _best(self, last: LayersOutput) -> HeadScores:
        """The best tokens; ids are those of the draft vocabulary, and logits come before any soft cap."""
        given = {"norm": last.norm, "eps": self.sizes.eps, "scale": self.config.logit_scale}
        weight = self.model.plain_head()
        if weight is None:
            raise RuntimeError("this drafter's head is no plain matrix: ask for logits")
        return lm_head_topk(last.hidden, weight, self.top, **given, **self.way._asdict())

    def _fill(self, inputs: StepInputs, places: Sequence[Place]) -> None:
        learned = self.model.mask_embedding is not None
        for lane, token, position in places:
            # a learned mask takes the place of any token's embedding, and its id may be in no table
            tokens = [token] + [token if learned else self.config.mask_token] * (self.config.block_size - 1)
            rows = [
                LaneRow(each, position + row, position + row, (2 << row) - 1)
                for row, each in enumerate(tokens)
            ]
            inputs.set_lane(lane, position, rows)

    def _attend(self, space: StepSpace) -> Any:
        inputs, lanes, sizes = space.inputs, len(space.inputs.lengths), self.sizes

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> Tensor:
            given = sizes.by_lane(queries, lanes), keys, values, inputs.lengths
            shared = {"out": sizes.by_lane(out, lanes), "scratch": space.attention, **self.way._asdict()}
            if self.config.layers[layer].causal:
                tree_attention(*given, inputs.words, space.tail, **shared)
            else:
                block_attention(*given, **shared)
            return out

        return attend
