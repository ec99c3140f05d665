"""The fused head of a block drafter gives what its logits over the target's vocabulary give."""

from __future__ import annotations

import block_models
import numpy as np
import pytest
import torch

from dflash.drafters.block.head import DraftHead
from dflash.drafters.block.model import BlockDrafter
from dflash.kernels.errors import DraftIdsRefused
from dflash.kernels.lm_head_call import Draw
from dflash.policy.noise import target_exponentials
from dflash.target.errors import NativeUnsupported
from dflash.target.sampling import topk

ORDERS = ["ascending", "descending"]


def reduced(tiny, order: str) -> BlockDrafter:
    """A drafter with a head of its own over 40 of the target's tokens, in some order."""
    model = block_models.drafter(tiny.model, "dflash", draft_vocabulary=40, own_head=True)
    ids = torch.arange(7, 7 + 5 * 40, 5)
    model.d2t.copy_((ids if order == "ascending" else ids.flip(0)) - torch.arange(40))
    return model


def slots_of(model: BlockDrafter, rows: int = 6) -> torch.Tensor:
    return torch.randn((rows, model.config.hidden_size), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("order", ORDERS)
@torch.inference_mode()
def test_a_reduced_vocabulary_is_that_of_the_spread_logits(tiny, order: str) -> None:
    model = reduced(tiny, order)
    hidden = slots_of(model)
    logits = model.spread(model.logits(hidden))
    wanted = torch.tensor([[7, 8, 202]] * 6, dtype=torch.int32)
    found = DraftHead.of("reduced", model).score(hidden, 5, asked=wanted, impl="reference")
    values, ids = topk(logits, 5)
    assert found.ids.tolist() == ids.tolist()
    torch.testing.assert_close(found.values, values)
    torch.testing.assert_close(found.lse, logits.logsumexp(-1))
    torch.testing.assert_close(found.asked, logits[:, [7, 8, 202]])
    assert (found.asked[:, 1] == -torch.inf).all()


@torch.inference_mode()
def test_shared_draws_race_on_the_noise_of_the_target(tiny) -> None:
    model = reduced(tiny, "ascending")
    hidden = slots_of(model)
    keys = torch.arange(12, dtype=torch.int32).view(6, 2)
    positions = torch.arange(100, 106, dtype=torch.int32)
    draw = Draw(torch.ones(6), keys, positions)
    choice = DraftHead.of("reduced", model).score(hidden, 1, draw=draw, impl="reference").choice
    logits = model.spread(model.logits(hidden)).double().numpy()
    vocabulary = logits.shape[1]
    for row in range(6):
        noise = target_exponentials((2 * row, 2 * row + 1), 100 + row, vocabulary)
        assert int(choice.token[row]) == int(np.argmax(logits[row] - np.log(noise)))


@torch.inference_mode()
def test_a_borrowed_head_is_not_copied(tiny) -> None:
    model = block_models.drafter(tiny.model, "dflash", logit_scale=0.5)
    head = DraftHead.of("dflash", model)
    assert head.weight.data_ptr() == tiny.model.get_output_embeddings().weight.data_ptr()
    hidden = slots_of(model)
    found = head.score(hidden, 3, asked=torch.tensor([[4]] * 6), impl="reference")
    torch.testing.assert_close(found.values, model.logits(hidden).topk(3).values)
    torch.testing.assert_close(found.asked[:, 0], model.logits(hidden)[:, 4])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("dspark", "token before"), ("dflash-wide", "soft-capped")],
    ids=["Markov", "softcap"],
)
def test_what_does_not_fit_is_listed(tiny, kind: str, reason: str) -> None:
    with pytest.raises(NativeUnsupported, match=reason):
        DraftHead.of(kind, block_models.drafter(tiny.model, kind))


def test_two_rows_for_one_token_are_refused(tiny) -> None:
    model = reduced(tiny, "ascending")
    model.d2t[1] -= 5
    with pytest.raises(DraftIdsRefused, match="row 1"):
        DraftHead.of("twice", model)
