"""Speculation changes how fast an answer comes, never what it says."""

from __future__ import annotations

import pytest
import torch

PROMPTS = ("What is a rainbow?", "ab ab ab", "Count: 1 2 3 4", "é ü 漢字 🌈")
SHAPES = ((0, 1), (1, 1), (5, 1), (4, 3), (7, 8))
SAMPLINGS = ({"temperature": 0.8}, {"temperature": 1.3, "top_k": 5}, {"temperature": 0.8, "top_p": 0.7})


def generate(target, prompt, count):
    tokenizer = target.tokenizer
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        out = target.model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0, use_cache=True
        )
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("drafter", ["none", "ngram", "self"])
def test_greedy_output_is_that_of_generate(tiny, record, output_tokens, drafter):
    expected = [generate(tiny, prompt, 40) for prompt in PROMPTS]
    for length, branches in SHAPES:
        rows = record(tiny, PROMPTS, drafter=drafter, length=length, branches=branches)
        assert list(output_tokens(rows).values()) == expected, (length, branches)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_sampled_output_depends_on_prompt_and_seed_alone(tiny, record, output_tokens, sampling):
    plain = output_tokens(record(tiny, PROMPTS, drafter="none", length=0, **sampling))
    for drafter in ("ngram", "self"):
        for length, branches in SHAPES[1:4]:
            rows = record(tiny, PROMPTS, drafter=drafter, length=length, branches=branches, **sampling)
            assert output_tokens(rows) == plain, (drafter, length, branches)
    assert output_tokens(record(tiny, PROMPTS, drafter="none", length=0, seed=8, **sampling)) != plain


def test_speculation_is_not_idle(tiny, record):
    """The tests above prove nothing if no draft is ever accepted or rejected."""
    for drafter, temperature in (("ngram", 0.0), ("self", 0.8)):
        rows = record(tiny, PROMPTS, drafter=drafter, temperature=temperature)
        accepted = [len(row["accepted_nodes"]) for row in rows if row["kind"] == 0]
        assert max(accepted) >= 2
        assert min(accepted) < 5


def test_identical_prompts_get_their_own_noise_and_any_number_of_lanes_agrees(tiny, record, output_tokens):
    prompts = ("same", "other", "same", "same", "more")
    one = record(tiny, prompts, temperature=1.0, drafter="self", lanes=1)
    texts = output_tokens(one)
    assert texts["0"] != texts["2"]
    assert texts["2"] != texts["3"]
    for lanes in (2, 3, 8):
        many = record(tiny, prompts, temperature=1.0, drafter="self", lanes=lanes)
        assert output_tokens(many) == texts
        assert [row["request_id"] for row in many] == [row["request_id"] for row in one]


def test_a_request_may_have_its_own_temperature_and_seed(tiny, record, output_tokens):
    from dflash.engine.prompts.prompt import Prompt

    prompts = [
        Prompt(("hello",), temperature=0.0),
        Prompt(("hello",), temperature=1.1, seed=5),
        Prompt(("hi",)),
    ]
    for drafter in ("self", "ngram"):
        mixed = output_tokens(record(tiny, prompts, temperature=0.7, drafter=drafter))
        plain = output_tokens(record(tiny, prompts, temperature=0.7, drafter="none", length=0))
        assert mixed == plain
        assert mixed["0"] == generate(tiny, "hello", 40)
