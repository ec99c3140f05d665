"""Start a drafter from its target: the last layers, read from the residual stream that they are used to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dflash.drafters.block.layers import BlockLayer
from dflash.drafters.block.model import BlockDrafter
from dflash.training.errors import NoWarmStart

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_GATED = ("gate_proj", "up_proj", "down_proj")


@torch.no_grad()
def warm_start(drafter: BlockDrafter, target: Any) -> None:
    """Copy the target's last layers, final norm and a sketch of its embedding.

    Layers of a target read their own normed residual stream; a drafter's layers share one context and norm
    block rows themselves. So the gains of the target's norms move into the projections, and the last tap
    passes through `fc` alone: context keys and values start out as about those of the copied layers.

    Raises:
        NoWarmStart: The target's last layers have other shapes than the drafter's, or other parts.
    """
    decoder = target.get_decoder()
    if not hasattr(decoder, "layers") or len(decoder.layers) < len(drafter.layers):
        raise NoWarmStart("layers", (len(drafter.layers),), None)
    layers = decoder.layers[-len(drafter.layers) :]
    for ours, theirs in zip(drafter.layers, layers, strict=True):
        _check(ours, theirs)
    for ours, theirs in zip(drafter.layers, layers, strict=True):
        _copy_layer(ours, theirs)
    drafter.norm.weight.copy_(decoder.norm.weight)
    width = drafter.config.target_hidden_size
    if drafter.fc.weight.shape[0] == width:
        drafter.fc.weight.zero_()
        drafter.fc.weight[:, -width:] = torch.eye(width)
    _copy_embedding(drafter, target.get_input_embeddings().weight.detach().float().cpu())


def initialise(drafter: BlockDrafter) -> None:
    """Random weights as a fresh model has them: deviation 1/sqrt(inputs) / 2, and no Markov bias."""
    for module in drafter.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if drafter.markov_head is not None:
        nn.init.normal_(drafter.markov_head.markov_w1.weight, std=1.0)
        nn.init.zeros_(drafter.markov_head.markov_w2.weight)


def _check(ours: BlockLayer, theirs: Any) -> None:
    for part, names in (("self_attn", _PROJECTIONS), ("mlp", _GATED)):
        for name in names:
            place = f"{part}.{name}"
            found = getattr(getattr(theirs, part, None), name, None)
            wanted = getattr(getattr(ours, part), name).weight.shape
            if not isinstance(found, nn.Linear) or found.weight.shape != wanted:
                shape = None if not isinstance(found, nn.Linear) else tuple(found.weight.shape)
                raise NoWarmStart(place, tuple(wanted), shape)


def _copy_layer(ours: BlockLayer, theirs: Any) -> None:
    before, after = theirs.input_layernorm.weight, theirs.post_attention_layernorm.weight
    for name in _PROJECTIONS:
        gain = before if name != "o_proj" else None
        _copy(getattr(ours.self_attn, name), getattr(theirs.self_attn, name), gain)
    for name in _GATED:
        _copy(getattr(ours.mlp, name), getattr(theirs.mlp, name), after if name != "down_proj" else None)
    # without norms of its own, the target's heads have about the length of a projected unit vector
    for norm, projection in (("q_norm", "q_proj"), ("k_norm", "k_proj")):
        weight = getattr(ours.self_attn, projection).weight
        getattr(ours.self_attn, norm).weight.fill_(float(weight.norm() / weight.shape[0] ** 0.5))


def _copy(ours: nn.Linear, theirs: nn.Linear, gain: Tensor | None) -> None:
    weight = theirs.weight.detach().float()
    ours.weight.copy_(weight if gain is None else weight * gain.float())
    if ours.bias is not None and theirs.bias is not None:
        ours.bias.copy_(theirs.bias)


def _copy_embedding(drafter: BlockDrafter, table: Tensor) -> None:
    """The Markov head's first table becomes the embedding's principal components, of unit variance."""
    if drafter.markov_head is None:
        return
    centred = table - table.mean(0)
    rank = min(drafter.markov_head.rank, table.shape[1])
    variance, directions = torch.linalg.eigh(centred.T @ centred / len(table))
    sketch = centred @ directions[:, -rank:] / variance[-rank:].clamp(min=1e-9).sqrt()
    drafter.markov_head.markov_w1.weight[:, :rank] = sketch
