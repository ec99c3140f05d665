"""Sizes follow the target; taps follow the families' own rule; the mask is a token that no text has."""

from __future__ import annotations

import pytest
import torch

from dflash.drafters.block.config import Slots
from dflash.drafters.checkpoint.layouts import spread_taps
from dflash.errors import UsageError
from dflash.training.errors import NoWarmStart
from dflash.training.run import new_drafter
from dflash.training.script import Headers
from dflash.training.settings import DrafterSettings, TrainSettings
from dflash.training.sizes import block_config, mask_token, usual_taps


def test_taps_of_the_default_target_are_the_published_ones():
    assert usual_taps(30) == (2, 9, 15, 21, 28)


@pytest.mark.parametrize("layers", [9, 12, 24, 28, 30, 36, 64])
def test_taps_spread_as_other_engines_assume(layers):
    assert usual_taps(layers) == tuple(layer + 1 for layer in spread_taps(layers, 5))


@pytest.mark.parametrize("layers", range(1, 9))
def test_shallow_targets_are_tapped_everywhere_but_at_their_end(layers):
    taps = usual_taps(layers)
    assert taps == tuple(sorted(set(taps)))
    assert min(taps) >= 1
    assert max(taps) < max(layers, 2)


@pytest.mark.parametrize(
    ("family", "slots", "block"), [("dflash", Slots.IN_PLACE, 5), ("dspark", Slots.NEXT, 4)]
)
def test_both_families_draft_as_many_tokens_as_asked(tiny, family, slots, block):
    config = block_config(tiny, DrafterSettings(family=family, layers=1, drafts=4))
    assert (config.slots, config.block_size, config.drafts) == (slots, block, 4)
    assert config.family == family


def test_the_mask_is_no_token_of_a_conversation(tiny):
    headers = Headers.of(tiny.tokenizer)
    mask = mask_token(tiny, None)
    assert mask not in {*headers.opening, *headers.after_user, *headers.after_answer, *tiny.eos}
    assert mask not in tiny.tokenizer(tiny.tokenizer.decode(range(256))).input_ids
    assert mask_token(tiny, 7) == 7
    with pytest.raises(UsageError, match="mask token below"):
        mask_token(tiny, 10**6)


def test_a_warm_start_has_the_targets_context_keys(tiny):
    """Behind its last tap, a warm drafter's context is what the target's own layer makes of it."""
    settings = TrainSettings(DrafterSettings(layers=1, taps=(1,)))
    drafter = new_drafter(tiny, settings)
    tokens = torch.arange(30)[None] * 7 % 256
    with torch.inference_mode():
        states = tiny.model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states[1]
        layer = tiny.model.get_decoder().layers[1]
        normed = layer.input_layernorm(states)
        context = drafter.context(states)
        ours = drafter.layers[0].self_attn
        torch.testing.assert_close(ours.v_proj(context), layer.self_attn.v_proj(normed), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.k_proj(context), layer.self_attn.k_proj(normed), atol=1e-4, rtol=1e-4)


def test_a_start_is_the_same_for_the_same_seed_alone(tiny):
    def weights(seed):
        wanted = DrafterSettings(family="dspark", layers=1, init="random")
        return new_drafter(tiny, TrainSettings(wanted, seed=seed)).state_dict()

    one, two, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


def test_more_layers_than_the_target_has_cannot_start_warm(tiny):
    with pytest.raises(NoWarmStart, match="--init random"):
        new_drafter(tiny, TrainSettings(DrafterSettings(layers=3)))
