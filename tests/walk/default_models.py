"""Drafting models for the default target: its own first half, and one with random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LAYERS = 15


def write_half(source: Path, folder: Path, *, random: bool = False) -> Path:
    """The first 15 layers with the norm and the head; `random` draws all of them anew.

    The identity that may lie beside the source's weights is not copied.
    """
    folder.mkdir()
    for path in source.iterdir():
        if path.name.startswith(("tokenizer", "special_tokens", "chat_template", "generation_config")):
            shutil.copy(path, folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = LAYERS
    if "layer_types" in config and config["layer_types"]:
        config["layer_types"] = config["layer_types"][:LAYERS]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    kept = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (not a mapping)
                if _kept(name):
                    kept[name] = weights.get_tensor(name)
    if random:
        noise = torch.Generator().manual_seed(5)
        kept = {
            name: torch.ones_like(value)
            if value.dim() == 1
            else (0.04 * torch.randn(value.shape, generator=noise)).to(value.dtype)
            for name, value in kept.items()
        }
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def _kept(name: str) -> bool:
    pieces = name.split(".")
    return "layers" not in pieces or int(pieces[pieces.index("layers") + 1]) < LAYERS
