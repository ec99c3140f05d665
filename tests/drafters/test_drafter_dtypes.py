"""A block drafter in a narrow dtype rounds its weights and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch

from dflash.bench.step_shapes import make_drafter, make_target
from dflash.bench.step_ways import DraftCase, KeyValue

SMALL = {"num_hidden_layers": 2, "vocab_size": 300, "intermediate_size": 128}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.inference_mode()
def test_a_cast_drafter_is_one_with_rounded_weights_at_far_rows_too(dtype: torch.dtype) -> None:
    target = make_target("smollm2-135m", "cpu", torch.float32, **SMALL)
    rounded = make_drafter(target, 5)
    cast = copy.deepcopy(rounded).to(dtype).float()
    rounded.load_state_dict({name: value.to(dtype) for name, value in rounded.state_dict().items()})
    config = rounded.config
    cache = [KeyValue(*torch.randn(2, 1, config.kv_heads, 3000, config.head_dim)) for _ in config.layers]
    found, expected = (DraftCase(model, target, 2990, cache).blocks()() for model in (cast, rounded))
    assert torch.equal(found, expected)
