"""Whether tensors fit a configuration, and a drafter fits a target: every mismatch, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from dflash.drafters.block.config import BlockConfig
from dflash.drafters.block.model import BlockDrafter
from dflash.target.load import Target
from dflash.target.tokenizer_digest import tokenizer_digest


def tensor_mismatches(config: BlockConfig, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Tensors that are missing, misshapen, or that nothing claims."""
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in BlockDrafter(config).state_dict().items()}
    for name, shape in expected.items():
        if name not in tensors:
            yield f"tensors: expected {name} {list(shape)}, found none"
        elif tuple(tensors[name].shape) != shape:
            yield f"tensors: expected {name} {list(shape)}, found {list(tensors[name].shape)}"
    yield from _draft_vocabulary_mismatches(config, tensors)
    # t2d says the same as d2t, by target token
    claimed = {*expected, "t2d"} if config.draft_vocabulary is not None else set(expected)
    for name in sorted(set(tensors) - claimed):
        yield f"tensors: {name} {list(tensors[name].shape)} belongs to nothing that is known here"


def _draft_vocabulary_mismatches(config: BlockConfig, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    if config.draft_vocabulary is None:
        return
    if not config.own_head:
        yield f"tensors: expected lm_head.weight for {config.draft_vocabulary} draft tokens, found none"
    if "d2t" in tensors and len(tensors["d2t"]) == config.draft_vocabulary:
        ids = torch.arange(config.draft_vocabulary) + tensors["d2t"]
        if len(ids.unique()) < len(ids) or ids.min() < 0 or ids.max() >= config.vocabulary:
            yield f"tensors: expected d2t to give each draft token its own id below {config.vocabulary}"


def target_mismatches(config: BlockConfig, facts: Mapping[str, Any], target: Target) -> Iterator[str]:
    """What of the target differs from the one that the drafter was made for."""
    text = target.model.config.get_text_config()
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    vocabulary = int(text.vocab_size)
    # 0 stands for what the configuration does not say
    if config.target_hidden_size not in (0, hidden):
        yield f"hidden size: expected {config.target_hidden_size}, found {hidden} in {target.name}"
    if config.hidden_size not in (0, hidden) and not (config.own_embedding and config.own_head):
        yield (
            f"hidden size: a drafter of width {config.hidden_size} cannot borrow the embeddings and the "
            f"output head of {target.name}, of width {hidden}"
        )
    if config.vocabulary not in (0, vocabulary):
        yield f"vocabulary: expected {config.vocabulary}, found {vocabulary} in {target.name}"
    if not 0 <= config.mask_token < vocabulary:
        yield f"mask token: expected an id from 0 to {vocabulary - 1}, found {config.mask_token}"
    stated = facts.get("num_target_layers")
    if stated is not None and stated != layers:
        yield f"layers: expected a target of {stated}, found {layers} in {target.name}"
    missing = [tap for tap in config.taps if not 0 <= tap <= layers]
    if missing:
        yield f"taps: expected hidden states {missing}, found 0 to {layers} in {target.name}"


def tokenizer_mismatches(folder: Path, target: Target) -> Iterator[str]:
    """A tokenizer beside the weights that is not the target's; most checkpoints have none."""
    if not (folder / "tokenizer.json").is_file():
        return
    own = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if tokenizer_digest(own) != target.tokenizer_identity["digest"]:
        yield f"tokenizer: the one beside the weights is not that of {target.name}"
