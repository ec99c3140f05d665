"""The native step gives every node of every tree the logits and taps of a plain transformers forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st

from dflash.target.errors import NativeUnsupported
from dflash.target.lane_prefill import CHUNK, PIECES, chunks
from dflash.target.llama_step import LlamaStep
from dflash.target.model import TrunkModel
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import Way
from dflash.target.scratch import LaneRows
from dflash.target.step_graphs import StepGraphs

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
ROPE = {
    "llama3": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    },
}  # fmt: skip
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL)),
    "llama3-bias": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SMALL | {"attention_bias": True, "rope_parameters": ROPE["llama3"]})
    ),
    "qwen2": lambda: tf.Qwen2ForCausalLM(
        tf.Qwen2Config(**SMALL | {"hidden_size": 192, "tie_word_embeddings": True})
    ),
    "qwen3": lambda: tf.Qwen3ForCausalLM(
        tf.Qwen3Config(**SMALL | {"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2})
    ),
    "mistral-yarn": lambda: tf.MistralForCausalLM(
        tf.MistralConfig(**SMALL | {"head_dim": 96, "sliding_window": None, "rope_parameters": ROPE["yarn"]})
    ),
}
REFERENCE = Way(impl="reference")


def make(kind: str) -> Any:
    torch.manual_seed(0)
    return varied(MODELS[kind]())


def varied(model: Any) -> Any:
    """The model with norms and biases that are not all alike."""
    model = model.eval().requires_grad_(False)
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data = 0.5 + torch.rand_like(value)
        elif "bias" in name:
            value.data = 0.1 * torch.randn_like(value)
    return model


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


def random_tree(nodes: int, seed: int, vocabulary: int = 97) -> tuple[list[int], list[int]]:
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocabulary, (nodes,), generator=g).tolist()
    return tokens, [int(torch.randint(-1, i, (), generator=g)) if i else -1 for i in range(nodes)]


def path_of(tokens: list[int], parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


def plain(model: Any, tokens: list[int], taps: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and taps of the last of some tokens, each forward by itself."""
    with torch.inference_mode():
        output = model(torch.tensor([tokens], device=model.device), output_hidden_states=True)
    states = [output.hidden_states[tap][0, -1] for tap in taps]
    return output.logits[0, -1], torch.cat(states) if states else torch.empty(0)


def check_trees(
    model: Any, trunk: NativeTrunk, prompts: list[list[int]], nodes: int, taps: tuple[int, ...],
    tolerance: dict[str, float], every: int = 1,
) -> None:  # fmt: skip
    """Score a random tree on every prompt at once; compare its nodes with plain forwards."""
    vocabulary = int(model.config.vocab_size)
    trees = [random_tree(nodes - lane, 7 * lane + nodes, vocabulary) for lane in range(len(prompts))]
    for lane, prompt in enumerate(prompts):
        trunk.append(lane, prompt)
    before = trunk.native
    scored = trunk.score([LaneRows(lane, *tree) for lane, tree in enumerate(trees)])
    assert trunk.native == before + 1
    for prompt, (tokens, parents), rows in zip(prompts, trees, scored, strict=True):
        for node in range(0, len(tokens), every):
            logits, states = plain(model, prompt + path_of(tokens, parents, node), taps)
            torch.testing.assert_close(rows.logits[node], logits, **tolerance)
            if taps:
                torch.testing.assert_close(rows.taps[node], states, **tolerance)


def test_ragged_lanes_of_random_trees_equal_plain_forwards(model: Any) -> None:
    taps = (0, 1, 3)
    trunk = NativeTrunk("tiny", model, lanes=3, capacity=8, taps=taps, way=REFERENCE)
    prompts = [list(range(lane * 40 + 3)) for lane in range(3)]
    prompts = [[token % 97 for token in prompt] for prompt in prompts]
    check_trees(model, trunk, prompts, 11, taps, {"atol": 2e-5, "rtol": 2e-4})


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_same_through_the_interpreter(kind: str, interpreted: None) -> None:
    model = make(kind)
    trunk = NativeTrunk("tiny", model, lanes=2, capacity=128, taps=(2,))
    prompts = [[i % 97 for i in range(length)] for length in (65, 110)]
    check_trees(model, trunk, prompts, 9, (2,), {"atol": 2e-5, "rtol": 2e-4}, every=4)


