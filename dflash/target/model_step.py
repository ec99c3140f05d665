"""A step of any transformers model that attends to all of its past: in a fixed size, for a CUDA graph.

The model's own modules compute everything but the attention, which is the tree kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache

from dflash.kernels.attention_checks import HEAD_SIZES, MAX_GROUP
from dflash.kernels.attention_scratch import Scratch
from dflash.kernels.store_rows import store_rows
from dflash.kernels.tree_attention import attention_scratch, tree_attention
from dflash.target.llama_step import StepOutput
from dflash.target.model import attending, cache_keyword
from dflash.target.native_layers import KeyValue, Way
from dflash.target.step_inputs import StepInputs

ATTENTION = "dflash_tree"


class ModelSizes(NamedTuple):
    """What a cache of the model's keys and values must know."""

    hidden: int
    heads: int
    kv_heads: int
    head: int


@dataclass(frozen=True, slots=True)
class ModelSpace:
    """Buffers of steps of a number of lanes of a width, which see `tail` rows after their trunks."""

    inputs: StepInputs
    tail: int
    hidden: Tensor
    attention: Scratch | None
    pages: Tensor | None
    wanted: Tensor | None


class TreeCall(NamedTuple):
    """What the attention of one forward needs beside queries, keys and values."""

    space: ModelSpace
    way: Way


def step_misfits(model: Any) -> list[str]:
    """Everything about a model that the tree kernel cannot attend for."""
    text, found = model.config.get_text_config(), []
    windows = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if windows or (getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)):
        found.append(f"it has {', '.join(sorted(windows)) or 'sliding_attention'} layers")
    sizes = _sizes(text)
    if sizes.head not in HEAD_SIZES:
        found.append(f"its heads have {sizes.head} numbers, not one of {', '.join(map(str, HEAD_SIZES))}")
    if sizes.heads // sizes.kv_heads > MAX_GROUP:
        found.append(f"a KV head serves {sizes.heads // sizes.kv_heads} heads, more than {MAX_GROUP}")
    if getattr(text, "attn_logit_softcapping", None):
        found.append("its attention is soft-capped")
    if model.dtype not in (torch.float16, torch.bfloat16):
        found.append(f"it computes in {str(model.dtype).removeprefix('torch.')}, not in 16 bits")
    return found


class ModelStep:
    """A transformers model behind the interface of `LlamaStep`.

    Attributes:
        taps: transformers' `hidden_states` indices that a step keeps.
    """

    rotary = None

    def __init__(self, model: Any, taps: Sequence[int] = (), way: Way | None = None) -> None:
        self.model, self.taps, self.way = model, tuple(taps), way or Way()
        text = model.config.get_text_config()
        self.sizes = _sizes(text)
        self.layers = range(int(text.num_hidden_layers))
        self.embedding: Tensor = model.get_input_embeddings().weight.data
        self._keyword = cache_keyword(model)

    def reserve(self, positions: int) -> None:
        """Nothing: the model turns positions itself."""

    def space(
        self, lanes: int, width: int, tail: int, cache: Sequence[KeyValue], pages: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> ModelSpace:  # fmt: skip
        """Allocate the buffers of steps of one size; see `LlamaStep.space`."""
        like, sizes = self.embedding, self.sizes
        inputs = StepInputs.make(lanes, width, like.device)
        attention = None
        if self.way.impl == "triton":
            queries = like.new_empty(lanes, width, sizes.heads, sizes.head)
            given = (queries, *cache[0], inputs.lengths, inputs.words, tail)
            attention = attention_scratch(*given, pages=pages, mode=self.way.mode)
        return ModelSpace(inputs, tail, like.new_empty(0), attention, pages, wanted)

    @torch.inference_mode()
    def run(self, space: ModelSpace, cache: Sequence[KeyValue]) -> StepOutput:
        """Score the rows that the space's inputs hold, and write their K/V into the cache.

        Nothing here waits for the device, as far as the model's own code does not.
        """
        inputs, (lanes, width) = space.inputs, space.inputs.words.shape
        stored = _StoredRows(cache, inputs.places, self.way)
        with attending(self.model, ATTENTION):
            output = self.model(
                input_ids=inputs.tokens.view(lanes, width).long(),
                position_ids=inputs.positions.view(lanes, width).long(),
                attention_mask=None,
                use_cache=True,
                output_hidden_states=bool(self.taps),
                tree=TreeCall(space, self.way),
                **{self._keyword: stored},
            )
        logits = output.logits.flatten(0, 1)
        if space.wanted is not None:
            logits = logits.index_select(0, space.wanted)
        taps = [output.hidden_states[tap].flatten(0, 1) for tap in self.taps]
        return StepOutput(logits, None, torch.cat(taps, dim=-1) if taps else None)


class _StoredRows(Cache):
    """Writes new keys and values to their places, and hands on the whole cache."""

    def __init__(self, cache: Sequence[KeyValue], places: Tensor, way: Way) -> None:
        super().__init__(layers=[])
        self.cache, self.places, self.way = cache, places, way

    def update(  # type: ignore[override]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store `[lanes, KV heads, width, head]`; returns all keys and values."""
        keys, values = self.cache[layer_idx]
        rows = (key_states.to(keys.dtype), value_states.to(values.dtype))
        store_rows(*rows, self.places, keys, values, impl=self.way.impl)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Callers pass positions."""
        return 0


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    tree: TreeCall, scaling: float | None = None, **arguments: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The tree kernel as transformers calls an attention: queries `[lanes, heads, width, head]`."""
    space, way = tree
    inputs = space.inputs
    seen = tree_attention(
        query.transpose(1, 2).contiguous(), key, value, inputs.lengths, inputs.words, space.tail,
        pages=space.pages, scale=scaling, mode=way.mode, impl=way.impl, scratch=space.attention, pdl=False,
    )  # fmt: skip
    return seen, None


AttentionInterface.register(ATTENTION, _attend)


def _sizes(text: Any) -> ModelSizes:
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    head = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    return ModelSizes(int(text.hidden_size), heads, kv_heads, head)
