"""The default target: lossless at every temperature, and every recorded decision reproduced."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from dflash.cli.main import app
from dflash.target.load import load_target

pytestmark = [pytest.mark.slow, pytest.mark.network]

PROMPTS = (
    "Explain rainbows to a child.",
    "List the months of the year, then list them again in the same order.",
    "Translate 'good morning' to French, Spanish and German.",
    "What is 17 times 23? Show every step.",
    "Write a limerick about a cat.",
    "Name the planets in order from the sun.",
    "Why is the sky blue?",
    "Write a Python function that reverses a list.",
    "Summarise the story of Cinderella in three sentences.",
    "Count from one to twenty in words.",
)


@pytest.fixture(scope="module")
def target():
    return load_target()


_GENERATED: dict[tuple[str, int], list[int]] = {}


def generate(target, prompt, count):
    """transformers' own greedy answer, computed once for all drafters and shapes."""
    if (prompt, count) not in _GENERATED:
        _GENERATED[prompt, count] = _generate(target, prompt, count)
    return _GENERATED[prompt, count]


def _generate(target, prompt, count):
    tokenizer = target.tokenizer
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    with torch.inference_mode():
        out = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
    return out[0, ids.shape[1] :].tolist()


def check_against_generate(target, record, output_tokens, prompts, count, **settings):
    """Equal token for token; a request may differ only from a slot whose gap is under the tolerance."""
    rows = record(target, prompts, max_new_tokens=count, **settings)
    ties = []
    for number, (answer, prompt) in enumerate(zip(output_tokens(rows).values(), prompts, strict=True)):
        expected = generate(target, prompt, count)
        if answer != expected:
            first = next(
                i for i, pair in enumerate(zip(answer, expected, strict=False)) if pair[0] != pair[1]
            )
            gap = gap_at(rows, str(number), first)
            assert gap < target.tie_tolerance, (prompt, first, gap)
            ties.append((prompt, first, gap))
    print(f"{settings}: {len(prompts)} prompts x {count}, near-ties {ties}")
    return ties


def gap_at(rows, request, index):
    """Margin by which the output token at `index` was chosen."""
    place = 0
    for row in rows:
        if row["request_id"] == request:
            for slot in [0, *(node + 1 for node in row["accepted_nodes"])]:
                if place == index:
                    return row["slot_gap"][slot]
                place += 1
    raise IndexError(index)


@pytest.mark.parametrize(
    "settings",
    [
        {"drafter": "none", "length": 0, "branches": 1},
        {"drafter": "ngram", "length": 5, "branches": 1},
        {"drafter": "ngram", "length": 4, "branches": 4},
        {"drafter": "self", "length": 4, "branches": 2},
    ],
    ids=str,
)
def test_greedy_output_is_that_of_generate(target, record, output_tokens, settings):
    check_against_generate(target, record, output_tokens, PROMPTS[:2], 48, **settings)


def test_sampled_output_is_the_same_for_every_drafter_and_shape(target, record, output_tokens):
    common = {"temperature": 0.8, "max_new_tokens": 32}
    plain = output_tokens(record(target, PROMPTS[:1], drafter="none", length=0, **common))
    for drafter, length, branches in (("ngram", 5, 1), ("ngram", 4, 3), ("self", 4, 1), ("self", 3, 3)):
        rows = record(target, PROMPTS[:1], drafter=drafter, length=length, branches=branches, **common)
        assert output_tokens(rows) == plain, (drafter, length, branches)


@pytest.mark.parametrize("policy", ["match", "greedy", "threshold:t=0.7", "speculative"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_recorded_decision_is_reproduced(target, record, tmp_path, policy, temperature):
    path = tmp_path / "run.parquet"
    rows = record(
        target,
        PROMPTS[:1],
        path=path,
        drafter="self" if temperature else "ngram",
        policy=policy,
        temperature=temperature,
        length=4,
        branches=2,
        max_new_tokens=16,
    )
    result = CliRunner().invoke(app, ["replay", str(path), "--check"], standalone_mode=False)
    assert result.return_value in (0, None), result.output
    live = [row for row in rows if row["kind"] == 0]
    tau = sum(len(row["accepted_nodes"]) + 1 for row in live) / len(live)
    assert f"{tau:.3f}" in result.output


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("count", "tokens", "settings"),
    [
        (10, 64, {"drafter": "none", "length": 0, "branches": 1}),
        (10, 64, {"drafter": "ngram", "length": 5, "branches": 3}),
        (10, 64, {"drafter": "self", "length": 4, "branches": 1}),
        (10, 64, {"drafter": "self", "length": 4, "branches": 3}),
        (40, 128, {"drafter": "ngram", "length": 6, "branches": 2}),
    ],
    ids=str,
)
def test_evidence_greedy_output_is_that_of_generate(target, record, output_tokens, count, tokens, settings):
    settings = {**settings, "lanes": 8}
    prompts = [
        f"{text} (Answer {part}.)"
        for part in ("briefly", "plainly", "politely", "at length")
        for text in PROMPTS
    ]
    check_against_generate(target, record, output_tokens, prompts[:count], tokens, **settings)
