"""Every path of every tree gets the logits of a plain forward, whatever model, lane and history."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.target.model import TrunkModel
from dflash.target.scratch import LaneRows

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(head_dim=8, **SMALL)),
    "mistral-window": lambda: tf.MistralForCausalLM(tf.MistralConfig(sliding_window=5, **SMALL)),
    "gemma3-mixed": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(head_dim=8, sliding_window=5, layer_types=MIXED, **SMALL)
    ),
}


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def plain(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1]


def line(parents, tokens, node):
    path = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


trees = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 96), min_size=n, max_size=n),
        st.tuples(*[st.integers(-1, i - 1) for i in range(n)]).map(list),
    )
)


@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 96), min_size=1, max_size=12), trees), min_size=2, max_size=3)
)
def test_ragged_lanes_of_random_trees_equal_plain_forwards(model, lanes):
    trunk = TrunkModel(model, lanes=len(lanes), capacity=4)
    for lane, (prompt, _) in enumerate(lanes):
        trunk.append(lane, prompt)
    # the batch order must not matter
    order = list(reversed(range(len(lanes))))
    scored = trunk.score([LaneRows(lane, *lanes[lane][1]) for lane in order])
    for lane, rows in zip(order, scored, strict=True):
        prompt, (tokens, parents) = lanes[lane]
        for node in range(len(tokens)):
            expected = plain(model, prompt + line(parents, tokens, node))
            torch.testing.assert_close(rows.logits[node], expected, atol=2e-5, rtol=2e-4)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 96), min_size=1, max_size=9), trees, st.data())
def test_commit_of_any_path_leaves_the_trunk_of_that_path(model, prompt, tree, data):
    tokens, parents = tree
    node = data.draw(st.integers(0, len(tokens) - 1))
    path, step = [], node
    while step >= 0:
        path.insert(0, step)
        step = parents[step]
    trunk = TrunkModel(model, capacity=8)
    trunk.append(0, prompt)
    trunk.score([LaneRows(0, tokens, parents)])
    trunk.commit(0, path)
    after = prompt + [tokens[i] for i in path]
    assert trunk.length(0) == len(after)
    rows = trunk.score([LaneRows(0, [5], [-1])])[0]
    torch.testing.assert_close(rows.logits[0], plain(model, [*after, 5]), atol=2e-5, rtol=2e-4)


def test_one_forward_computes_each_node_once_and_no_copy_of_the_trunk(model):
    trunk = TrunkModel(model, capacity=64)
    trunk.append(0, list(range(40)))
    before, stored = trunk.work.rows, trunk.cache.nbytes()
    trunk.score([LaneRows(0, list(range(9)), [-1, 0, 0, 0, 1, 2, 3, 4, 5])])
    assert (trunk.work.forwards, trunk.work.rows - before) == (2, 9)
    assert trunk.cache.nbytes() == stored
    text = model.config
    bytes_a_row = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * 4
    assert stored == bytes_a_row * trunk.cache.capacity


def test_a_long_prompt_is_prefilled_in_chunks_with_the_same_result(model, monkeypatch):
    monkeypatch.setattr("dflash.target.model.PREFILL_ROWS", 5)
    trunk = TrunkModel(model, capacity=4, taps=(1, 2))
    prompt = [7 * i % 97 for i in range(23)]
    rows = trunk.append(0, prompt)
    torch.testing.assert_close(rows.logits[0], plain(model, prompt), atol=2e-5, rtol=2e-4)
    with torch.inference_mode():
        states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(rows.taps, torch.cat([states[1][0], states[2][0]], -1), atol=2e-5, rtol=2e-4)
