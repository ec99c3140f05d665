"""Unions: both trees under one anchor, duplicates merged, 64 nodes at most; text as without drafts."""

from __future__ import annotations

import block_models
import draft_runs
import pytest
from drafted import proposal
from hypothesis import given
from hypothesis import strategies as st

from dflash.drafters.base import Drafter, Proposal, ProposalKind, entry
from dflash.drafters.union import UnionDrafter
from dflash.draftfile.run import open_runs
from dflash.policy.errors import MixedProposals
from dflash.policy.registry import parse_policy
from dflash.replay.run import replay

TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=40)


class Fixed(Drafter):
    """Proposes given paths, cut to the shape."""

    family = "fixed"

    def __init__(self, name, lines, kind=ProposalKind.DETERMINISTIC):
        super().__init__(kind)
        self.name, self.lines = name, lines

    def propose(self, anchors, shape):
        """The same tree at each anchor."""
        return [self._tree(shape.length) for _ in anchors]

    def _tree(self, length):
        found, places = Proposal(), {(): -1}
        for line in self.lines:
            for depth in range(1, min(length, len(line)) + 1):
                path = tuple(line[:depth])
                if path not in places:
                    places[path] = found.add(path[-1], places[path[:-1]], confidence=float(depth))
        return found

    def header(self):
        """An entry."""
        return entry(self.name, self.family, self.kind, cuts=["length"])


def lines(found):
    """Tokens from the anchor to every node."""
    every = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        every.append((*(every[parent] if parent >= 0 else ()), token))
    return every


def prefixes(tree, length):
    return {tuple(line[:depth]) for line in tree for depth in range(1, min(length, len(line)) + 1)}


@given(TREES, TREES)
def test_every_path_is_there_once_under_the_first_drafter_that_has_it(one, two):
    union = UnionDrafter([Fixed("one", one), Fixed("two", two)])
    found = proposal(union, [0], 5, 80)
    every = lines(found)
    assert len(set(every)) == len(every) <= 64
    expected = prefixes(one, 5) | prefixes(two, 5)
    if len(expected) <= 64:
        assert set(every) == expected
    for node, line in enumerate(every):
        assert found.source[node] == (line not in prefixes(one, 5))
        assert found.confidence[node] == len(line)
        assert found.parents[node] < node


@given(st.lists(st.lists(st.integers(0, 5), min_size=5, max_size=5), min_size=16, max_size=40), TREES)
def test_over_budget_the_shallowest_nodes_stay_so_that_a_cut_in_length_is_exact(one, two):
    union = UnionDrafter([Fixed("one", one), Fixed("two", two)])
    whole = proposal(union, [0], 5, 80)
    for length in range(5):
        small = proposal(union, [0], length, 80)
        kept = [node for node, line in enumerate(lines(whole)) if len(line) <= length]
        assert small.tokens == [whole.tokens[node] for node in kept]
        assert small.source == [whole.source[node] for node in kept]
        assert set(lines(small)) == {lines(whole)[node] for node in kept}


@given(TREES, TREES, st.integers(1, 12))
def test_no_more_branches_than_asked_for_and_those_come_first(one, two, branches):
    union = UnionDrafter([Fixed("one", one), Fixed("two", two)])
    whole = lines(proposal(union, [0], 5, 80))
    found = lines(proposal(union, [0], 5, branches))
    ends = [line for line in found if not any(line == other[:-1] for other in found)]
    assert len(ends) <= branches
    assert set(found) == {line for line in whole if any(line == end[: len(line)] for end in ends)}
    if len(ends) < branches:
        assert found == whole


@pytest.mark.parametrize("inner", [1, 2])
def test_node_source_counts_the_entries_of_the_header(inner):
    part = UnionDrafter([Fixed(f"inner{number}", [[number]]) for number in range(inner)])
    union = UnionDrafter([part, Fixed("last", [[9]])])
    found = proposal(union, [0], 1, 3)
    names = [each["name"] for each in union.headers()]
    assert [names[source] for source in found.source] == [*(f"inner{n}" for n in range(inner)), "last"]


def test_only_a_union_of_deterministic_drafters_has_a_law():
    kinds = list(ProposalKind)
    for one in kinds:
        for two in kinds:
            union = UnionDrafter([Fixed("one", [], one), Fixed("two", [], two)])
            plain = one is two is ProposalKind.DETERMINISTIC
            assert union.kind is (ProposalKind.DETERMINISTIC if plain else ProposalKind.MIXED)


