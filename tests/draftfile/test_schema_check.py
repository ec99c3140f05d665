"""The header's own schema check against an independent validator, on broken headers of every kind."""

from __future__ import annotations

import copy
import json
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from sample_drafts import digest, header

from dflash.draftfile.header import encode_header
from dflash.draftfile.schema_check import SchemaChecker

SCHEMA = json.loads((resources.files("dflash") / "schemas" / "header_v1.schema.json").read_text("utf-8"))
CHECKER, ORACLE = SchemaChecker(SCHEMA), Draft202012Validator(SCHEMA)

FULL = header(
    shard={"index": 0, "count": 2},
    git={"commit": "abc", "dirty": True},
    parents=[digest(7), digest(8)],
    features={
        "mode": "sample",
        "sample_rate": 0.5,
        "encoding": "bf16",
        "hidden": 64,
        "taps": [{"layer": 1, "point": "in", "hidden_states": 1}],
        "projection": {"scheme": "signs"},
    },
    engine={"toolkit": "0.1.0", "kernels": [1, "two"], "step_time_profile": None},
    later={"unknown": [1, 2]},
)
VALID = [json.loads(encode_header(head)) for head in (header(), FULL)]

# values that some keyword takes and some other refuses, and what JSON texts hold beside them
TELLING = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.0, 1.5, -0.0, float("nan"), float("inf"), 2**60, "", "0.5", "1e-05"]
    + ["12", "-3", "x", digest(3), digest(3).upper(), digest(3) + "\n", "2026-11-29T12:00:00Z", "shared"]
    + ["bf16", "in", [], [1], [None], {}, {"method": "int8"}, {"method": 1.5}, {"mode": "all"}]
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = list(value.items()) if isinstance(value, dict) else []
    items += list(enumerate(value)) if isinstance(value, list) else []
    return [path] + [place for key, item in items for place in places(item, (*path, key))]


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A valid header after one to three changes: a value replaced, or a key or an element gone or new."""
    value = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        *route, last = draw(st.sampled_from(places(value)[1:] or [("top",)]))
        inner = value
        for step in route:
            inner = inner[step]
        change = draw(st.sampled_from(["replace", "replace", "delete", "add"]))
        if change == "delete" and len(places(value)) > 2:
            del inner[last]
        elif change == "add" and isinstance(inner, dict):
            inner[draw(st.text(max_size=5))] = draw(ANYTHING)
        elif isinstance(inner, dict | list) and last != "top":
            inner[last] = draw(st.one_of(TELLING, ANYTHING))
    return value


@settings(max_examples=600, deadline=None)
@given(st.one_of(broken(), ANYTHING))
def test_the_verdict_is_that_of_a_validator(value: Any) -> None:
    wrong = list(CHECKER.violations(value))
    assert (not wrong) == ORACLE.is_valid(value), wrong
    for violation in wrong:
        found = value
        for step in violation.path:
            found = found[step]


@pytest.mark.parametrize("value", VALID)
def test_every_single_loss_gets_the_validator_s_verdict(value: Any) -> None:
    for *route, last in places(value)[1:]:
        for replacement in (None, True, -1, "?", [], {}, "delete"):
            changed = copy.deepcopy(value)
            inner = changed
            for step in route:
                inner = inner[step]
            if replacement == "delete":
                del inner[last]
            else:
                inner[last] = replacement
            assert (not [*CHECKER.violations(changed)]) == ORACLE.is_valid(changed), (route, last)


def test_it_says_where_and_what() -> None:
    raw = copy.deepcopy(VALID[0])
    raw["drafters"][1]["quantisation"] = {"method": 4}
    (violation,) = CHECKER.violations(raw)
    assert violation == (("drafters", 1, "quantisation", "method"), "string", "4")


@pytest.mark.parametrize(
    "schema",
    [
        {"maximum": 4},
        {"properties": {"a": {"format": "date"}}},
        {"anyOf": [{"const": 1}]},
        {"additionalProperties": False},
        {"type": "number"},
        {"enum": [1, True]},
        {"items": {"$ref": "other.json"}},
        {"$defs": {"a": {"oneOf": []}}},
    ],
)
def test_what_it_does_not_know_is_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        SchemaChecker(schema)
