"""Which models the native step computes, and everything about a model that it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn

from dflash.kernels.attention_checks import HEAD_SIZES, MAX_GROUP
from dflash.target.errors import NativeUnsupported

# native: this package's layers; captured: transformers' in CUDA graphs; generic: transformers' as they are
TargetImpl = Literal["auto", "native", "captured", "generic"]
DraftImpl = Literal["auto", "native", "generic"]
KINDS = ("llama", "mistral", "qwen2", "qwen3")
ROPES = ("default", "linear", "llama3", "yarn")


def check_native(name: str, model: Any) -> None:
    """Refuse a model that the native step cannot compute.

    Raises:
        NativeUnsupported: lists every reason.
    """
    if reasons := misfits(model):
        raise NativeUnsupported(name, reasons)


def misfits(model: Any) -> list[str]:
    """Everything about a model that the native step cannot compute."""
    return [*_of_config(model.config.get_text_config())] or [*_of_modules(model)]


def _of_config(text: Any) -> Iterator[str]:
    if text.model_type not in KINDS:
        yield f"its type is {text.model_type}, not one of {', '.join(KINDS)}"
    if getattr(text, "hidden_act", "silu") != "silu":
        yield f"its activation is {text.hidden_act}, not silu"
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        yield f"it has {', '.join(sorted(kinds))} layers"
    elif text.model_type == "mistral" and text.sliding_window is not None:
        yield "it has sliding_attention layers"
    if getattr(text, "mlp_bias", False):
        yield "its MLP has biases"
    heads = int(text.num_attention_heads)
    head = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    if head not in HEAD_SIZES:
        yield f"its heads have {head} numbers, not one of {', '.join(map(str, HEAD_SIZES))}"
    if heads // int(text.num_key_value_heads) > MAX_GROUP:
        yield f"a KV head serves {heads // int(text.num_key_value_heads)} heads, more than {MAX_GROUP}"
    for what in ("hidden_size", "intermediate_size"):
        if int(getattr(text, what)) % 16:
            yield f"its {what} {getattr(text, what)} is no multiple of 16"
    yield from rope_misfits(getattr(text, "rope_parameters", None) or {})


def rope_misfits(rope: Mapping[str, Any]) -> Iterator[str]:
    """Why rotary positions are not those of a table over positions."""
    kind = rope.get("rope_type", "default")
    if kind not in ROPES:
        yield f"its rotary positions are {kind}, not one of {', '.join(ROPES)}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield "only a part of each head has rotary positions"


def _of_modules(model: Any) -> Iterator[str]:
    body = getattr(model, "model", None)
    if body is None or not hasattr(body, "layers") or model.get_output_embeddings() is None:
        yield "it has no decoder layers with an output head"
        return
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) > 1:
        yield f"its weights have several dtypes: {', '.join(sorted(map(str, dtypes)))}"
    linear = [module for module in body.layers.modules() if isinstance(module, nn.Linear)]
    if any(type(module.weight.data) is not torch.Tensor for module in linear):
        yield "its weights are quantised"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        yield "it lies on several devices"
