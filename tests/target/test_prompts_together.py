"""Prompts of several lanes that share forwards leave what each leaves by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st

from dflash.target.lane_prefill import PIECES, Around, LanePrefill, size_of, sizes_up_to
from dflash.target.llama_step import LlamaStep, StepOutput
from dflash.target.native_layers import KeyValue, Way
from dflash.target.prompt_inputs import HostInputs, Piece, PromptInputs, pieces_of
from dflash.target.staging import Staging

MOST = PIECES[-1]
SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
}


def step_of(way: Way, layers: int = 2) -> LlamaStep:
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL | {"num_hidden_layers": layers}))
    return LlamaStep("tiny", model.eval().requires_grad_(False), (1,), way=way)


def cache_of(lanes: int, layers: int = 2) -> list[KeyValue]:
    return [KeyValue(*torch.zeros(2, lanes, 1, 512, 64)) for _ in range(layers)]


def prompt_of(lane: int, tokens: int) -> list[int]:
    return [(7 * token + 3 * lane) % SMALL["vocab_size"] for token in range(tokens)]


def read(prefill: LanePrefill, cache: list[KeyValue], lengths: list[int]) -> dict[int, tuple[Any, Any]]:
    """Logits of every prompt's last token, and the taps of all of its tokens."""
    pieces = sum((pieces_of(lane, 0, prompt_of(lane, size)) for lane, size in enumerate(lengths)), [])
    found: dict[int, tuple[Any, Any]] = {}
    taps: dict[int, list[Any]] = {}
    for start in range(0, len(pieces), MOST):
        some = pieces[start : start + MOST]
        output = prefill.forward(cache, some)
        for place, piece in enumerate(some):
            rows = output.taps[64 * place : 64 * place + len(piece.tokens)]
            taps.setdefault(piece.lane, []).append(rows.clone())
        for place, piece in enumerate(piece for piece in some if piece.last):
            found[piece.lane] = output.logits[place].clone(), torch.cat(taps[piece.lane])
    return found


@pytest.mark.parametrize("lengths", [(3, 64, 65, 1), (300, 5, 320, 130), (500, 64, 64, 64, 2), (9, 1, 2, 70)])
def test_prompts_that_share_forwards_leave_what_each_leaves_alone(lengths: tuple[int, ...]) -> None:
    step, count = step_of(Way(impl="reference")), len(lengths)
    shared, alone = cache_of(count), cache_of(count)
    together = read(LanePrefill(step, MOST), shared, list(lengths))
    for lane, size in enumerate(lengths):
        expected = LanePrefill(step).run(alone, lane, 0, prompt_of(lane, size))
        logits, taps = together[lane]
        torch.testing.assert_close(logits, expected.logits[0], atol=2e-5, rtol=2e-4)
        torch.testing.assert_close(taps, expected.taps, atol=2e-5, rtol=2e-4)
    for mine, theirs in zip(shared, alone, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-4)


