"""Weight-only quantisation through torchao, with its parameters written down verbatim."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple

import torch

from dflash.target.errors import UnsupportedQuantisation
from dflash.target.fingerprint import weights_digest

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
    CUDA.

    Args:
        head: What the header says of the output head.

    Raises:
        UnsupportedQuantisation: if the device has no kernels for the method.
    """
    device = next(model.parameters()).device
    if method != "int8" and device.type != "cuda":
        raise UnsupportedQuantisation(method, device.type)
    quantised = copy.deepcopy(model)
    config = _config(method)
    with torch.inference_mode(False), torch.no_grad():
        _apply(quantised, config)
    digest = weights_digest(quantised)
    layers = [module for module in quantised.modules() if isinstance(module, torch.nn.Linear)]
    # a method leaves layers alone whose width its groups do not divide
    count = sum(hasattr(layer.weight, "__tensor_flatten__") for layer in layers)
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


def _config(method: Quantisation) -> Any:
    from torchao import quantization

    return {
        "int8": quantization.Int8WeightOnlyConfig,
        "int4": quantization.Int4WeightOnlyConfig,
        "fp8": quantization.Float8WeightOnlyConfig,
    }[method]()


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
