"""The native steps on a device: real dtypes, graphs, chained launches, the same bits whatever the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from dflash.drafters.block.masks import block_masks
from dflash.target.model import TrunkModel
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import Way
from dflash.target.scratch import LaneRows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# the widths of Llama-3.2-1B and Qwen3-0.6B
LLAMA = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 8192,
}  # fmt: skip
QWEN3 = LLAMA | {
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "head_dim": 128,
}  # fmt: skip
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**QWEN3)),
}


def make(kind: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return MODELS[kind]().to("cuda", dtype).eval().requires_grad_(False)


def tree(nodes: int, seed: int) -> tuple[list[int], list[int]]:
    g = torch.Generator().manual_seed(seed)
    parents = [-1, *(int(torch.randint(0, i, (), generator=g)) for i in range(1, nodes))]
    return torch.randint(0, 32000, (nodes,), generator=g).tolist(), parents


def prompt(length: int) -> list[int]:
    return [31 * i % 32000 for i in range(length)]


def score(trunk: TrunkModel, prompts: list[int], trees: list[Any]) -> list[Any]:
    for lane, length in enumerate(prompts):
        trunk.append(lane, prompt(length))
    return trunk.score([LaneRows(lane, *each) for lane, each in enumerate(trees)])


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_taps_are_nearer_to_float32_than_the_dtype_explains(kind: str, dtype: torch.dtype) -> None:
    model = make(kind, dtype)
    prompts, trees = [700, 70, 300], [tree(17, 0), tree(9, 1), tree(30, 2)]
    taps = (1, 3, 4)
    native = NativeTrunk("random", model, lanes=3, taps=taps)
    found = score(native, prompts, trees)
    assert native.native == 1
    generic = score(TrunkModel(model, lanes=3, taps=taps), prompts, trees)
    exact = score(TrunkModel(make(kind, torch.float32), lanes=3, taps=taps), prompts, trees)
    for ours, theirs, true in zip(found, generic, exact, strict=True):
        for name in ("logits", "taps"):
            own, other, law = (getattr(rows, name) for rows in (ours, theirs, true))
            assert not own.isnan().any()
            assert error(own, law) <= 1.5 * error(other, law) + 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_prompts_in_pieces_are_as_near_to_float32(kind: str, dtype: torch.dtype) -> None:
    """One graph a size, the pieces of a prompt side by side."""
    model, exact = make(kind, dtype), make(kind, torch.float32)
    taps, lengths = (1, 3, 4), (30, 100, 200, 500, 900)
    native = NativeTrunk("random", model, lanes=5, taps=taps, prefills=True)
    generic, law = (TrunkModel(each, lanes=5, taps=taps) for each in (model, exact))
    for lane, length in enumerate(lengths):
        found, other, true = (trunk.append(lane, prompt(length)) for trunk in (native, generic, law))
        for name in ("logits", "taps"):
            own, theirs, best = (getattr(rows, name) for rows in (found, other, true))
            assert not own.isnan().any()
            assert error(own, best) <= 1.5 * error(theirs, best) + 1e-3
    trees = [tree(9, lane) for lane in range(5)]
    scored = [
        trunk.score([LaneRows(lane, *each) for lane, each in enumerate(trees)])
        for trunk in (native, generic, law)
    ]
    for mine, theirs, best in zip(*scored, strict=True):
        assert error(mine.logits, best.logits) <= 1.5 * error(theirs.logits, best.logits) + 1e-3


def test_replay_exact_prompts_have_the_same_bits_in_every_lane_and_cache() -> None:
    model = make("llama", torch.bfloat16)
    way, lengths = Way("replay-exact"), (30, 100, 300, 700)
    found = []
    for lanes, capacity, lane in ((1, 1024, 0), (4, 1024, 3), (2, 2048, 0)):
        trunk = NativeTrunk("random", model, lanes, capacity, (2,), way, prefills=True)
        rows = []
        for length in lengths:
            trunk.reset(lane)
            rows.append(trunk.append(lane, prompt(length)))
        found.append(rows)
    for rows in found[1:]:
        for mine, theirs in zip(rows, found[0], strict=True):
            assert torch.equal(mine.logits, theirs.logits)
            assert torch.equal(mine.taps, theirs.taps)


def test_commits_and_growing_caches_are_followed_by_the_graphs() -> None:
    model = make("llama", torch.bfloat16)
    native, generic = NativeTrunk("random", model, capacity=128), TrunkModel(model, capacity=128)
    native.append(0, prompt(100))
    generic.append(0, prompt(100))
    for step in range(12):
        rows = LaneRows(0, *tree(12, step))
        found, expected = native.score([rows])[0].logits, generic.score([rows])[0].logits
        assert error(found, expected) <= 2e-2
        path = [0]
        for node, parent in enumerate(rows.parents):
            if parent == path[-1]:
                path.append(node)
        native.commit(0, path)
        generic.commit(0, path)
    assert native.cache.capacity > 128


def test_replay_exact_gives_the_same_bits_whatever_the_batch() -> None:
    model = make("qwen3", torch.bfloat16)
    prompts, trees = [700, 70, 2000, 300], [tree(17, 0), tree(9, 1), tree(30, 2), tree(1, 3)]
    way = Way("replay-exact")
    together = score(NativeTrunk("random", model, lanes=4, taps=(2,), way=way), prompts, trees)
    for batch in ([0], [2], [3, 1], [2, 0, 1]):
        trunk = NativeTrunk("random", model, lanes=len(batch), taps=(2,), way=way)
        part = score(trunk, [prompts[i] for i in batch], [trees[i] for i in batch])
        for lane, rows in zip(batch, part, strict=True):
            assert torch.equal(rows.logits, together[lane].logits)
            assert torch.equal(rows.taps, together[lane].taps)


def test_chained_launches_change_no_bit() -> None:
    model = make("llama", torch.bfloat16)
    prompts, trees = [700, 70], [tree(17, 0), tree(9, 1)]
    first, second = (
        score(NativeTrunk("random", model, lanes=2, way=Way(pdl=pdl)), prompts, trees)
        for pdl in (True, False)
    )
    for chained, plain in zip(first, second, strict=True):
        assert torch.equal(chained.logits, plain.logits)


def test_blocks_of_a_drafter_equal_the_torch_module() -> None:
    from dflash.bench.step_shapes import make_drafter
    from dflash.drafters.block.native import BlockStep, Place
    from dflash.target.native_layers import KeyValue

    target = make("llama", torch.bfloat16)
    drafter = make_drafter(target, 8)
    config = drafter.config
    shape = (2, config.kv_heads, 800, config.head_dim)
    g = torch.Generator(device="cuda").manual_seed(0)
    cache = [
        KeyValue(*torch.randn((2, *shape), generator=g, device="cuda").bfloat16()) for _ in config.layers
    ]
    places = [Place(1, 7, 600), Place(0, 9, 33)]
    step = BlockStep("random", drafter, head=True)
    taps = torch.randn((9, drafter.fc.in_features), generator=g, device="cuda").bfloat16()
    step.append(1, taps, 591, cache)
    with torch.inference_mode():
        law = drafter.key_values(drafter.context(taps[None]), torch.arange(591, 600, device="cuda")[None])
    for pair, rows in zip(cache, law, strict=True):
        assert error(pair.keys[1, :, 591:600], rows.keys[0]) <= 2e-2
        assert error(pair.values[1, :, 591:600], rows.values[0]) <= 2e-2
    for _ in range(3):
        output = step.blocks(places, cache)
    for lane, token, position in places:
        anchor = torch.tensor([[position]], device="cuda")
        masks = block_masks(config.layers, anchor, 8, position)
        past = [KeyValue(*(store[lane : lane + 1, :, :position] for store in pair)) for pair in cache]
        with torch.inference_mode():
            hidden = drafter.blocks(torch.tensor([[token]], device="cuda"), anchor, past, masks)[0, 0]
            logits = drafter.logits(hidden)
        assert error(output.hidden[lane], hidden) <= 2e-2
        assert error(output.logits[lane], logits) <= 2e-2
