from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.draftfile.canonical import portable
from dflash.policy import errors
from dflash.policy.registry import CONTROLS, RULES, Policy, parse_policy, policies
from dflash.policy.shape import Shape
from dflash.policy.synthetic import Synthetic
from dflash.policy.threshold import Threshold

LENGTHS = st.none() | st.integers(0, 2**31 - 1)
BRANCHES = st.none() | st.integers(1, 2**31 - 1)
SHARES = st.none() | st.floats(0.0, 1.0)
PLAIN = st.sampled_from([RULES[name]() for name in sorted(RULES) if name != "synthetic"])
PAIRS = st.builds(Threshold, single=st.floats(0.0, 1.0), acc=SHARES)
RATES = st.lists(st.floats(0.0, 1.0), min_size=1).map(lambda rates: Synthetic(tuple(sorted(rates)[::-1])))
RULE = PLAIN | st.floats(0.0, 1.0, exclude_min=True).map(Threshold) | PAIRS | RATES
SHAPES = st.builds(Shape, LENGTHS, BRANCHES, LENGTHS, SHARES, SHARES, LENGTHS)
CONTROL = st.sampled_from([kind() for kind in CONTROLS.values()])
POLICIES = st.builds(Policy, RULE, SHAPES, CONTROL)


@given(POLICIES)
def test_a_policy_reads_back_from_its_text(policy):
    assert parse_policy(str(policy)) == policy


@given(POLICIES)
def test_a_policy_reads_back_from_a_header(policy):
    assert Policy.from_dict(policy.to_dict()) == policy
    # canonical JSON writes floats as strings
    assert Policy.from_dict(portable(policy.to_dict())) == policy


def test_a_policy_is_a_value():
    policy = parse_policy("threshold: t=0.7, length=4, branches=2")
    assert policy == Policy(Threshold(0.7), Shape(4, 2))
    assert str(policy) == "threshold:t=0.7,length=4,branches=2"
    assert len({policy, parse_policy(str(policy))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.rule.t = 0.5


def test_extra_pairs_are_added_and_never_override():
    assert parse_policy("threshold:t=0.9", {"length": "2"}) == Policy(Threshold(0.9), Shape(2))
    for key in ("t", "control"):
        with pytest.raises(errors.DflashError, match=key.rpartition(".")[2]):
            parse_policy("threshold:t=0.9,control=static", {key: "0.5"})


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("mach", errors.UnknownRule, "match"),
        ("zzzz", errors.UnknownRule, "greedy, margin, match, medusa"),
        ("match:lenght=3", errors.UnknownParameter, "length"),
        ("threshold:tt=0.5", errors.UnknownParameter, "'t'"),
        ("match:t=0.5", errors.UnknownParameter, "'t'"),
        ("match:control=statics", errors.UnknownControl, "static"),
        ("", errors.PolicySyntax, "NAME:key=value"),
        ("match:", errors.PolicySyntax, "NAME:key=value"),
        ("match:length", errors.PolicySyntax, "'length'"),
        ("match:length=", errors.PolicySyntax, "'length='"),
        ("match:=3", errors.PolicySyntax, "'=3'"),
        ("match:length=3,,branches=2", errors.PolicySyntax, "found ''"),
        ("match:length=3,length=4", errors.RepeatedParameter, "length"),
        ("match:control=window,control=static", errors.RepeatedParameter, "control"),
        ("match:control=window,control.low=0.1,control.low=0.2", errors.RepeatedParameter, "control.low"),
        ("match:name=greedy", errors.RepeatedParameter, "name"),
        ("match:control=window,control.lo=0.1", errors.UnknownParameter, "'low'"),
        ("match:rule.t=0.1", errors.UnknownParameter, "rule.t"),
        ("synthetic", errors.MissingParameter, "synthetic:rates=..."),
        *[(f"synthetic:rates={text}", errors.BadParameter, "do not rise") for text in ("0.5/0.6", "2", "/")],
        ("relaxed:of=logits", errors.BadParameter, "one of probability, logprob"),
        ("threshold:t=0.5,acc=0.5", errors.ParameterConflict, "found both"),
        *[
            (f"threshold:t={value}", errors.BadParameter, "above 0 and at most 1")
            for value in ("nan", "inf", "-inf", "0", "-0.1", "1.0001", "x", "1e999", "True")
        ],
        *[(f"match:length={text}", errors.BadParameter, "whole number") for text in ("-1", "1.5", "nan")],
        *[(f"match:branches={text}", errors.BadParameter, "at least 1") for text in ("0", "-3", "inf", "²")],
    ],
)
def test_a_wrong_policy_says_what_is_wrong(text, kind, words):
    with pytest.raises(kind, match=r".") as caught:
        parse_policy(text)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "document",
    [
        {"rule": {"name": "typical", "eps": None}},
        {"rule": {"name": "threshold", "t": True}},
        {"rule": {"name": "match"}, "shape": {"length": 2.5}},
    ],
)
def test_a_wrong_header_policy_is_refused(document):
    with pytest.raises(errors.BadParameter):
        Policy.from_dict(document)


def test_a_default_is_shown_where_a_rule_sets_it_itself():
    assert str(parse_policy("threshold")) == "threshold:t=0.7"
    assert str(parse_policy("threshold:acc=0.5")) == "threshold:acc=0.5"
    assert parse_policy("threshold") == parse_policy("threshold:t=0.7")


def test_the_short_form_of_a_control_names_what_is_changed():
    policy = parse_policy("match:length=3,control=window,control.low=0.2,control.high=0.7")
    assert str(policy) == "match:length=3,control=window,control.low=0.2"


def test_the_presets_of_the_design_are_there():
    presets = {rule.name for rule in policies() if rule.preset}
    assert presets == {"vllm-v1", "vllm-mrv2", "sglang", "transformers", "trtllm", "medusa"}


def test_every_rule_states_what_it_is():
    for rule in policies():
        assert bool(rule.processing) == rule.preset
        assert rule.summary
        assert rule.source
        assert rule.columns
        assert rule.lossless_note
        assert rule.exactness_note
        assert rule.temperature_zero
