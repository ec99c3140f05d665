"""Write a block drafter in the public layout that says what it is, so that other engines can load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from dflash.drafters.block.config import BlockConfig, LayerMask, Slots
from dflash.drafters.block.model import BlockDrafter


def write_block(model: BlockDrafter, folder: Path, target_layers: int) -> None:
    """Write `config.json` and `model.safetensors`.

    A drafter that borrows the target's tables is written as z-lab's or SpecForge's, one with its own as
    DeepSpec's.

    Args:
        model: The drafter, its weights in the dtype to be stored.
        folder: Made if need be.
        target_layers: Of the target.

    Raises:
        ValueError: No public layout can say what the configuration says.
    """
    config = model.config
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(public_config(config, target_layers), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def public_config(config: BlockConfig, target_layers: int) -> dict[str, Any]:
    """The config.json of a drafter.

    Raises:
        ValueError: No public layout can say what the configuration says.
    """
    if config.draft_vocabulary is not None or any(mask.from_anchor for mask in config.layers):
        raise ValueError("only the speculators layout has draft vocabularies and windows from the anchor")
    if config.own_embedding != config.own_head:
        raise ValueError("public layouts own both tables or none")
    ids = {"target_layer_ids": [tap - 1 for tap in config.taps], "mask_token_id": config.mask_token}
    own = {"block_size": config.block_size, "num_target_layers": target_layers}
    facts = _backbone(config) | _layers(config) | own
    if config.own_head:
        if config.slots is not Slots.NEXT:
            raise ValueError("a drafter with its own tables drafts the next positions (DeepSpec)")
        return facts | ids | _token_heads(config) | {"architectures": ["Qwen3DSparkModel"]}
    nested = ids | _extras(config)
    if config.family == "dspark":
        nested |= _token_heads(config) | {"projector_type": "dspark"}
        architecture = "DSparkDraftModel"
    else:
        architecture = "DFlash2DraftModel" if config.selector else "DFlashDraftModel"
    if (config.slots is Slots.NEXT) != (config.family == "dspark"):
        nested["shift_label"] = config.slots is Slots.NEXT
    return facts | {"architectures": [architecture], "dflash_config": nested}


def _backbone(config: BlockConfig) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": config.attention_bias,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope["rope_theta"],
        "rope_parameters": dict(config.rope),
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": False,
    }


def _layers(config: BlockConfig) -> dict[str, Any]:
    windows = {mask.window for mask in config.layers} - {None}
    if len(windows) > 1:
        raise ValueError(f"public layouts know one window, found {sorted(map(str, windows))}")
    types = ["full_attention" if mask.window is None else "sliding_attention" for mask in config.layers]
    found: dict[str, Any] = {"layer_types": types, "sliding_window": next(iter(windows), None)}
    if all(mask.causal == (mask.window is not None) for mask in config.layers):
        return found
    if len({mask.causal for mask in config.layers}) > 1:
        raise ValueError("public layouts know causal sliding layers, or one choice for all layers")
    return found | {"is_causal": config.layers[0].causal}


def _extras(config: BlockConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if config.convolution:
        found |= {"conv_kernel_size": config.convolution.kernel, "conv_group_size": config.convolution.group}
    if config.selector:
        found |= {"selector_rank": config.selector.rank, "selector_top_k": config.selector.top_k}
    if config.embedding_scale != 1.0:
        found["input_embedding_scale"] = config.embedding_scale
    if config.logit_scale != 1.0:
        found["output_multiplier"] = config.logit_scale
    if config.softcap is not None:
        found["final_logit_softcapping"] = config.softcap
    return found


def _token_heads(config: BlockConfig) -> dict[str, Any]:
    if any(mask != LayerMask() for mask in config.layers):
        raise ValueError("layouts with Markov heads know full attention alone")
    markov, confidence = config.markov, config.confidence
    return {
        "markov_rank": markov.rank if markov else 0,
        "markov_head_type": markov.kind if markov else "vanilla",
        "enable_confidence_head": confidence is not None,
        "confidence_head_with_markov": bool(confidence and confidence.with_markov),
    }
