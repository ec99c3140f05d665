"""Cuts by the drafter's confidence against loops, and which of them may look at what."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import DRAFT_T, TARGET_T, choice_law, drafts, speculative_law, text_law
from test_laws import NESTED, PAIR, P, Q, residual_list
from test_shape import TREES, kept, paths

from dflash.policy.context import DraftSampling, Proposal, RuleContext
from dflash.policy.errors import DraftScoreMissing
from dflash.policy.match import Match
from dflash.policy.registry import parse_policy
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Exactness
from dflash.policy.shape import Shape

SHARE = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
COUNT = st.none() | st.integers(0, 5)
STATED = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=32, max_size=32)


def rounds_of(trees, confidence, **values):
    nodes = sum(map(len, trees))
    return Rounds.build(
        np.array([len(tree) for tree in trees]),
        np.array([parent for tree in trees for parent in tree], dtype=np.int64),
        np.arange(len(trees)),
        np.zeros((len(trees), 2), dtype=np.uint32),
        {"node_token": np.arange(nodes), "node_confidence": np.array(confidence[:nodes], dtype=np.float64)}
        | values,
    )


def left(tree, stated, shape):
    """Nodes that the cuts keep one after the other, path by path."""
    alive = kept(tree, shape.length, shape.branches)
    ranks = paths(tree)
    if shape.first_positions is not None:
        alive = [n for n in alive if not any(ranks[n][shape.first_positions :])]
    product = {-1: 1.0}
    for node, parent in enumerate(tree):
        product[node] = product[parent] * stated[node]
    for node in list(alive):
        above, chain = node, []
        while above >= 0:
            chain.append(stated[above])
            above = tree[above]
        low = shape.confidence is not None and min(chain) < shape.confidence
        if low or (shape.survival is not None and product[node] < shape.survival - 1e-9):
            alive.remove(node)
    if shape.nodes is not None:
        best = sorted(alive, key=lambda node: (-round(product[node], 9), node))[: shape.nodes]
        alive = sorted(best)
    return alive


@given(TREES, st.builds(Shape, COUNT, st.none() | st.integers(1, 4), COUNT, SHARE, SHARE, COUNT), STATED)
def test_cuts_by_confidence_keep_what_loops_keep(trees, shape, stated):
    cut = shape.cut(rounds_of(trees, stated))
    offset = 0
    for row, tree in enumerate(trees):
        begin, end = cut.node_offsets[row : row + 2]
        expected = left(tree, stated[offset : offset + len(tree)], shape)
        assert cut.node_index[begin:end].tolist() == expected
        offset += len(tree)


@given(TREES, st.builds(Shape, COUNT, st.none() | st.integers(1, 4), COUNT, SHARE, SHARE, COUNT), STATED)
def test_a_second_cut_changes_nothing(trees, shape, stated):
    once = shape.cut(rounds_of(trees, stated))
    again = shape.cut(rounds_of_cut(once))
    assert len(again.node_parent) == len(once.node_parent)


def rounds_of_cut(cut):
    """The cut trees as a live run would have recorded them."""
    values = {name: cut[name] for name in ("node_token", "node_confidence")}
    return Rounds.build(np.diff(cut.node_offsets), cut.node_parent, cut.anchor_position, cut.key, values)


@pytest.mark.parametrize(
    ("shape", "near"),
    [
        (Shape(confidence=0.5005), True),
        (Shape(confidence=0.3), False),
        (Shape(confidence=0.5), False),
        (Shape(survival=0.4001), True),
        (Shape(survival=0.3), False),
        (Shape(nodes=2), True),
        (Shape(nodes=1), False),
        (Shape(nodes=9), False),
        (Shape(nodes=0), False),
        (Shape(length=1, nodes=1), False),
        (Shape(confidence=0.0, survival=0.0), False),
    ],
)
def test_a_cut_that_rounding_might_change_is_told(shape, near):
    """Products along the path: 0.8, 0.4, 0.4002; the last two differ by less than the tolerance."""
    far = rounds_of([[-1, 0, -1], [-1]], [0.8, 0.5, 0.4002, 1.0])
    assert shape.close(far, 1e-3).tolist() == [near, False]
    assert not shape.close(far, 1e-9).any()


def test_the_probability_of_the_token_stands_in_for_a_confidence():
    logit = np.log([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]]) + 4.0
    values = {
        "draft_lse": np.array([4.0, 4.0, np.nan]),
        "draft_topk_token": np.array([[7, 8, 9], [9, 7, 8]]),
        "draft_topk_logit": logit,
    }
    one = rounds_of([[-1, 0]], [math.nan, math.nan], **values).with_values({"node_token": np.array([8, 7])})
    for bound, nodes in ((0.29, 2), (0.31, 0)):
        assert len(Shape(confidence=bound).cut(one).node_parent) == nodes
    for bound, nodes in ((0.2, 2), (0.22, 1), (0.31, 0)):
        assert len(Shape(survival=bound).cut(one).node_parent) == nodes
    stated = one.with_values({"node_confidence": np.array([1.0, math.nan])})
    assert len(Shape(survival=0.69).cut(stated).node_parent) == 2
    unknown = one.with_values({"node_token": np.array([8, 5])})
    with pytest.raises(DraftScoreMissing, match="'nodes'"):
        Shape(nodes=1).cut(unknown)
    unseen = one.with_values({"draft_lse": np.full(3, np.nan), "draft_topk_token": np.zeros((0, 3))})
    with pytest.raises(DraftScoreMissing, match="'survival'"):
        Shape(survival=0.5).cut(unseen)
    with pytest.raises(DraftScoreMissing, match="'confidence'"):
        Shape(confidence=0.5).cut(rounds_of([[-1]], [math.nan]))


def context(proposal, slot=False):
    return RuleContext(TARGET_T, proposal, True, DraftSampling(DRAFT_T), "speculative", slot_confidence=slot)


@pytest.mark.parametrize("policy", ["speculative", "block", "fly", "ensemble:w=1", "vllm-v1", "transformers"])
def test_rules_that_take_q_for_the_law_lose_it_where_a_cut_has_looked(policy):
    free = context(Proposal.INDEPENDENT)
    plain = parse_policy(policy)
    for cut, slot, peeks in [
        ("length=2", False, False),
        ("branches=1", False, False),
        ("first_positions=0", False, False),
        ("confidence=0.3", False, True),
        ("survival=0.3", False, True),
        ("nodes=3", False, True),
        ("confidence=0.3", True, False),
        ("survival=0.3", True, False),
        ("nodes=3", True, True),
    ]:
        cut_policy = parse_policy(policy, dict([cut.split("=")]))
        here = context(Proposal.INDEPENDENT, slot)
        assert cut_policy.is_lossless(here) == (plain.is_lossless(free) and not peeks)
        assert any("lossy: the cut by" in text for text in cut_policy.remarks(here)) == peeks
        # deterministic drafts hold no secret
        fixed = context(Proposal.DETERMINISTIC)
        assert cut_policy.is_lossless(fixed) == plain.is_lossless(fixed)


@pytest.mark.parametrize("policy", ["match", "greedy", "trtllm", "sglang", "threshold:t=0.6"])
def test_rules_that_never_read_q_keep_what_they_promise_under_every_cut(policy):
    for proposal in Proposal:
        here = context(proposal)
        cut = parse_policy(policy, {"confidence": "0.3", "nodes": "3"})
        assert cut.is_lossless(here) == parse_policy(policy).is_lossless(here)


@pytest.mark.parametrize("policy", ["speculative", "block"])
def test_the_law_along_a_trunk_is_known_for_chains_of_fixed_length_alone(policy):
    here = context(Proposal.INDEPENDENT, slot=True)
    assert parse_policy(policy, {"length": "3"}).exactness_in(here, False) is Exactness.LAW
    assert parse_policy(policy, {"survival": "0.3"}).exactness_in(here, False) is Exactness.REJUDGE


def law_of(shape, plan=PAIR):
    rule = parse_policy("speculative").rule
    return speculative_law(rule, context(Proposal.INDEPENDENT), P, Q, plan, 3, residual_list, shape=shape)


class Stated(Shape):
    """A shape whose confidence depends on the slot alone: on the token before."""

    __slots__ = ()

    def cut(self, rounds):
        token = rounds["node_token"]
        parent = rounds.parent_node
        before = np.where(parent >= 0, token[np.maximum(parent, 0)], 0)
        return super().cut(rounds.with_values({"node_confidence": np.array([0.9, 0.2, 0.6])[before]}))


def test_a_cut_by_a_confidence_of_the_slot_leaves_the_law_and_one_by_the_token_does_not():
    for plan in (PAIR, NESTED):
        by_slot = law_of(Stated(survival=0.5), plan)
        np.testing.assert_allclose(by_slot, text_law(P, 3), atol=5e-6)
    by_token = law_of(Shape(confidence=0.35))
    assert np.abs(by_token - text_law(P, 3)).max() > 0.01


@pytest.mark.parametrize("shape", [Shape(nodes=1), Shape(confidence=0.35), Shape(first_positions=0)])
def test_choices_emit_p_under_every_cut(shape):
    fixed = RuleContext(TARGET_T, Proposal.DETERMINISTIC)
    for draft in drafts(np.full((3, 3), 1 / 3), PAIR, False)[:6]:
        law = choice_law(Whole(shape), fixed, P, draft, 3)
        np.testing.assert_allclose(law, text_law(P, 3), atol=1e-12)


class Whole(Match):
    """Match on a cut tree, its path told by the nodes of the whole one."""

    __slots__ = ("shape",)

    def __init__(self, shape):
        object.__setattr__(self, "shape", shape)

    def decide(self, rounds, here):
        cut = self.shape.cut(rounds)
        decision = super().decide(cut, here)
        return Told(cut, decision)


class Told:
    """A decision whose paths are those of the trees before the cut."""

    def __init__(self, cut, decision):
        self.cut, self.decision, self.bonus = cut, decision, decision.bonus

    def path(self, row):
        begin = self.cut.node_offsets[row]
        return [int(self.cut.node_index[begin + node]) for node in self.decision.path(row)]