@pytest.mark.parametrize("names", ["ngram+suffix", "suffix+self", "self+model"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_text_is_that_without_drafts(tiny, tmp_path, other_folder, names, temperature):
    common = {"temperature": temperature, "max_new_tokens": 20}
    asked = draft_runs.prompts(3)
    names = names.replace("model", f"model:{other_folder}")
    plain = draft_runs.record(tiny, asked, tmp_path / "plain.parquet", drafter="none", length=0, **common)
    path = draft_runs.record(tiny, asked, tmp_path / "union.parquet", drafter=names, **common)
    rows = draft_runs.rows(path)
    assert draft_runs.trunks(rows) == draft_runs.trunks(draft_runs.rows(plain))
    assert {source for row in rows for source in row["node_source"]} == {0, 1}


@pytest.mark.parametrize("names", ["suffix+self", "self+model", "ngram+suffix+self"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_recorded_policy_is_judged_as_it_ran(tiny, tmp_path, other_folder, names, temperature):
    """Without a policy, walked, re-judged and checked: the rounds that ran, counted from their tokens."""
    names = names.replace("model", f"model:{other_folder}")
    given = {"temperature": temperature, "max_new_tokens": 20, "branches": 2, "length": 4}
    path = draft_runs.record(
        tiny, draft_runs.prompts(3), tmp_path / "run.parquet", drafter=names, dense=True, **given
    )
    rows = [row for row in draft_runs.rows(path) if row["kind"] == 0]
    assert max(leaves(row["node_parent"]) for row in rows) > 2
    tau = sum(passes_most(row) + 1 for row in rows) / len(rows)
    (run,) = open_runs([path])
    for dense in (True, False):
        found = replay(run.files, dense=dense, check=True)
        assert found.rows[0].tau == pytest.approx(tau)
        assert found.check.passed, found.check.failures


@pytest.mark.parametrize("policy", ["match:branches=1", "match:branches=2,length=3", "match:control=window"])
def test_a_union_that_was_asked_for_fewer_branches_is_judged_as_it_ran(tiny, tmp_path, policy):
    given = {"temperature": 0.8, "max_new_tokens": 24, "branches": 2, "length": 4, "policy": policy}
    path = draft_runs.record(
        tiny, draft_runs.prompts(3), tmp_path / "run.parquet", drafter="suffix+self", dense=True, **given
    )
    rows = [row for row in draft_runs.rows(path) if row["kind"] == 0]
    tau = sum(passes_most(row) + 1 for row in rows) / len(rows)
    (run,) = open_runs([path])
    found = replay(run.files, dense=False, check=True)
    assert found.rows[0].tau == pytest.approx(tau)
    assert found.check.passed, found.check.failures


def leaves(parents):
    return len(set(range(len(parents))) - set(parents))


@pytest.mark.parametrize("names", ["ngram+self", "self+model"])
def test_speculative_refuses_a_union_that_samples(tiny, tmp_path, other_folder, names):
    names = names.replace("model", f"model:{other_folder}")
    with pytest.raises(MixedProposals, match="speculative.*needs drafts of one kind.*Use `match`"):
        draft_runs.session(
            tiny, tmp_path / "run.parquet", drafter=names, policy="speculative", temperature=0.8
        )
    # greedy and deterministic proposals follow one law
    draft_runs.session(tiny, tmp_path / "run.parquet", drafter=names, policy="speculative")
    draft_runs.session(
        tiny, tmp_path / "run.parquet", drafter="ngram+suffix", policy="speculative", temperature=0.8
    )


def test_replay_refuses_speculative_on_a_union_that_samples(tiny, tmp_path, other_folder):
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(1),
        tmp_path / "run.parquet",
        drafter=f"self+model:{other_folder}",
        temperature=0.8,
        max_new_tokens=8,
    )
    (run,) = open_runs([path])
    with pytest.raises(MixedProposals, match="speculative"):
        replay(run.files, [parse_policy("speculative")])


def passes_most(row):
    """Nodes of the longest path that the target's own choices go along."""
    depth = []
    for node, parent in enumerate(row["node_parent"]):
        above = 0 if parent < 0 else depth[parent]
        right = row["node_token"][node] == row["slot_choice"][parent + 1]
        depth.append(above + 1 if right and above >= 0 else -1)
    return max([0, *depth])


@pytest.mark.parametrize("companion", ["suffix", "ngram"])
def test_a_companion_never_shortens_what_is_accepted_from_an_anchor(tiny, tmp_path, companion):
    """Whatever a chain gets accepted from an anchor, its union with another gets, too."""
    folder = block_models.write_fitted(tiny.model, tmp_path / "dspark", "dspark")
    alone = block_models.named("dspark", folder)
    accepted = {}
    for name in (alone, f"{alone}+{companion}"):
        given = {"length": 4, "branches": 1, "dense": True, "max_new_tokens": 24}
        path = draft_runs.record(
            tiny, draft_runs.prompts(4), tmp_path / f"{len(accepted)}.parquet", drafter=name, **given
        )
        accepted[name] = {
            (row["request_id"], row["anchor_position"]): passes_most(row)
            for row in draft_runs.rows(path)
            if row["kind"] == 1
        }
    first, union = accepted.values()
    assert first.keys() == union.keys()
    assert all(union[place] >= first[place] for place in first)
    assert sum(union.values()) > sum(first.values()) > 0
