"""An answer ends exactly where plain decoding would end it, wherever that falls inside a block."""

from __future__ import annotations

import pytest

from dflash.engine.lane import Lane, Truncation
from dflash.engine.request import Request
from dflash.engine.text import TextStream
from dflash.target.sampling import Sampling

SETTINGS = {"temperature": 0.9, "seed": 3, "max_new_tokens": 60}


def finish(rows):
    return [row["truncated_by"] for row in rows][-1]


@pytest.fixture(scope="module")
def plain_text(tiny):
    """The answer of plain decoding, decoded in one piece."""

    def decode(tokens):
        return tiny.tokenizer.decode(tokens, skip_special_tokens=True)

    return decode


@pytest.mark.parametrize("start", range(2, 30, 3))
def test_a_stop_string_anywhere_cuts_speculation_where_it_cuts_plain_decoding(
    tiny, record, output_tokens, plain_text, start
):
    whole = output_tokens(record(tiny, drafter="none", length=0, **SETTINGS))["0"]
    stop = plain_text(whole)[start : start + 1 + start % 3]
    if not stop or "�" in stop:
        pytest.skip("no whole character there")
    plain = record(tiny, drafter="none", length=0, stop=(stop,), **SETTINGS)
    for drafter in ("self", "ngram"):
        rows = record(tiny, drafter=drafter, length=6, stop=(stop,), **SETTINGS)
        assert output_tokens(rows) == output_tokens(plain)
        assert finish(rows) == finish(plain) == "stop"
    kept = output_tokens(plain)["0"]
    assert stop in plain_text(kept)
    assert stop not in plain_text(kept[:-1])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9])
def test_length_counts_tokens_whatever_the_block(tiny, record, output_tokens, count):
    settings = SETTINGS | {"max_new_tokens": count}
    plain = record(tiny, drafter="none", length=0, **settings)
    rows = record(tiny, drafter="self", length=6, **settings)
    assert output_tokens(rows) == output_tokens(plain)
    assert len(output_tokens(rows)["0"]) == count
    assert finish(rows) == "length"


def test_every_possible_end_of_text_token_cuts_where_it_first_appears(tiny, record, output_tokens):
    from dataclasses import replace

    whole = output_tokens(record(tiny, drafter="none", length=0, **SETTINGS))["0"]
    for token in dict.fromkeys(whole[1::4]):
        ended = replace(tiny, eos=frozenset({token}))
        rows = record(ended, drafter="self", length=6, **SETTINGS)
        assert output_tokens(rows)["0"] == whole[: whole.index(token) + 1]
        assert finish(rows) == "eos"


def lane(tokenizer, eos=(), stop=(), limit=100):
    request = Request("0", [1], "", Sampling(), 0, limit, tuple(stop))
    return Lane.start(0, request, frozenset(eos), tokenizer, None)


def test_the_reasons_have_an_order_stop_and_end_of_text_before_length(tiny):
    tokens = tiny.tokenizer("xyz", add_special_tokens=False).input_ids
    assert lane(tiny.tokenizer, stop=["yz"], limit=3).emit(tokens).truncated_by is Truncation.STOP
    assert (
        lane(tiny.tokenizer, eos=[tokens[2]], stop=["yz"], limit=3).emit(tokens).truncated_by
        is Truncation.EOS
    )
    assert lane(tiny.tokenizer, limit=3).emit(tokens).truncated_by is Truncation.LENGTH
    assert lane(tiny.tokenizer, limit=4).emit(tokens).truncated_by is Truncation.NONE


def test_the_text_is_cut_before_the_stop_string_and_never_shown_in_part(tiny):
    tokens = tiny.tokenizer("one tw three", add_special_tokens=False).input_ids
    shown = []
    busy = lane(tiny.tokenizer, stop=["two", " three"])
    busy.on_text = shown.append
    for token in tokens:
        busy.emit([token])
    assert busy.finish is Truncation.STOP
    assert "".join(shown) == busy.text == "one tw"


@pytest.mark.parametrize(
    "text", ["plain", "é ü", "漢字かな", "🌈🌍👩‍🚀", "a\u0301", " lead", "x\n\ny", "\ufffd kept"]
)
def test_streamed_text_is_the_decoded_text_in_whole_characters(tiny, text):
    tokens = tiny.tokenizer(text, add_special_tokens=False).input_ids
    stream = TextStream(tiny.tokenizer)
    pieces = [stream.push(token) for token in tokens] + [stream.finish()]
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