def test_a_prompts_bits_do_not_depend_on_what_shares_its_forward(interpreted: None) -> None:
    """In `replay-exact`; through the interpreter."""
    step = step_of(Way("replay-exact"), layers=1)
    together = read(LanePrefill(step, MOST), cache_of(2, 1), [66, 3])
    for lane in range(2):
        cache = cache_of(2, 1)
        pieces = pieces_of(lane, 0, prompt_of(lane, [66, 3][lane]))
        output = LanePrefill(step, MOST).forward(cache, pieces)
        assert torch.equal(output.logits[0], together[lane][0])


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    starts=st.lists(st.integers(0, 300), min_size=4, max_size=4),
    before=st.integers(1, MOST),
)
def test_inputs_hold_each_token_once_and_nothing_else(
    lengths: list[int], starts: list[int], before: int
) -> None:
    """Whatever was in the buffer before."""
    dice = np.random.default_rng(len(lengths))
    pieces: list[Piece] = []
    for lane, (size, start) in enumerate(zip(lengths, starts, strict=False)):
        pieces += pieces_of(lane + 1, start, dice.integers(1, 99, size).tolist())
    pieces = pieces[:MOST]
    sizes = size_of(len(pieces)), MOST, 5
    inputs = PromptInputs.of(torch.zeros(PromptInputs.size(*sizes), dtype=torch.int32), *sizes)
    host = HostInputs.of(inputs)
    host.fill(pieces_of(7, 3, [5] * 64 * min(before, sizes[0])), np.full(5, 9, np.int32))
    host.fill(pieces, np.arange(5, dtype=np.int32))
    rows, ends = inputs.step, []
    for row in range(64 * sizes[0]):
        place, at = divmod(row, 64)
        piece = pieces[place] if place < len(pieces) else None
        if piece is None or at >= len(piece.tokens):
            assert rows.places[row].tolist()[0] == -1
            assert int(rows.words[place, at]) == int(rows.tokens[row]) == int(rows.positions[row]) == 0
            continue
        here = piece.start + at
        assert rows.places[row].tolist() == [piece.lane, here]
        assert (int(rows.positions[row]), int(rows.tokens[row])) == (here, int(piece.tokens[at]))
        assert int(rows.words[place, at]) & (2**64 - 1) == 2 ** (at + 1) - 1
        if piece.last and at + 1 == len(piece.tokens):
            ends.append(row)
    assert inputs.wanted.tolist()[: len(ends)] == ends
    assert inputs.pages.flatten().tolist()[: len(pieces)] == [piece.lane for piece in pieces]
    assert rows.lengths.tolist()[: len(pieces)] == [piece.start for piece in pieces]
    assert inputs.told.tolist() == list(range(5))


@given(tokens=st.integers(1, 1000), length=st.integers(0, 100))
def test_pieces_are_a_prompt_in_order(tokens: int, length: int) -> None:
    found = pieces_of(3, length, range(tokens))
    assert np.concatenate([piece.tokens for piece in found]).tolist() == list(range(tokens))
    assert [piece.start for piece in found] == list(range(length, length + tokens, 64))
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]


@given(lanes=st.integers(1, 70), context=st.integers(1, 2000))
def test_sizes_are_those_that_prompts_can_need(lanes: int, context: int) -> None:
    pieces = lanes * -(-context // 64)
    assert sizes_up_to(lanes, context) == sorted({size_of(min(some, MOST)) for some in range(1, pieces + 1)})


def test_what_is_computed_around_a_forward_is_told_its_words() -> None:
    prefill, heard = LanePrefill(step_of(Way(impl="reference")), MOST, 4), []

    def after(space: Any, output: StepOutput, told: Any) -> None:
        heard.append(("after", told.tolist(), output.logits.shape[0]))

    around = Around((), lambda told: heard.append(("before", told.tolist(), 0)), after)
    for words in ([1, 2, 3, 4], [5, 6, 7, 8]):
        prefill.forward(cache_of(1), pieces_of(0, 0, [4, 5]), around, np.array(words, np.int32))
    assert heard == [
        ("before", [1, 2, 3, 4], 0), ("after", [1, 2, 3, 4], MOST), ("before", [5, 6, 7, 8], 0),
        ("after", [5, 6, 7, 8], MOST),
    ]  # fmt: skip


def test_blocks_are_written_again_once_their_copies_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sooner, and no more are made than are on their way at once."""
    busy: list[int] = []
    staging = Staging(4, torch.Tensor.numpy, torch.device("cpu"))
    monkeypatch.setattr("dflash.target.staging._is_free", lambda block: id(block.flat) not in busy)
    goal, seen = torch.zeros(3, dtype=torch.int32), {}
    for turn in range(60):
        block = staging.take()
        assert id(block.flat) not in busy
        block.form[:] = turn
        staging.send(block, goal)
        assert goal.tolist() == [turn] * 3
        busy.append(id(block.flat))
        seen[id(block.flat)] = block
        # copies end in the order in which they began
        if len(busy) > turn % 7:
            del busy[: turn % 4]
    assert 4 < len(seen) < 12
