"""The public layouts of block drafters, each turned into one configuration with our names of tensors.

Taps become Hugging Face `hidden_states` indices, slots one of two conventions. Architecture strings are not
read: they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from dflash.drafters.block.config import BlockConfig, LayerMask, Slots
from dflash.drafters.checkpoint.backbone import Tensors, layer_masks, sizes, token_heads
from dflash.drafters.checkpoint.facts import Facts, Json

Normalised = tuple[BlockConfig, list[str]]
_TRANSFORMERS = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
_CODEBOOKS = tuple(f"candidate_selector.{name}_codebook" for name in ("predecessor", "successor"))


class Layout(NamedTuple):
    """A layout: its name, and what reads its configuration beside its tensors, renamed."""

    name: str
    read: Callable[[Json, Tensors], Normalised]


def renamed(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors under our names, whichever of the layouts they came in."""
    found = {}
    for name, tensor in tensors.items():
        name = _TRANSFORMERS.get(name, name).removeprefix("logit_head.")
        if name.removesuffix(".weight") in _CODEBOOKS:
            name = name.removesuffix(".weight")
        found[name] = tensor.reshape(-1) if name == "mask_embedding" else tensor
    return found


def recognise(config: Json, stored: Tensors) -> Layout | None:
    """The layout of a checkpoint, by its tensors as stored and its configuration's keys.

    None for another family.
    """
    names = set(renamed(stored))
    if not {"fc.weight", "hidden_norm.weight"} <= names:
        return None
    if "transformer_layer_config" in config:
        return Layout("speculators", read_speculators)
    if "encoder.fc.weight" in stored:
        return Layout("transformers", read_transformers)
    nested = config.get("dflash_config") or {}
    heads = any(name.startswith(("markov_head.", "confidence_head.")) for name in names)
    if heads and nested:
        return Layout("SpecForge DSpark", read_specforge_dspark)
    if heads or ("markov_rank" in config and not nested):
        return Layout("DeepSpec", read_deepspec)
    return Layout("z-lab", read_zlab)


def read_zlab(config: Json, tensors: Tensors) -> Normalised:
    """z-lab's and SpecForge's DFlash 1 and 2: drafts in place, sliding layers causal unless told else."""
    facts = _nested(config)
    shifted = bool(facts.get("shift_label", default=False))
    causal = facts.get("causal", "is_causal")

    def mask(sliding: bool, window: int | None) -> LayerMask:
        return LayerMask(window, sliding if causal is None else bool(causal))

    slots = Slots.NEXT if shifted else Slots.IN_PLACE
    return _config(facts, tensors, layers=_zlab_layers(facts, mask), slots=slots, taps=_after(facts))


def _zlab_layers(facts: Facts, mask: Callable[[bool, int | None], LayerMask]) -> tuple[LayerMask, ...]:
    """Newer files may give one window for all layers beside `use_swa`."""
    if facts.get("use_swa") and facts.get("layer_types") is None:
        return (mask(True, facts.need("swa_window_size")),) * facts.need("num_hidden_layers")
    return layer_masks(facts, mask)


def read_transformers(config: Json, tensors: Tensors) -> Normalised:
    """Transformers' DFlash assistants: no layer is causal, and a window includes its border."""
    facts = _nested(config)

    def mask(sliding: bool, window: int | None) -> LayerMask:
        return LayerMask(None if window is None else window + 1)

    layers = layer_masks(facts, mask)
    return _config(facts, tensors, layers=layers, slots=Slots.IN_PLACE, taps=_after(facts))


def read_specforge_dspark(config: Json, tensors: Tensors) -> Normalised:
    """SpecForge's DSpark: z-lab's nesting, labels one position on."""
    facts = _nested(config)
    shifted = bool(facts.get("shift_label", default=True))

    def mask(sliding: bool, window: int | None) -> LayerMask:
        return LayerMask(window)

    slots = Slots.NEXT if shifted else Slots.IN_PLACE
    return _config(facts, tensors, layers=layer_masks(facts, mask), slots=slots, taps=_after(facts))


def read_deepspec(config: Json, tensors: Tensors) -> Normalised:
    """DeepSpec's DSpark, and what it calls DFlash: own tables, labels one position on, no windows."""
    facts = Facts((config,))

    def mask(sliding: bool, window: int | None) -> LayerMask:
        if sliding:
            facts.refuse(
                "layer_types", "sliding_attention", "full_attention: DeepSpec's masks know no window"
            )
        return LayerMask()

    layers = layer_masks(facts, mask)
    return _config(facts, tensors, layers=layers, slots=Slots.NEXT, taps=_after(facts))


def read_speculators(config: Json, tensors: Tensors) -> Normalised:
    """speculators: taps are layer inputs, slots are told, windows count from the anchor."""
    backbone = config["transformer_layer_config"]
    facts = Facts((config, backbone))
    kind = config.get("speculators_model_type")
    sees_ahead = bool(facts.get("sliding_window_non_causal", default=kind == "dflash2"))

    def mask(sliding: bool, window: int | None) -> LayerMask:
        if not sliding:
            return LayerMask()
        return LayerMask(None if window is None else window + 1, not sees_ahead, from_anchor=True)

    samples_anchor = bool(facts.get("sample_from_anchor", default=kind == "dspark"))
    slots = Slots.NEXT if samples_anchor else Slots.IN_PLACE
    taps = tuple(facts.need("aux_hidden_state_layer_ids") or ())
    return _config(facts, tensors, layers=layer_masks(facts, mask), slots=slots, taps=taps)


def _nested(config: Json) -> Facts:
    """z-lab's lookup: in `dflash_config`, then beside it; what would change the computation is refused."""
    nested = config.get("dflash_config") or {}
    facts = Facts((nested, config))
    projector = nested.get("projector_type")
    if projector not in (None, "dflash", "dflash2", "dspark"):
        facts.refuse("projector_type", projector, "dflash, dflash2 or dspark")
    if nested.get("attention_sink_bias"):
        facts.refuse("attention_sink_bias", True, "false")
    if nested.get("use_aux_hidden_state") is False:
        facts.refuse("use_aux_hidden_state", False, "true")
    return facts


def _after(facts: Facts) -> tuple[int, ...]:
    """Ids that name outputs of layers, -1 the embeddings, as `hidden_states` indices: one more each."""
    ids = facts.get("target_layer_ids")
    if ids is None:
        ids = spread_taps(facts.need("num_target_layers"), facts.need("num_hidden_layers"))
    return tuple(int(layer) + 1 for layer in ids)


def spread_taps(target_layers: int, layers: int) -> list[int]:
    """The default of z-lab: ids of target layers, evenly from layer 1 to layer L - 3, one a draft layer."""
    if layers == 1:
        return [target_layers // 2]
    return [round(1 + place * (target_layers - 4) / (layers - 1)) for place in range(layers)]


def _config(facts: Facts, tensors: Tensors, **conventions: Any) -> Normalised:
    fields = sizes(facts, tensors)
    heads = token_heads(facts, tensors, fields["hidden_size"])
    markov = heads["markov"]
    if markov and markov.kind == "rnn" and conventions["slots"] is Slots.IN_PLACE:
        facts.refuse("markov_head_type", "rnn", "vanilla or gated where slots draft in place")
    scales = {
        "embedding_scale": float(facts.get("input_embedding_scale", default=1.0)),
        "logit_scale": float(facts.get("output_multiplier", default=1.0)),
        "softcap": float(facts.get("final_logit_softcapping", default=0.0)) or None,
    }
    return BlockConfig(**fields, **heads, **scales, **conventions), facts.mismatches
