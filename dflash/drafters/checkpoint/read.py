"""Read a block drafter's checkpoint for a target, or say everything that keeps it from being used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from dflash.drafters.block.config import BlockConfig
from dflash.drafters.block.model import BlockDrafter, Borrowed
from dflash.drafters.checkpoint.errors import CheckpointRefused, UnknownLayout
from dflash.drafters.checkpoint.files import Checkpoint, open_checkpoint
from dflash.drafters.checkpoint.fit import target_mismatches, tensor_mismatches, tokenizer_mismatches
from dflash.drafters.checkpoint.layouts import Layout, recognise, renamed
from dflash.draftfile.canonical import canonical_json
from dflash.target.fingerprint import weights_digest
from dflash.target.load import Target
from dflash.target.quantise import Quantisation, quantise


class BlockCheckpoint(NamedTuple):
    """A drafter ready to draft, in the target's dtype, on its device, borrowing its tables; and its entry of
    the header.
    """

    model: BlockDrafter
    identity: dict[str, Any]


def read_block(
    place: str, target: Target, family: str | None = None, quantisation: Quantisation = "none"
) -> BlockCheckpoint:
    """Read a DFlash or DSpark checkpoint, in whatever public layout.

    Args:
        place: A folder or a hub id.
        target: The loaded target.
        family: `dflash` or `dspark`, where only one of them was asked for.
        quantisation: Weight-only quantisation of its own linear layers through torchao.

    Raises:
        NoSuchModel, CheckpointUnreadable: There are no such files.
        UnknownLayout: They are of another family.
        CheckpointRefused: Something does not fit; all of it is listed.
        UnsupportedQuantisation: The target's device has no kernels for it.
    """
    checkpoint = open_checkpoint(place)
    layout = _layout(checkpoint)
    tensors = renamed(checkpoint.tensors)
    config, mismatches = layout.read(checkpoint.config, tensors)
    # without its sizes there is nothing to hold tensors against
    if not mismatches:
        mismatches += tensor_mismatches(config, tensors)
    mismatches += target_mismatches(config, checkpoint.config, target)
    mismatches += tokenizer_mismatches(checkpoint.folder, target)
    if family is not None and config.family != family:
        mismatches.append(f"family: expected {family}, found {config.family}; use {config.family}:{place}")
    if mismatches:
        raise CheckpointRefused(place, layout.name, mismatches)
    model = build_block(config, tensors, target)
    found = BlockCheckpoint(model, _identity(model, checkpoint, layout.name))
    return found if quantisation == "none" else _quantised(found, quantisation)


def _quantised(plain: BlockCheckpoint, method: Quantisation) -> BlockCheckpoint:
    own = plain.model.config.own_head
    head = "output head included" if own else "the output head is the target's and stays as it is"
    copied = quantise(plain.model, method, head)
    changed = {"quantisation": copied.parameters, "weights_digest": copied.weights_digest}
    return BlockCheckpoint(copied.model, plain.identity | changed)


def read_drafts(place: str) -> int:
    """Tokens that a block of this checkpoint drafts.

    Raises:
        NoSuchModel, CheckpointUnreadable: There are no such files.
        UnknownLayout: They are of another family.
    """
    checkpoint = open_checkpoint(place, weights=False)
    return _layout(checkpoint).read(checkpoint.config, renamed(checkpoint.tensors))[0].drafts


def _layout(checkpoint: Checkpoint) -> Layout:
    layout = recognise(checkpoint.config, checkpoint.tensors)
    if layout is None:
        raise UnknownLayout(checkpoint.place, sorted(checkpoint.tensors))
    return layout


def build_block(config: BlockConfig, tensors: Mapping[str, Tensor], target: Target) -> BlockDrafter:
    """A drafter of these weights, ready to draft for a target."""
    model = BlockDrafter(config)
    model.load_state_dict({name: tensors[name] for name in model.state_dict()})
    model.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
    model.borrow(Borrowed.of(target.model))
    return model


def _identity(model: BlockDrafter, checkpoint: Checkpoint, layout: str) -> dict[str, Any]:
    return {
        "layout": layout,
        "revision": checkpoint.revision,
        "weights_digest": weights_digest(model),
        "config_digest": hashlib.sha256(canonical_json(checkpoint.config).encode()).hexdigest(),
        "dtype": str(model.fc.weight.dtype).removeprefix("torch."),
        "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
    }
