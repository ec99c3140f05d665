"""Identity checks name what differs and refuse exactly what each use must not accept."""

from __future__ import annotations

from typing import Any

import pytest
from sample_drafts import digest, header

from dflash.draftfile.identity import (
    EVERYTHING,
    RESCORE,
    WARM,
    IdentityMismatch,
    Part,
    differences,
    require_same,
)


def changed(owner: str, **facts: Any) -> dict[str, Any]:
    head = header()
    if owner == "drafter":
        return head | {"drafters": [head["drafters"][0] | facts, head["drafters"][1]]}
    return head | {owner: head[owner] | facts}


CASES = [
    (Part.TARGET, "weights", changed("target", weights_digest=digest(9))),
    (Part.TARGET, "config", changed("target", config_digest=digest(9))),
    (Part.TARGET, "quantisation", changed("target", quantisation=None)),
    (Part.DRAFTER, "weights", changed("drafter", weights_digest=digest(9))),
    (Part.DRAFTER, "taps", changed("drafter", tap_convention="hidden_states 2")),
    (Part.DRAFTER, "family", changed("drafter", family="ngram")),
    (Part.DRAFTER, "number", header() | {"drafters": []}),
    (Part.TOKENIZER, "tokenizer", changed("tokenizer", digest=digest(9))),
    (Part.TOKENIZER, "vocabulary", changed("tokenizer", vocab_size=99)),
    (Part.TEMPLATE, "template", changed("tokenizer", template_digest=digest(9))),
]


def test_a_header_is_its_own_identity() -> None:
    assert differences(header(), header(seed=1, created_at="2027-01-01T00:00:00Z")) == []


@pytest.mark.parametrize(("part", "fact", "other"), CASES)
def test_the_fact_that_differs_is_named(part: Part, fact: str, other: dict[str, Any]) -> None:
    (found,) = differences(header(), other)
    assert (found.part, found.fact) == (part, fact)
    with pytest.raises(IdentityMismatch, match=f"run.parquet .*{fact}") as caught:
        require_same(header(), other, EVERYTHING, "run.parquet")
    assert caught.value.differences == (found,)


@pytest.mark.parametrize("parts", [EVERYTHING, WARM, RESCORE])
@pytest.mark.parametrize(("part", "fact", "other"), CASES)
def test_each_use_refuses_its_own_parts(
    parts: tuple[Part, ...], part: Part, fact: str, other: dict[str, Any]
) -> None:
    if part in parts:
        with pytest.raises(IdentityMismatch, match=fact):
            require_same(header(), other, parts, "run.parquet")
    else:
        assert [found.fact for found in require_same(header(), other, parts, "run.parquet")] == [fact]
