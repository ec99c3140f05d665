"""What the target writes is what it would say: lock-step states and choices are those of plain forwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.training.corpus import Anchors, empty_corpus
from dflash.training.dialogue import Dialogue, Manners
from dflash.training.script import ANSWER, USER, Headers, Stream, encode, opened_stream, prompt_stream
from dflash.training.settings import TextSettings
from dflash.training.texts import Library
from dflash.training.writing import write

TAPS = (1,)
LENGTH = 150


@pytest.fixture(scope="module")
def headers(tiny):
    return Headers.of(tiny.tokenizer)


@pytest.fixture(scope="module")
def written(tiny, headers):
    streams = [
        opened_stream(headers, encode(tiny.tokenizer, "Write"), 0.0),
        prompt_stream([*headers.opening, *encode(tiny.tokenizer, "Hi"), *headers.after_user], 0.0),
        prompt_stream([*headers.opening, *encode(tiny.tokenizer, "Hello"), *headers.after_user], 0.9),
    ]
    corpus = empty_corpus(4, LENGTH, len(TAPS), tiny.model)
    manners = Manners(longest_user=9, longest_answer=30)
    write(tiny.model, streams, headers, manners, TAPS, corpus, 1, torch.Generator().manual_seed(3))
    return corpus


def test_states_and_opinions_are_those_of_a_plain_forward(tiny, written):
    with torch.inference_mode():
        plain = tiny.model(input_ids=written.tokens[1:], output_hidden_states=True, use_cache=False)
    torch.testing.assert_close(written.taps[1:, :-1], plain.hidden_states[1][:, :-1], atol=1e-4, rtol=1e-4)
    texts, positions = torch.arange(1, 4), torch.arange(LENGTH - 1).expand(3, -1)
    logits = written.opinions.at(texts, positions).logits(slice(None)).view(3, LENGTH - 1, -1)
    torch.testing.assert_close(logits, plain.logits[:, :-1], atol=1e-3, rtol=1e-3)


def test_own_words_of_greedy_answers_are_the_likeliest(tiny, written):
    with torch.inference_mode():
        likeliest = tiny.model(input_ids=written.tokens[1:3], use_cache=False).logits.argmax(-1)
    own = written.own[1:3, 1:]
    assert own.sum() > 60
    assert torch.equal(likeliest[:, :-1][own], written.tokens[1:3, 1:][own])


def test_texts_that_were_not_asked_for_stay_empty(written):
    assert not written.tokens[0].any()
    assert not written.own[0].any()


def test_streams_read_as_the_template_writes(tiny, headers, written):
    for text, prompt in ((1, "Write"), (2, "Hi")):
        said = tiny.tokenizer.decode(written.tokens[text])
        assert said.startswith(f"<|bos|><|im_start|>user\n{prompt}")
        assert "<|im_end|>\n<|im_start|>assistant\n" in said
    opening = tiny.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert (
        tiny.tokenizer.decode([*headers.opening, *encode(tiny.tokenizer, "Hi"), *headers.after_user[:2]])
        == opening
    )


def test_turns_are_cut_at_their_longest_and_only_answers_are_own():
    headers = Headers((7,), (1, 8), (2, 9), USER)
    streams = [Stream((7, 5), USER, 0.0), Stream((7, 5, 1, 8), ANSWER, 0.0)]
    dialogue = Dialogue(streams, headers, Manners(2, 3, user_temperature=0.0), torch.device("cpu"))
    logits = torch.zeros(2, 10)
    logits[:, 4] = 1.0
    said = [dialogue.first(), *(dialogue.next(logits, torch.Generator()) for _ in range(13))]
    tokens = torch.stack([one.tokens for one in said], 1).tolist()
    own = torch.stack([one.own for one in said], 1).int().tolist()
    # a user says one 4 and is cut, an answer two; the token that ends a cut turn is nobody's own
    assert tokens[0] == [7, 5, 4, 1, 8, 4, 4, 2, 9, 4, 1, 8, 4, 4]
    assert own[0] == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert tokens[1] == [7, 5, 1, 8, 4, 4, 2, 9, 4, 1, 8, 4, 4, 2]
    assert own[1] == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]


def test_an_answer_that_ends_by_itself_owns_its_end():
    headers = Headers((7,), (1, 8), (2, 9), USER)
    dialogue = Dialogue([Stream((7,), ANSWER, 0.0)], headers, Manners(5, 5), torch.device("cpu"))
    dialogue.first()
    logits = torch.zeros(1, 10)
    logits[:, 2] = 1.0
    said = dialogue.next(logits, torch.Generator())
    assert (int(said.tokens), bool(said.own)) == (2, True)


def test_anchors_have_a_token_and_a_next_one_of_the_targets_own():
    own = torch.tensor([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    texts, places = Anchors(own).draw(40, 30, np.random.default_rng(0))
    assert set(texts.tolist()) == {0, 2}
    assert set(places[texts == 0].flatten().tolist()) == {1}
    assert set(places[texts == 2].flatten().tolist()) == {0, 1, 2, 3}


def test_a_library_depends_on_its_seed_alone(tiny):
    def texts(seed):
        settings = TextSettings(texts=6, streams=4, length=60, held_out=4)
        library = Library(tiny.model, tiny.tokenizer, settings, TAPS, [[1, 2, 3]] * 8, seed)
        first = library.training(0, None, lambda stage, share: None).tokens.clone()
        second = library.training(1, None, lambda stage, share: None).tokens
        return first, second, library.held_out(lambda stage, share: None).tokens

    one, two, other = texts(4), texts(4), texts(5)
    assert all(torch.equal(mine, yours) for mine, yours in zip(one, two, strict=True))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], other[0])
