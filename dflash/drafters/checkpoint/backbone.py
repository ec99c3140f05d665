"""The parts of a configuration that all layouts share: sizes, rotary positions, layers, heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from dflash.drafters.block.config import Confidence, Convolution, LayerMask, Markov, Selector
from dflash.drafters.checkpoint.facts import Facts

# position-dependent frequencies would make keys depend on the length at which they were cached
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
MASK_NAMES = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")

Fields = dict[str, Any]
Tensors = Mapping[str, Tensor]


def sizes(facts: Facts, tensors: Tensors) -> Fields:
    """What Qwen3's configuration calls by the same names everywhere."""
    hidden, heads = facts.need("hidden_size"), facts.need("num_attention_heads")
    activation = facts.get("hidden_act", default="silu")
    if activation != "silu":
        facts.refuse("hidden_act", activation, "silu")
    vocabulary = facts.need("vocab_size")
    drafted = facts.get("draft_vocab_size", default=vocabulary)
    return {
        "hidden_size": hidden,
        "intermediate_size": facts.need("intermediate_size"),
        "heads": heads,
        "kv_heads": facts.get("num_key_value_heads", default=heads),
        "head_dim": facts.get("head_dim") or _head_dim(tensors),
        "norm_eps": facts.need("rms_norm_eps"),
        "rope": rope(facts),
        "attention_bias": bool(facts.get("attention_bias", default=False)),
        "target_hidden_size": facts.get("target_hidden_size", default=hidden),
        "vocabulary": vocabulary,
        "draft_vocabulary": drafted if drafted != vocabulary or "d2t" in tensors else None,
        "block_size": facts.need("block_size"),
        "mask_token": facts.need(*MASK_NAMES),
        "own_embedding": "embed_tokens.weight" in tensors,
        "own_head": "lm_head.weight" in tensors,
        "own_mask": "mask_embedding" in tensors,
        "convolution": convolution(facts, tensors),
        "selector": selector(facts, tensors),
    }


def _head_dim(tensors: Tensors) -> int:
    norm = tensors.get("layers.0.self_attn.q_norm.weight")
    return 0 if norm is None else len(norm)


def rope(facts: Facts) -> dict[str, Any]:
    """Transformers' `rope_parameters`, of those or of the older `rope_theta` and `rope_scaling`."""
    stored = facts.get("rope_parameters")
    if stored is None:
        scaling = dict(facts.get("rope_scaling", default={}))
        kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
        stored = {"rope_type": kind, "rope_theta": float(facts.need("rope_theta")), **scaling}
    kind = stored.get("rope_type", "default")
    if kind not in STATIC_ROPE:
        facts.refuse("rope_type", kind, " or ".join(STATIC_ROPE))
    return dict(stored)


def layer_masks(facts: Facts, mask: Callable[[bool, int | None], LayerMask]) -> tuple[LayerMask, ...]:
    """One mask a layer, made by `mask` of whether it slides, and of its window.

    Like Qwen3's configuration, `use_sliding_window: false` takes the window from a layer that slides.
    """
    count = facts.need("num_hidden_layers")
    types = facts.get("layer_types", default=["full_attention"] * count)
    if len(types) != count:
        facts.refuse("layer_types", types, f"{count} types")
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        facts.refuse("layer_types", sorted(unknown), "full_attention or sliding_attention")
    windowed = "sliding_attention" in types and facts.get("use_sliding_window") is not False
    window = facts.need("sliding_window") if windowed else None
    slides = [kind == "sliding_attention" for kind in types]
    return tuple(mask(sliding, window if sliding else None) for sliding in slides)


def convolution(facts: Facts, tensors: Tensors) -> Convolution | None:
    """Of DFlash 2, where a layer has one."""
    if "layers.0.attention_conv.base_kernel" not in tensors:
        return None
    return Convolution(facts.need("conv_kernel_size"), facts.need("conv_group_size"))


def selector(facts: Facts, tensors: Tensors) -> Selector | None:
    """Of DFlash 2, where its codebooks are there."""
    if "candidate_selector.predecessor_codebook" not in tensors:
        return None
    return Selector(facts.need("selector_rank"), facts.need("selector_top_k"))


def token_heads(facts: Facts, tensors: Tensors, hidden: int) -> Fields:
    """The heads of DSpark that the tensors hold."""
    fields: Fields = {"markov": None, "confidence": None}
    if "markov_head.markov_w1.weight" in tensors:
        kind = str(facts.get("markov_head_type", default="vanilla"))
        if kind not in ("vanilla", "gated", "rnn"):
            facts.refuse("markov_head_type", kind, "vanilla, gated or rnn")
        fields["markov"] = Markov(kind, facts.need("markov_rank"))  # type: ignore[arg-type]
    elif facts.get("markov_rank", default=0):
        facts.mismatches.append("tensors: expected markov_head.markov_w1.weight, found none")
    reads = tensors.get("confidence_head.proj.weight")
    if reads is not None:
        fields["confidence"] = Confidence(with_markov=reads.shape[-1] != hidden)
    return fields
