"""Tiny models and a few recordings of them that the audit looks at, made once."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def audit_models(tmp_path_factory):
    """A tiny target, and the same with noise on its weights to draft with."""
    import torch
    from safetensors.torch import load_file, save_file
    from tiny_model import write_tiny

    from dflash.target.load import load_target

    folder = write_tiny(tmp_path_factory.mktemp("models") / "tiny")
    fair = tmp_path_factory.mktemp("models") / "fair"
    shutil.copytree(folder, fair)
    weights = load_file(fair / "model.safetensors")
    noise = torch.Generator().manual_seed(3)
    noisy = {
        name: value + 0.1 * value.std() * torch.randn(value.shape, generator=noise)
        for name, value in weights.items()
    }
    save_file(noisy, fair / "model.safetensors", {"format": "pt"})
    return load_target(str(folder)), f"model:{fair}"


@pytest.fixture(scope="session")
def recorded(audit_models, tmp_path_factory):
    """recorded(**settings) -> a draft file of the tiny target; equal settings are recorded once."""
    from draft_runs import prompts, record

    target, fair = audit_models
    known = {}

    def make(**given):
        key = repr(sorted(given.items(), key=str))
        if key not in known:
            settings = {"drafter": fair, "length": 3, "branches": 1, "max_new_tokens": 20, **given}
            asked = settings.pop("prompts", None) or prompts(3)
            known[key] = record(target, asked, tmp_path_factory.mktemp("audited") / "run.parquet", **settings)
        return known[key]

    return make