def test_levels_of_a_tree_may_come_one_by_one_and_a_path_is_committed(model: Any) -> None:
    trunk = NativeTrunk("tiny", model, way=REFERENCE)
    tokens, parents = random_tree(9, 1)
    trunk.append(0, list(range(20)))
    rows = [trunk.score([LaneRows(0, tokens[i : i + 3], parents[i : i + 3])])[0] for i in (0, 3, 6)]
    logits = torch.cat([part.logits for part in rows])
    for node in range(9):
        expected = plain(model, [*range(20), *path_of(tokens, parents, node)], ())[0]
        torch.testing.assert_close(logits[node], expected, atol=2e-5, rtol=2e-4)
    path: list[int] = []
    node = 8
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    trunk.commit(0, path)
    after = [*range(20), *(tokens[i] for i in path)]
    found = trunk.append(0, [4, 9]).logits[0]
    torch.testing.assert_close(found, plain(model, [*after, 4, 9], ())[0], atol=2e-5, rtol=2e-4)


def test_rows_in_the_middle_of_a_trunk_and_large_trees_take_the_generic_way() -> None:
    model = make("llama")
    native = NativeTrunk("tiny", model, way=REFERENCE)
    generic = TrunkModel(model)
    for trunk in (native, generic):
        trunk.append(0, list(range(80)))
    chain = LaneRows(0, [1] * 65, [i - 1 for i in range(65)])
    for rows in (LaneRows(0, [1, 2], [-1, -1], [40, 60]), chain):
        before = native.native
        found, expected = (trunk.score([rows])[0].logits for trunk in (native, generic))
        assert native.native == before
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-4)
        native.drop_nodes(0)
        generic.drop_nodes(0)


def test_packing_leaves_the_model_as_it_was(model: Any) -> None:
    before = model(torch.arange(9)[None]).logits
    weights = {name: value.clone() for name, value in model.named_parameters()}
    step = NativeTrunk("tiny", model, way=REFERENCE).step
    assert all(torch.equal(value, weights[name]) for name, value in model.named_parameters())
    assert torch.equal(model(torch.arange(9)[None]).logits, before)
    first = model.model.layers[0].self_attn
    assert first.k_proj.weight.untyped_storage().data_ptr() == step.layers[0].qkv.untyped_storage().data_ptr()


def test_replay_exact_gives_the_same_bits_whatever_the_batch(interpreted: None) -> None:
    one = {"num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 40}
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL | one)).eval().half()
    prompts = [[i % 40 for i in range(length)] for length in (66, 90)]
    trees = [random_tree(nodes, nodes, 40) for nodes in (5, 12)]

    def scored(lanes: list[int], way: Way) -> dict[int, torch.Tensor]:
        trunk = NativeTrunk("tiny", model, lanes=len(lanes), way=way)
        for place, lane in enumerate(lanes):
            trunk.append(place, prompts[lane])
        rows = trunk.score([LaneRows(place, *trees[lane]) for place, lane in enumerate(lanes)])
        return {lane: rows[place].logits for place, lane in enumerate(lanes)}

    together = scored([0, 1], Way("replay-exact"))
    for batch in ([1], [1, 0]):
        for lane, logits in scored(batch, Way("replay-exact")).items():
            assert torch.equal(logits, together[lane])


