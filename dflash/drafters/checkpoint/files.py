"""The files of a checkpoint: configuration and tensors, from a folder or the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import huggingface_hub
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from dflash.drafters.checkpoint.errors import CheckpointUnreadable
from dflash.target.errors import NoSuchModel
from dflash.target.source import Source, find_source

_PATTERNS = ("*.json", "*.safetensors", "pytorch_model*.bin", "tokenizer*", "*.jinja")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as stored: `config` is its config.json, `tensors` are on the CPU, by name."""

    place: str
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def revision(self) -> str | None:
        """The hub's commit, for a checkpoint in its cache."""
        parts = self.folder.parts
        return parts[-1] if len(parts) > 1 and parts[-2] == "snapshots" else None


def find_folder(place: str) -> Path:
    """The folder of a checkpoint, fetched from the hub or its cache if it is no folder here.

    Raises:
        NoSuchModel: There is none.
    """
    source: Source = find_source(place, lambda stage, fraction: None)
    if source.folder is not None:
        return source.folder
    try:
        return Path(
            huggingface_hub.snapshot_download(
                source.place, allow_patterns=list(_PATTERNS), local_files_only=source.offline
            )
        )
    except (OSError, ValueError) as error:
        raise NoSuchModel(
            f"Expected a drafter's folder or a hub id that can be reached, found {place!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def read_config(place: str) -> dict[str, Any]:
    """A checkpoint's config.json.

    Raises:
        CheckpointUnreadable: It is missing, or no JSON object.
    """
    path = find_folder(place) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointUnreadable(place, f"config.json: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointUnreadable(place, "config.json holds no object")
    return config


def open_checkpoint(place: str, *, weights: bool = True) -> Checkpoint:
    """Read a checkpoint: safetensors, in shards or not, else `pytorch_model.bin`.

    Args:
        place: A folder or a hub id.
        weights: False for tensors of the right shape without content, on the meta device.

    Raises:
        NoSuchModel: There is no such place.
        CheckpointUnreadable: A file is missing or damaged.
    """
    folder = find_folder(place)
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(place, folder):
        try:
            tensors |= (
                _load_safetensors(path, weights) if path.suffix != ".bin" else _load_pickle(path, weights)
            )
        except (OSError, SafetensorError, RuntimeError, ValueError, UnpicklingError) as error:
            raise CheckpointUnreadable(place, f"{path.name}: {str(error).splitlines()[0]}") from error
    return Checkpoint(place, folder, read_config(place), tensors)


def _load_safetensors(path: Path, weights: bool) -> dict[str, Tensor]:
    if weights:
        return load_file(path)
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (no mapping)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _load_pickle(path: Path, weights: bool) -> dict[str, Tensor]:
    return dict(torch.load(path, map_location="cpu" if weights else "meta", weights_only=True))


def _weight_files(place: str, folder: Path) -> Iterator[Path]:
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        index = folder / f"{stem}.{suffix}.index.json"
        if index.is_file():
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            yield from (folder / shard for shard in shards)
            return
        if (folder / f"{stem}.{suffix}").is_file():
            yield folder / f"{stem}.{suffix}"
            return
    raise CheckpointUnreadable(place, "expected model.safetensors or pytorch_model.bin, found neither")
