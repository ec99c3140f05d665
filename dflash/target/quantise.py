"""Weight-only quantisation through torchao, with its parameters written down verbatim."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from dflash.target.errors import UnsupportedQuantisation, UnsupportedWeights
from dflash.target.fingerprint import weights_digest

GROUP_SIZES = (32, 64, 128)

Quantisation = Literal["none", "int8", "int4", "fp8"]


class Quantised(NamedTuple):
    """A model that computes with quantised weights, and what the header says about it."""

    model: Any
    parameters: dict[str, Any]
    weights_digest: str


def quantise(model: torch.nn.Module, method: Quantisation, head: str = "output head included") -> Quantised:
    """A quantised copy of `model`; the original keeps its weights.

    On a CPU int8 weights are dequantised again after quantisation (its CPU kernels are slower than fp32): the
    values are those of the quantised model, and the digest is of the quantised tensors. int4 and fp8 need
    CUDA, int4 bfloat16 weights, too; its groups are the largest that divide the widths of all layers.

    Args:
        head: What the header says of the output head.

    Raises:
        UnsupportedQuantisation: if the device has no kernels for the method.
        UnsupportedWeights: if the method has no kernels for the dtype of the weights.
    """
    device = next(model.parameters()).device
    if method != "int8" and device.type != "cuda":
        raise UnsupportedQuantisation(method, device.type)
    config = torchao_config(method, _linear(model))
    quantised = copy.deepcopy(model)
    with torch.inference_mode(False), torch.no_grad():
        _apply(quantised, config)
    digest = weights_digest(quantised)
    # a method leaves layers alone whose width its groups do not divide
    count = sum(hasattr(layer.weight, "__tensor_flatten__") for layer in _linear(quantised))
    parameters = {
        "method": "torchao",
        "config": type(config).__name__,
        "config_parameters": {key: str(value) for key, value in sorted(vars(config).items())},
        "bits": {"int8": 8, "int4": 4, "fp8": 8}[method],
        "torchao": _version(),
        "tensors": f"weights of {count} linear layers, {head}",
        "computed_in": "dequantised" if device.type == "cpu" else "quantised",
    }
    if device.type == "cpu":
        _dequantise(quantised)
    return Quantised(quantised.eval(), parameters, digest)


def torchao_config(method: Quantisation, layers: Sequence[torch.nn.Linear]) -> Any:
    """How torchao is to quantise these layers.

    Raises:
        UnsupportedWeights: if the method has no kernels for the dtype of a layer.
    """
    from torchao import quantization

    if method == "int8":
        return quantization.Int8WeightOnlyConfig()
    if method == "fp8":
        return quantization.Float8WeightOnlyConfig()
    for layer in layers:
        if layer.weight.dtype != torch.bfloat16:
            raise UnsupportedWeights(method, "bfloat16", str(layer.weight.dtype).removeprefix("torch."))
    # the other layouts of int4 need kernels that torch does not bring along
    return quantization.Int4WeightOnlyConfig(
        group_size=group_size([layer.in_features for layer in layers]),
        int4_packing_format="tile_packed_to_4d",
    )


def group_size(widths: Sequence[int]) -> int:
    """Weights that share an int4 scale: the largest size that divides all widths, or else most of them.

    Args:
        widths: Inputs of each layer; layers of other widths keep their weights.
    """
    return max(GROUP_SIZES, key=lambda size: (sum(width % size == 0 for width in widths), size))


def _linear(model: torch.nn.Module) -> list[torch.nn.Linear]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)]


def _apply(model: torch.nn.Module, config: Any) -> None:
    from torchao.quantization import quantize_

    quantize_(model, config)


def _version() -> str:
    from importlib.metadata import version

    return version("torchao")


def _dequantise(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and hasattr(module.weight, "dequantize"):
            plain = module.weight.dequantize().to(module.weight.dtype)
            module.weight = torch.nn.Parameter(plain, requires_grad=False)