REFUSED = {
    "sliding_attention layers": tf.MistralConfig(**SMALL | {"sliding_window": 9}),
    "gemma3_text": tf.Gemma3TextConfig(**SMALL),
    "heads have 48": tf.LlamaConfig(**SMALL | {"head_dim": 48}),
    "serves 9 heads": tf.LlamaConfig(**SMALL | {"num_attention_heads": 9, "hidden_size": 144}),
    "MLP has biases; its heads have 16": tf.LlamaConfig(**SMALL | {"mlp_bias": True, "head_dim": 16}),
    "activation is gelu": tf.LlamaConfig(**SMALL | {"hidden_act": "gelu"}),
    "positions are dynamic": tf.LlamaConfig(
        **SMALL | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    ),
    "hidden_size 54 is no multiple": tf.LlamaConfig(**SMALL | {"hidden_size": 54}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_fit_is_refused_with_every_reason(reason: str) -> None:
    with torch.device("meta"):
        model = tf.AutoModelForCausalLM.from_config(REFUSED[reason])
    with pytest.raises(NativeUnsupported, match=reason):
        NativeTrunk("tiny", model)


def test_quantised_and_mixed_weights_are_refused() -> None:
    mixed = make("llama")
    mixed.model.norm.half()
    with pytest.raises(NativeUnsupported, match="several dtypes"):
        NativeTrunk("tiny", mixed)


@pytest.mark.slow
@pytest.mark.network
def test_the_default_target_with_its_real_weights(default_target: Path) -> None:
    model = tf.AutoModelForCausalLM.from_pretrained(default_target, dtype=torch.float32).eval()
    taps = (1, 15, 30)
    trunk = NativeTrunk("default", model, lanes=2, taps=taps, way=REFERENCE)
    prompts = [[1, 4093, 198, 1348], [7 * i % 40_000 for i in range(70)]]
    check_trees(model, trunk, prompts, 17, taps, {"atol": 2e-3, "rtol": 2e-3}, every=5)


def test_the_best_tokens_are_those_of_the_logits_ties_to_the_lowest_id() -> None:
    model = make("llama")
    weight = model.lm_head.weight.data
    weight[50] = weight[3] = 99 * weight[3]
    weight[60] = weight[10] = -weight[3]
    trunk = NativeTrunk("tiny", model, way=REFERENCE)
    trunk.append(0, list(range(30)))
    rows = LaneRows(0, *random_tree(8, 4))
    logits = trunk.score([rows])[0].logits
    graphs = StepGraphs(LlamaStep("tiny", model, top=4, way=REFERENCE))
    with torch.inference_mode():
        found = graphs.run(trunk.stores(), 8, 8, lambda inputs: trunk._fill(inputs, [rows], [0])).best
    torch.testing.assert_close(found.values, logits.topk(4).values, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(found.lse, logits.logsumexp(-1), atol=2e-5, rtol=2e-4)
    assert all(ids[:2] in ([3, 50], [10, 60]) for ids in found.ids.tolist())


class _Counted:
    """Stands in for a kernel: launches are counted, not run."""

    def __init__(self, name: str, launches: list[str]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.launches.append(self.name)


def test_a_layer_takes_six_launches_at_most(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash.kernels import attention_launch, product_triton

    launches: list[str] = []
    for module, names in (
        (attention_launch, ("attend_chunks", "merge_chunks")),
        (product_triton, ("qkv_kernel", "row_kernel", "gate_up_kernel")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, _Counted(name, launches))
    model = make("qwen3")
    trunk = NativeTrunk("tiny", model, capacity=1024)
    trunk.append(0, [1] * 600)
    trunk.score([LaneRows(0, *random_tree(16, 0))])
    layer = ["qkv_kernel", "attend_chunks", "merge_chunks", "row_kernel", "gate_up_kernel", "row_kernel"]
    assert launches == [*layer * 3, "row_kernel"]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("lengths", [(1, 64, 65), (150, 3, 70), (512, 600, 300)])
def test_native_prompts_are_those_of_transformers(kind: str, lengths: tuple[int, ...]) -> None:
    """In every lane, behind what the trunk has, in caches that grow; in one piece, several, two chunks."""
    model = make(kind)
    trunks = [
        NativeTrunk("tiny", model, 3, 64, (0, 2), REFERENCE, prefills=True),
        TrunkModel(model, 3, 64, (0, 2)),
    ]
    for lane in (2, 0, 1):
        for part in (lengths[lane], 5):
            prompt = [(7 * token + lane) % model.config.vocab_size for token in range(part)]
            mine, theirs = (trunk.append(lane, prompt) for trunk in trunks)
            torch.testing.assert_close(mine.logits, theirs.logits, atol=2e-5, rtol=2e-4)
            torch.testing.assert_close(mine.taps, theirs.taps, atol=2e-5, rtol=2e-4)
    rows = LaneRows(0, *random_tree(8, 4))
    scores = [trunk.score([rows])[0].logits for trunk in trunks]
    torch.testing.assert_close(*scores, atol=2e-5, rtol=2e-4)


def test_pieces_of_a_prompt_see_each_other_through_the_interpreter(interpreted: None) -> None:
    """What one launch writes of a piece, the next one reads for the pieces behind it."""
    few = {"num_hidden_layers": 2, "num_attention_heads": 1}
    torch.manual_seed(0)
    model = varied(tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL | few)))
    native = NativeTrunk("tiny", model, 2, 256, (2,), prefills=True)
    prompt = [(5 * token) % 97 for token in range(140)]
    found, expected = native.append(1, prompt), TrunkModel(model, 2, 256, (2,)).append(1, prompt)
    assert native.native == 1
    torch.testing.assert_close(found.logits, expected.logits, atol=2e-5, rtol=2e-4)
    torch.testing.assert_close(found.taps, expected.taps, atol=2e-5, rtol=2e-4)
    assert not native.cache.keys[0][0].any()


@given(tokens=st.integers(1, 3000))
def test_chunks_take_every_token_once_in_the_least_rows(tokens: int) -> None:
    found = list(chunks(tokens))
    assert [chunk.start for chunk in found] == list(range(0, tokens, CHUNK))
    assert sum(chunk.tokens for chunk in found) == tokens
    for chunk in found:
        smaller = [pieces for pieces in PIECES if pieces < chunk.pieces]
        assert chunk.tokens <= chunk.pieces * 64
        assert not smaller or chunk.tokens > smaller[-1] * 64
