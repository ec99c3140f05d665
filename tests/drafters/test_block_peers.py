"""The block drafter computes what transformers' DFlash computes, round after round, on a growing cache."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant.configuration_muse_glimmer_assistant import (
    MuseGlimmerAssistantConfig,
)
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import (
    MuseGlimmerAssistantModel,
)

from dflash.drafters.block.cache import ContextCache
from dflash.drafters.block.masks import block_masks
from dflash.drafters.block.model import BlockDrafter, Borrowed
from dflash.drafters.checkpoint.files import open_checkpoint
from dflash.drafters.checkpoint.layouts import recognise, renamed

CASES = {
    "full": {"layer_types": ["full_attention"] * 2, "block_size": 4},
    "window": {"layer_types": ["sliding_attention", "full_attention"], "block_size": 5, "sliding_window": 3},
    "odd": {
        "layer_types": ["sliding_attention"] * 3,
        "sliding_window": 7,
        "block_size": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "target_layer_ids": [0, 3],
    },
}
COMMITS = (9, 1, 3, 2, 4)


def peer(case):
    torch.manual_seed(3)
    given = {
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mask_token_id": 30,
        "target_layer_ids": [0, 1, 2],
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "vocab_size": 31,
    }
    given |= CASES[case]
    given["num_hidden_layers"] = len(given["layer_types"])
    model = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**given)).eval()
    for name, value in model.named_parameters():
        value.data = torch.rand_like(value) + 0.5 if "norm" in name else torch.randn_like(value) * 0.2
    return model


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_hidden_states_are_those_of_transformers(tmp_path, case):
    theirs = peer(case)
    theirs.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    layout = recognise(checkpoint.config, checkpoint.tensors)
    assert layout.name == "transformers"
    tensors = renamed(checkpoint.tensors)
    config, mismatches = layout.read(checkpoint.config, tensors)
    assert mismatches == []
    ours = BlockDrafter(config).eval()
    ours.load_state_dict(tensors)
    table = torch.randn(31, 48)
    ours.borrow(Borrowed(table, torch.nn.Identity()))

    taps = torch.randn(1, sum(COMMITS), len(config.taps) * 48)
    cache, context, start = DFlashCache(config=theirs.config), ContextCache(1, 4), 0
    cache.activate_past_recording()
    for count in COMMITS:
        fresh = taps[:, start : start + count]
        anchor = start + count
        ids = torch.tensor([[5, *[30] * (config.block_size - 1)]])
        if start:
            cache.crop(-config.block_size)
        cache.set_previous_accepted_tokens(count)
        positions = torch.arange(start, anchor + config.block_size)[None]
        expected = theirs(table[ids], fresh, position_ids=positions, cache=cache).last_hidden_state

        positions = torch.arange(start, anchor)[None]
        context.append(0, ours.key_values(ours.context(fresh), positions))
        anchors = torch.tensor([[anchor]])
        masks = block_masks(config.layers, anchors, config.block_size, anchor)
        found = ours.blocks(ids[:, :1], anchors, context.read([0], anchor), masks)
        torch.testing.assert_close(found[:, 0], expected[:, 1:], atol=2e-5, rtol=1e-4)
        start = anchor
