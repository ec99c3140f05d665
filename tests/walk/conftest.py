"""Tiny models to walk with: a target, a drafter that agrees now and then, and one that hardly does."""

from __future__ import annotations

import shutil

import block_models
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_fixtures import tiny, tiny_folder
from tiny_model import write_tiny

__all__ = ["tiny", "tiny_folder"]


@pytest.fixture(scope="session")
def bad_folder(tmp_path_factory):
    """The same architecture from another seed."""
    return write_tiny(tmp_path_factory.mktemp("models") / "bad", seed=11)


@pytest.fixture(scope="session")
def fair_folder(tiny_folder, tmp_path_factory):
    """The target with noise on its weights."""
    folder = tmp_path_factory.mktemp("models") / "fair"
    shutil.copytree(tiny_folder, folder)
    weights = load_file(folder / "model.safetensors")
    noise = torch.Generator().manual_seed(3)
    noisy = {
        name: value + 0.1 * value.std() * torch.randn(value.shape, generator=noise)
        for name, value in weights.items()
    }
    save_file(noisy, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def block_drafter(tiny, tmp_path_factory):
    """The name of a fitted block drafter of a kind, which drafts five tokens; made when first asked for."""
    made = {}

    def name(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("models") / kind
            size = 5 if kind.startswith("dspark") else 6
            block_models.write_fitted(tiny.model, folder, kind, block_size=size)
            made[kind] = block_models.named(kind, folder)
        return made[kind]

    return name


@pytest.fixture
def drafter_named(tiny_folder, fair_folder, bad_folder, block_drafter):
    """A drafter's name with its model's folder in it; `block:KIND` is a block drafter."""
    folders = {"good": tiny_folder, "fair": fair_folder, "bad": bad_folder}
    places = {f"model:{name}": f"model:{folder}" for name, folder in folders.items()}

    def named(name):
        kind = name.removeprefix("block:")
        return places.get(name, name) if kind == name else block_drafter(kind)

    return named
