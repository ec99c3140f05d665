"""Which models the engine can score as trees, and the start-up proof that it does so rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dflash.target.errors import SelfTestFailed, UnsupportedArchitecture
from dflash.target.model import TrunkModel
from dflash.target.scratch import LaneRows

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_STATEFUL = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_value_heads", "rwkv_version")
_TREE = (-1, 0, 0, 1, 1, 2)
_TRUNK = 7


class Measured(NamedTuple):
    """What the self-test saw, in raw logits: the largest difference, and the largest magnitude."""

    worst: float
    largest: float


def check_config(name: str, config: Any) -> None:
    """Refuse a configuration that the engine cannot score as trees, before any weight is read.

    Raises:
        UnsupportedArchitecture: naming the reason.
    """
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedArchitecture(name, "it is an encoder-decoder; only decoders are scored as trees")
    layers = set(getattr(text, "layer_types", None) or ()) - _KNOWN_LAYERS
    if layers:
        raise UnsupportedArchitecture(
            name, f"it has {', '.join(sorted(layers))} layers, whose state cannot branch"
        )
    stateful = [field for field in _STATEFUL if getattr(text, field, None) is not None]
    if stateful:
        raise UnsupportedArchitecture(name, f"it has recurrent state ({stateful[0]}), which cannot branch")
    if getattr(text, "attn_logit_softcapping", None) is not None:
        raise UnsupportedArchitecture(name, "its attention logits are soft-capped, which sdpa cannot do")
    if getattr(text, "kv_lora_rank", None) is not None:
        raise UnsupportedArchitecture(
            name, "it uses multi-head latent attention, whose cache is not per head"
        )


@torch.inference_mode()
def self_test(name: str, model: Any, make: Callable[..., TrunkModel] = TrunkModel) -> Measured:
    """Score a six-node tree and compare every path with a plain forward of the same tokens.

    Args:
        make: what scores the tree, from a model, lanes and capacity.

    Returns:
        The largest difference of a logit, and the largest logit.

    Raises:
        SelfTestFailed: if any path disagrees by more than the dtype explains.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(20260101)
    vocabulary = min(int(model.config.get_text_config().vocab_size), 30_000)
    tokens = torch.randint(0, vocabulary, (_TRUNK + len(_TREE),), generator=generator).tolist()
    trunk, nodes = tokens[:_TRUNK], tokens[_TRUNK:]
    scored = make(model, lanes=1, capacity=_TRUNK + len(_TREE))
    scored.append(0, trunk)
    logits = scored.score([LaneRows(0, nodes, _TREE)])[0].logits.float()
    worst, largest = 0.0, 1.0
    for leaf in range(len(_TREE)):
        path: list[int] = []
        node = leaf
        while node >= 0:
            path.insert(0, nodes[node])
            node = _TREE[node]
        plain = (
            model(input_ids=torch.tensor([trunk + path], device=device), use_cache=False)
            .logits[0, -1]
            .float()
        )
        worst = max(worst, float((plain - logits[leaf]).abs().max()))
        largest = max(largest, float(plain.abs().max()))
    allowed = largest * (1e-4 if logits_are_exact(model) else 5e-2)
    if not worst <= allowed:
        raise SelfTestFailed(name, worst, allowed)
    return Measured(worst, largest)


def logits_are_exact(model: torch.nn.Module) -> bool:
    """Whether the weights are at least 32-bit floats."""
    return next(model.parameters()).dtype in (torch.float32, torch.float64)


def tie_tolerance(model: torch.nn.Module, measured: Measured) -> float:
    """Raw-logit margin under which a choice is a near-tie.

    1e-3 in fp32. In 16 bits twice what the self-test measured, but at least the step between neighbouring
    values at the largest logit: one rounding that falls the other way moves a logit by as much.
    """
    if logits_are_exact(model):
        return 1e-3
    step = torch.finfo(next(model.parameters()).dtype).eps * measured.largest
    return max(1e-3, 2.0 * measured.worst, step)
