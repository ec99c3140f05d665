"""Who a model is: digests of weights, configuration, tokenizer and chat template.

Two models with equal digests give equal logits; design and header use the names of this module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.draftfile.canonical import digest_of
from dflash.target.tokenizer_digest import tokenizer_digest

DIGESTS = "dflash.digests.json"
CARD = "dflash.json"

# what changes with the version or the call, but not the function that is computed
_VOLATILE_CONFIG = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures")


def weights_digest(module: torch.nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of every stored tensor, in order of names.

    A tied tensor counts once, under its first name. A quantised tensor counts as the plain tensors it
    is made of, named `name.inner`.
    """
    digest = hashlib.sha256()
    for name, tensor in _stored_tensors(module):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(json.dumps([name, kind, list(tensor.shape)]).encode() + b"\n")
        digest.update(_raw(tensor))
    return digest.hexdigest()


def _stored_tensors(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for name, tensor in sorted(module.state_dict(keep_vars=True).items()):
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield from _plain_tensors(name, tensor.detach())


def _plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    inner, _ = tensor.__tensor_flatten__()
    for part in sorted(inner):
        yield from _plain_tensors(f"{name}.{part}", getattr(tensor, part))


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def config_digest(config: Any) -> str:
    """SHA-256 of a transformers configuration, without what a version or a call adds to it."""
    facts = json.loads(config.to_json_string(use_diff=True))
    return digest_of({key: value for key, value in facts.items() if key not in _VOLATILE_CONFIG})


def template_digest(tokenizer: Any) -> str | None:
    """SHA-256 of the chat template, or None for a tokenizer without one."""
    template = getattr(tokenizer, "chat_template", None)
    return digest_of(template) if template else None


def tokenizer_identity(tokenizer: Any, padded_vocabulary: int) -> dict[str, Any]:
    """The header's `tokenizer` entry; `padded_vocabulary` counts the rows of the output layer."""
    return {
        "digest": tokenizer_digest(tokenizer),
        "vocab_size": len(tokenizer),
        "padded_vocab_size": padded_vocabulary,
        "template_digest": template_digest(tokenizer),
    }


def model_identity(name: str, model: Any, folder: Path | None, *, trust_cache: bool = True) -> dict[str, Any]:
    """The header's entry for a loaded model.

    Args:
        name: What the user called it.
        model: A transformers model, its weights as loaded.
        folder: Where its files lie; None for a hub id.
        trust_cache: Reuse the digest stored beside the weights if no file's size or time changed. False
            hashes again, which also sees a file that was swapped for one of equal size and time.
    """
    return {
        "name": name,
        "revision": getattr(model.config, "_commit_hash", None),
        "weights_digest": _cached_weights_digest(model, folder, trust_cache),
        "config_digest": config_digest(model.config),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantisation": _stored_quantisation(model.config, folder),
        "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
    }


def _stored_quantisation(config: Any, folder: Path | None) -> dict[str, Any] | None:
    if folder is not None and (folder / CARD).is_file():
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        return dict(card["quantisation"])
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    facts = dict(stored) if isinstance(stored, Mapping) else json.loads(stored.to_json_string(use_diff=False))
    return {"method": str(facts.get("quant_method")), **facts}


def _cached_weights_digest(model: Any, folder: Path | None, trust_cache: bool) -> str:
    if folder is None:
        return weights_digest(model)
    key = digest_of([str(model.dtype), _file_facts(folder)])
    known = _read_digests(folder / DIGESTS)
    if trust_cache and key in known:
        return known[key]
    digest = weights_digest(model)
    # facts taken again: files that changed under the load must not get its digest
    unchanged = digest_of([str(model.dtype), _file_facts(folder)]) == key
    if unchanged and known.get(key) != digest and os.access(folder, os.W_OK):
        _write_digests(folder / DIGESTS, {key: digest})
    return digest


def _file_facts(folder: Path) -> list[list[Any]]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(DIGESTS))
    return [[path.name, path.stat().st_size, str(path.stat().st_mtime_ns)] for path in files]


def _read_digests(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _write_digests(path: Path, new: Mapping[str, str]) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(_read_digests(path) | dict(new)), encoding="utf-8")
    scratch.replace(path)
