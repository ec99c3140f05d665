"""Canonical JSON against an independent implementation; headers that come back as they went in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_drafts import header

from dflash.draftfile.canonical import EXACT_INTEGERS, canonical_json
from dflash.draftfile.errors import HeaderInvalid
from dflash.draftfile.header import HEADER_LIMIT, Header, encode_header, validate_header

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INTEGERS = st.integers(-EXACT_INTEGERS + 1, EXACT_INTEGERS - 1)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
EXACT = nested(st.one_of(st.none(), st.booleans(), INTEGERS, TEXT))
ANY = nested(st.one_of(FINITE, st.integers(), TEXT))


@settings(deadline=None)
@given(EXACT)
def test_canonical_json_is_rfc_8785(value: Any) -> None:
    assert canonical_json(value).encode() == rfc8785.dumps(value)


def strings(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT_INTEGERS:
        return str(value)
    if isinstance(value, dict):
        return {key: strings(item) for key, item in value.items()}
    return [strings(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(ANY)
def test_floats_and_big_integers_are_strings(value: Any) -> None:
    assert json.loads(canonical_json(value)) == strings(value)


def test_sorted_compact_dumps_is_exact_on_plain_keys() -> None:
    text = encode_header(header())
    again = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert again == text == rfc8785.dumps(json.loads(text)).decode()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "\ud800", {1: 2}])
def test_values_without_canonical_form_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="."):
        canonical_json({"a": value})


def test_a_header_comes_back_as_it_went_in() -> None:
    assert validate_header(header()).raw == header()
    assert isinstance(validate_header(header()).raw["sampling"]["temperature"], float)


@given(FINITE, st.integers(0, 2**64 - 1))
def test_numbers_come_back_as_numbers(number: float, seed: int) -> None:
    policy = {"rule": {"name": "typical", "eps": number, "list": [number, 1]}}
    found = validate_header(header(policy=policy, seed=seed, tie_tolerance=number))
    assert (found.policy, found.seed, found.tie_tolerance) == (policy, seed, number)


def test_whole_numbers_where_floats_belong_become_floats() -> None:
    found = validate_header(header(sampling={"temperature": 0, "top_k": None, "top_p": None}))
    assert found.temperature == 0.0
    assert isinstance(found.temperature, float)


def test_unknown_keys_are_kept_and_ignored() -> None:
    assert validate_header(header(later={"a": 1})).raw["later"] == {"a": 1}


def test_accessors() -> None:
    found = validate_header(header())
    raw = header()
    for name in (
        "target",
        "drafters",
        "tokenizer",
        "sampling",
        "seed",
        "policy",
        "shape",
        "store_topk",
        "draft_topk",
    ):
        assert getattr(found, name) == raw[name]
    for name in ("tie_tolerance", "dense", "q_complete", "rng", "features", "lanes", "engine"):
        assert getattr(found, name) == raw[name]
    assert (found.vocab_size, found.padded_vocab_size) == (100, 128)


@pytest.mark.parametrize("key", [key for key in header() if key not in ("host", "parents")])
def test_a_missing_key_is_refused_by_name(key: str) -> None:
    raw = header()
    del raw[key]
    with pytest.raises(HeaderInvalid, match=key):
        encode_header(raw)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"seed": "tomorrow"}, "seed"),
        ({"store_topk": -1}, "store_topk"),
        ({"store_topk": 2.5}, "store_topk"),
        ({"dense": "yes"}, "dense"),
        ({"lanes": 0}, "lanes"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"tie_tolerance": "small"}, "tie_tolerance"),
        ({"parents": ["abc"]}, "parents.0"),
        ({"shape": {"length": 4}}, "shape"),
        ({"features": {"mode": "some"}}, "features.mode"),
        ({"target": header()["target"] | {"weights_digest": None}}, "target.weights_digest"),
        ({"drafters": [header()["drafters"][0] | {"proposal": "guess"}]}, "drafters.0.proposal"),
    ],
)
def test_a_wrong_value_is_refused_by_place(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(HeaderInvalid, match=f"at {where}:"):
        encode_header(header(**changes))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    with pytest.raises(HeaderInvalid, match="finite"):
        encode_header(header(tie_tolerance=number))


def test_a_string_that_would_come_back_as_a_number_is_refused() -> None:
    with pytest.raises(HeaderInvalid, match="reads as a number"):
        encode_header(header(policy={"version": "0.18"}))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(HeaderInvalid, match="no JSON"):
        Header.parse("{")


def test_a_header_that_no_reader_would_accept_is_refused() -> None:
    with pytest.raises(HeaderInvalid, match="at most"):
        encode_header(header(notes="x" * (HEADER_LIMIT + 1)))
