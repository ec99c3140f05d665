"""Drafts of z-lab's and speculators' own code, committed as vectors (`make parity`), are computed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from dflash.drafters.block.cache import ContextCache
from dflash.drafters.block.masks import block_masks
from dflash.drafters.block.model import BlockDrafter, Borrowed
from dflash.drafters.checkpoint.fit import tensor_mismatches
from dflash.drafters.checkpoint.layouts import recognise, renamed

VECTORS = sorted((Path(__file__).parents[1] / "vectors" / "drafters").glob("*.safetensors"))


def read(path):
    """The stored checkpoint's configuration, and its tensors, inputs and outputs."""
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["peer"])["config"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    parts = ("weights", "inputs", "outputs")
    split = [
        {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(part)}
        for part in parts
    ]
    return config, *split


def load(config, weights, inputs):
    layout = recognise(config, weights)
    tensors = renamed({name: value.to(value.dtype) for name, value in weights.items()})
    found, mismatches = layout.read(config, tensors)
    assert [*mismatches, *tensor_mismatches(found, tensors)] == []
    model = BlockDrafter(found).eval()
    model.load_state_dict({name: tensors[name] for name in model.state_dict()})
    model.borrow(Borrowed(inputs["embedding"], lambda rows: rows @ inputs["head"].T))
    return layout.name, model


@torch.inference_mode()
def drafted(model, inputs):
    """Scores of every slot of every anchor's block, on a context that grows from anchor to anchor."""
    cache, found = ContextCache(1, 2), []
    for anchor, before in zip(inputs["anchors"].tolist(), inputs["before"], strict=True):
        start = cache.lengths[0]
        context = model.context(inputs["taps"][None, start:anchor])
        cache.append(0, model.key_values(context, torch.arange(start, anchor)[None]))
        anchors = torch.tensor([[anchor]])
        masks = block_masks(model.config.layers, anchors, model.config.block_size, anchor)
        hidden = model.blocks(before[None, :1], anchors, cache.read([0], anchor), masks)[0, 0]
        logits, state, slots = model.logits(hidden), None, []
        for slot, token in enumerate(before):
            slots.append(model.slot(hidden[slot], logits[slot], token, state))
            state = slots[-1].state
        found.append(slots)
    return found


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_log_q_is_the_peers(path):
    config, weights, inputs, outputs = read(path)
    name, model = load(config, weights, inputs)
    assert name == path.stem.split("-")[0].replace("zlab", "z-lab")
    found = drafted(model, inputs)
    law = torch.stack([torch.stack([slot.logits for slot in slots]) for slots in found]).log_softmax(-1)
    torch.testing.assert_close(law, outputs["log_q"], atol=5e-5, rtol=1e-4)
    assert torch.equal(law.argmax(-1), outputs["log_q"].argmax(-1))
    if "confidence" in outputs:
        confidence = torch.stack([torch.stack([slot.confidence for slot in slots]) for slots in found])
        torch.testing.assert_close(confidence, outputs["confidence"], atol=5e-5, rtol=1e-4)


def test_there_are_vectors_of_every_peer():
    assert len(VECTORS) == 13
    assert {path.stem.split("-")[0] for path in VECTORS} == {"zlab", "speculators"}
