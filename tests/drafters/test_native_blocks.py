"""The native step of block drafters gives the hidden states of the torch module, and so the same drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import block_models
import draft_runs
import pytest
import torch

from dflash.drafters.block.cache import ContextCache
from dflash.drafters.block.config import Convolution, LayerMask
from dflash.drafters.block.masks import block_masks
from dflash.drafters.block.model import BlockDrafter
from dflash.drafters.block.native import BlockStep, Place
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.target.errors import NativeUnsupported
from dflash.target.native_layers import Way

REFERENCE = Way(impl="reference")
WIDE = {"head_dim": 64, "heads": 3, "kv_heads": 1, "layers": (LayerMask(), LayerMask(causal=True))}
KINDS = {
    "dflash": WIDE,
    "dspark": WIDE | {"embedding_scale": 3.0},
    "dspark-rnn": WIDE | {"own_mask": True, "attention_bias": True, "mask_token": 10**6},
}


def make(target: Any, kind: str, **given: Any) -> BlockDrafter:
    model = block_models.drafter(target, kind, **KINDS[kind] | given).eval().requires_grad_(False)
    if model.mask_embedding is not None:
        model.mask_embedding.data.normal_()
    return model


@torch.inference_mode()
def contexts(model: BlockDrafter, lengths: list[int]) -> ContextCache:
    """Contexts of random taps, one a lane."""
    cache = ContextCache(len(lengths), 4)
    taps = torch.randn(1, max(lengths), model.fc.in_features, generator=torch.Generator().manual_seed(3))
    for lane, length in enumerate(lengths):
        if length:
            context = model.context(taps[:, :length].to(model.fc.weight.dtype))
            cache.append(lane, model.key_values(context, torch.arange(length)[None]))
    return cache


@torch.inference_mode()
def expected_block(model: BlockDrafter, cache: ContextCache, place: Place) -> torch.Tensor:
    """The drafting slots of one block by the torch module."""
    anchor = torch.tensor([[place.position]])
    masks = block_masks(model.config.layers, anchor, model.config.block_size, place.position)
    past = cache.read([place.lane], place.position)
    return model.blocks(torch.tensor([[place.token]]), anchor, past, masks)[0, 0]


def check(model: BlockDrafter, way: Way, lengths: list[int], places: list[Place]) -> None:
    cache = contexts(model, lengths)
    expected = [expected_block(model, cache, place) for place in places]
    step = BlockStep("tiny", model, head=True, way=way)
    output = step.blocks(places, cache.whole(max(lengths) + model.config.block_size))
    for place, hidden in zip(places, expected, strict=True):
        found = output.hidden[place.lane, model.config.first_slot :]
        torch.testing.assert_close(found, hidden, atol=2e-5, rtol=2e-4)
        logits = output.logits[place.lane, model.config.first_slot :]
        torch.testing.assert_close(logits, model.logits(hidden), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_ragged_lanes_equal_the_module(tiny: Any, kind: str) -> None:
    places = [Place(2, 40, 70), Place(0, 41, 5)]
    check(make(tiny.model, kind), REFERENCE, [5, 9, 70], places)


def test_the_same_blocks_through_the_interpreter(tiny: Any, interpreted: None) -> None:
    check(make(tiny.model, "dflash"), Way(), [66, 3], [Place(0, 40, 66), Place(1, 50, 3)])


def test_the_best_tokens_of_blocks_are_those_of_their_logits(tiny: Any) -> None:
    model = make(tiny.model, "dflash")
    places = [Place(0, 40, 9), Place(1, 41, 6)]
    found = []
    for options in ({"head": True}, {"top": 5}, {"head": True, "top": 5}):
        cache = contexts(model, [9, 6])
        step = BlockStep("tiny", model, way=REFERENCE, **options)
        found.append(step.blocks(places, cache.whole(9 + model.config.block_size)))
    assert found[1].hidden is None
    logits = found[0].logits.flatten(0, 1)
    for output in found[1:]:
        torch.testing.assert_close(output.best.values, logits.topk(5).values, atol=2e-5, rtol=2e-4)
        torch.testing.assert_close(output.best.lse, logits.logsumexp(-1), atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(found[2].hidden, found[0].hidden)


def test_a_second_block_follows_what_was_committed(tiny: Any) -> None:
    """Rows that a block left behind the context are written over, not seen."""
    model = make(tiny.model, "dspark")
    cache = contexts(model, [6])
    step = BlockStep("tiny", model, way=REFERENCE)
    step.blocks([Place(0, 40, 6)], cache.whole(20))
    with torch.inference_mode():
        context = model.context(torch.randn(1, 2, model.fc.in_features))
        cache.append(0, model.key_values(context, torch.tensor([[6, 7]])))
    place = Place(0, 33, 8)
    found = step.blocks([place], cache.whole(20)).hidden[0, model.config.first_slot :]
    torch.testing.assert_close(found, expected_block(model, cache, place), atol=2e-5, rtol=2e-4)


class _Counting(BlockStep):
    """Counts its steps."""

    count = 0

    def blocks(self, places: Sequence[Place], cache: Any) -> Any:
        self.count += 1
        return super().blocks(places, cache)


def test_a_recording_with_native_blocks_is_the_same(tiny: Any, tmp_path: Path) -> None:
    """Dense rows too, whose anchors stand in the middle of a context and take the generic way."""
    folder = tmp_path / "drafter"
    public = {"layers": (LayerMask(), LayerMask()), "embedding_scale": 1.0}
    block_models.write_block(make(tiny.model, "dspark", **public), folder, 2)
    found = []
    for native in (False, True):
        output = tmp_path / f"{native}.parquet"
        run = draft_runs.session(
            tiny, output, drafter=f"dspark:{folder}", length=3, branches=2, dense=True, max_new_tokens=8
        )
        step = _Counting("tiny", run.drafter.model, way=REFERENCE)
        run.drafter.native = step if native else None
        assert (run.drafter.header().get("impl") == "native") == native
        entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(2))
        run.record(run.conversations(entries, check=True))
        assert 0 < step.count < run.drafter.work.forwards if native else step.count == 0
        found.append([(row["node_token"], row["accepted_nodes"]) for row in draft_runs.rows(output)])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_contexts_are_those_of_the_module(tiny: Any, kind: str) -> None:
    model = make(tiny.model, kind)
    step = BlockStep("tiny", model, way=REFERENCE)
    taps = torch.randn(9, model.fc.in_features)
    expected = model.key_values(model.context(taps[None]), torch.arange(4, 13)[None])
    cache = ContextCache(2, 4)
    cache.lengths[1] = 4
    stores = cache.extend(1, 9, step.empty_rows())
    step.append(1, taps, 4, stores)
    assert cache.lengths == [0, 13]
    for store, law in zip(stores, expected, strict=True):
        for found, rows in zip(store, law, strict=True):
            torch.testing.assert_close(found[1, :, 4:13], rows[0], atol=1e-5, rtol=1e-4)
            assert not found[0].any()


REFUSED = {
    "window": {"layers": (LayerMask(6), LayerMask())},
    "convolutions": {"convolution": Convolution(2, 16)},
    "heads have 8": {"head_dim": 8},
    "serves 12 heads": {"heads": 12},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_fit_is_refused(tiny: Any, reason: str) -> None:
    with pytest.raises(NativeUnsupported, match=reason):
        BlockStep("tiny", make(tiny.model, "dflash", **REFUSED[reason]))
