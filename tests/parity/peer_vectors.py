"""Vectors of a peer's drafter: its checkpoint as it stores it, what went in, and what it drafted.

Imports nothing of this toolkit: it runs where a peer's package stands in its place.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCABULARY, HIDDEN = 40, 24


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Random parameters that bfloat16 holds exactly; norms and filters stay near 1."""
    torch.manual_seed(seed)
    for name, value in model.named_parameters():
        drawn = torch.randn_like(value) * 0.25
        if "norm" in name:
            drawn = torch.rand_like(value) + 0.5
        elif "base_kernel" in name:
            drawn = torch.rand_like(value)
        value.data = drawn.bfloat16().float()


def table() -> Tensor:
    """A random table of embeddings or an output head, `[vocabulary, hidden]`."""
    return torch.randn(VOCABULARY, HIDDEN).bfloat16().float()


def write(path: Path, peer: str, model: Any, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
    """Store one case: the checkpoint under `weights.`, its config.json in the metadata."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        stored = load_file(Path(folder) / "model.safetensors")
    weights = {
        name: value.bfloat16() if value.is_floating_point() else value for name, value in stored.items()
    }
    tensors = {f"weights.{name}": value for name, value in weights.items()}
    tensors |= {f"inputs.{name}": value for name, value in inputs.items()}
    tensors |= {f"outputs.{name}": value for name, value in outputs.items()}
    made = {name: version(name) for name in (peer, "torch", "transformers")}
    # one key: the order of several would differ from run to run
    metadata = {"peer": json.dumps({"config": config, "made_with": made}, sort_keys=True)}
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata)
    print(path.name, *made.items(), file=sys.stderr)
