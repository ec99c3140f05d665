"""Where a training stands, on disk: replaced whole, and refused by a training with other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dflash.training.errors import NothingToResume, OtherTraining

FILE = "checkpoint.pt"


def save_checkpoint(folder: Path, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Write `state` beside the one before, then put it in its place."""
    scratch = folder / f"{FILE}.part"
    torch.save({"state": dict(state), "identity": json.dumps(identity, sort_keys=True)}, scratch)
    scratch.replace(folder / FILE)


def load_checkpoint(folder: Path, identity: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The state that was saved last.

    Args:
        folder: Of the training.
        identity: Settings, target and data, which must be those of the checkpoint.
        device: Where to put tensors.

    Raises:
        NothingToResume: There is no checkpoint.
        OtherTraining: It belongs to another training.
    """
    path = folder / FILE
    if not path.is_file():
        raise NothingToResume(folder)
    stored = torch.load(path, map_location=device, weights_only=True)
    before, now = _flat(json.loads(stored["identity"])), _flat(json.loads(json.dumps(identity)))
    differing = {
        key: (before.get(key), now.get(key))
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    }
    if differing:
        raise OtherTraining(folder, differing)
    state: dict[str, Any] = stored["state"]
    return state


def _flat(facts: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found
