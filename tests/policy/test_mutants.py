"""Mutants of the rules: one line changed, and a law that notices.

Each mutant is the source of the module with some text replaced, so that it lives as long as the line does: a
text that is not there any more, or twice, fails the test.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from pathlib import Path
from typing import NamedTuple

import law_checks
import pytest

from dflash.policy.catalogue import RULES


class Mutant(NamedTuple):
    """A fault: in which module of the policies, which texts become which others, and the law that notices."""

    fault: str
    module: str
    changes: dict[str, str]
    law: str


MUTANTS = [
    Mutant(
        "a flipped inequality",
        "speculative",
        {"first_passing(rounds, excess <= 0": "first_passing(rounds, excess >= 0"},
        "speculative_on_chains",
    ),
    Mutant(
        "a dropped residual: replacements are drawn from p",
        "speculative",
        {"rest = np.maximum(0.0, target - draft)": "rest = target"},
        "speculative_on_chains",
    ),
    Mutant(
        "replacements: what is left of p is not renormalised after a rejected sibling",
        "speculative",
        {"target = rest / total if total > 0 else rest": "target = rest"},
        "speculative_on_siblings",
    ),
    Mutant(
        "ratios: what is left of p is not renormalised after a rejected sibling",
        "siblings",
        {"target[family] = rest / scale[:, None]": "target[family] = rest"},
        "speculative_on_siblings",
    ),
    Mutant(
        "ratios: q is not renormalised without the siblings drawn before",
        "siblings",
        {"draft[family] /= np.where(left > 0, left, 1.0)[:, None]": "draft[family] /= 1.0"},
        "speculative_on_siblings",
    ),
    Mutant(
        "siblings drawn without replacement are judged as if drawn with it",
        "siblings",
        {"    if with_replacement:\n        return\n": "    return\n"},
        "speculative_on_siblings",
    ),
    Mutant(
        "siblings drawn with replacement are judged as if drawn without it",
        "siblings",
        {"    if with_replacement:\n        return\n": ""},
        "speculative_on_repeated_siblings",
    ),
    Mutant(
        "the longest of branches that are tested each on its own under p/q",
        "speculative",
        {
            "first_passing(rounds, excess <= 0, replacements(rounds, known), excess)": (
                "longest(rounds, log_coin <= rounds['node_logp'] - rounds['node_logq'], "
                "replacements(rounds, known))"
            ),
            "import Decision\n": "import Decision, longest\n",
        },
        "speculative_on_siblings",
    ),
    Mutant(
        "the last sibling that passes instead of the first",
        "sequential",
        {
            "np.full(len(ok) + len(rounds), len(ok), dtype=np.int64)": (
                "np.full(len(ok) + len(rounds), -1, dtype=np.int64)"
            ),
            "np.minimum.at(": "np.maximum.at(",
            "first[slots] < np.arange(len(ok))": "first[slots] > np.arange(len(ok))",
        },
        "speculative_on_siblings",
    ),
    Mutant(
        "frequency as q: a deterministic draft is judged by p over its confidence",
        "speculative",
        {
            "        if not context.sampled:\n            return equal_to(rounds, rounds": (
                "        if context.temperature == 0:\n            return equal_to(rounds, rounds"
            ),
            'log_ratio = rounds.present("node_logp") - rounds.present("node_logq")': (
                "log_ratio = rounds.present('node_logp') - np.log(0.5)"
            ),
            "replacements(rounds, known)": "rounds['slot_choice']",
        },
        "speculative_on_fixed_drafts",
    ),
    Mutant(
        "match emits the argmax",
        "match",
        {'return equal_to(rounds, rounds["slot_choice"])': "return equal_to(rounds, rounds['slot_argmax'])"},
        "match_on_trees",
    ),
    Mutant(
        "block: the first failure ends it, instead of the largest pass",
        "block",
        {
            "segment_max(np.where(ok, rounds.node_depth, 0), rounds.node_offsets, 0)": (
                "rounds.trees.leading(ok)"
            )
        },
        "block_on_chains",
    ),
    Mutant(
        "block: the test of each token alone",
        "block",
        {
            "    h = np.ones(len(capped))\n": (
                "    return np.minimum(1.0, np.exp(rounds['node_logp'] - rounds['node_logq']))\n"
                "    h = np.ones(len(capped))\n"
            )
        },
        "block_on_chains",
    ),
    Mutant(
        "block: ratios are not multiplied along the path",
        "block",
        {
            "capped[nodes - 1] * ratio[nodes]": "ratio[nodes]",
            "columns[:, below - 1] * ratios[:, below]": "ratios[:, below]",
        },
        "block_on_chains",
    ),
    Mutant(
        "block: the mass of the node itself instead of the next one's",
        "block",
        {'rounds.present("node_residual_mass")[1:]': "rounds.present('node_residual_mass')[:-1]"},
        "block_on_chains",
    ),
    Mutant(
        "block: an unscaled residual",
        "block",
        {"np.maximum(0.0, capped * p - q)": "np.maximum(0.0, p - q)"},
        "block_replacements_are_scaled",
    ),
    Mutant(
        "block: it never accepts more than a prefix of passes, and one less",
        "block",
        {
            "np.where(deepest > 0, rounds.node_offsets[:-1] + deepest - 1, -1)": (
                "np.where(deepest > 1, rounds.node_offsets[:-1] + deepest - 2, -1)"
            )
        },
        "block_accepts_no_less_than_speculative_and_that_no_less_than_match",
    ),
    Mutant(
        "coins keyed by position, under block",
        "noise",
        {
            "    fresh[1:] = (node_round[1:]": "    fresh[1:] = True | (node_round[1:]",
            "        anchor_position[rounds].astype(np.uint64),\n        np.full(len(first), int(purpose)": (
                "        (anchor_position[rounds] + depth[first]).astype(np.uint64),\n"
                "        np.full(len(first), int(purpose)"
            ),
            "place += (depth - 1) & 3": "place += 0",
            "words[part, :, column] = lane.T": "words[part, :, column] = lanes[0].T",
        },
        "block_over_seeds",
    ),
    Mutant(
        "siblings share a coin under p/q",
        "noise",
        {"path[first].astype(np.uint64)": "0 * path[first].astype(np.uint64)"},
        "speculative_trees_over_seeds",
    ),
    Mutant(
        "an engine's chain: replacements are the target's choice",
        "presets.engine",
        {
            "    emitted = replacements(rounds, residuals_known(rule, context))\n    return first_passing": (
                "    emitted = rounds['slot_choice']\n    return first_passing"
            )
        },
        "engines_over_seeds",
    ),
    Mutant(
        "an engine's chain: q of deterministic drafts is their confidence",
        "presets.vllm_v1",
        {'rounds.present("node_logq")': "np.minimum(rounds.present('node_logq'), np.log(0.6))"},
        "engines_over_seeds",
    ),
    Mutant(
        "SGLang's tree: siblings are not added up",
        "target_only",
        {"total[order] = gathered - (gathered - p[order])[start]": "total[order] = p[order]"},
        "siblings_that_share_a_coin",
    ),
    Mutant(
        "SGLang's tree: the sum does not start anew below an accepted node",
        "target_only",
        {"total[order] = gathered - (gathered - p[order])[start]": "total[order] = gathered"},
        "siblings_that_share_a_coin",
    ),
    Mutant(
        "a cut that looks at drafted tokens is taken for harmless",
        "shape",
        {"return (self.cuts() & set(SCORED)) - harmless": "return set()"},
        "a_policy_that_says_lossless_is",
    ),
    Mutant(
        "a threshold below one half is taken for lossless at temperature 0",
        "threshold",
        {"return context.temperature == 0 and self.t > 0.5": "return context.temperature == 0"},
        "lossless_is_greedy_at_temperature_zero",
    ),
]


@pytest.mark.parametrize("law", law_checks.LAWS)
def test_the_law_holds(law):
    assert law_checks.LAWS[law]()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.fault for mutant in MUTANTS])
def test_a_law_notices(mutant, monkeypatch):
    graft(mutant, monkeypatch)
    assert not law_checks.LAWS[mutant.law]()


def test_every_law_notices_something():
    assert {mutant.law for mutant in MUTANTS} == set(law_checks.LAWS)


def graft(mutant, monkeypatch):
    """Put the changed functions and classes of a module in place of its own, wherever they are known."""
    original = importlib.import_module(f"dflash.policy.{mutant.module}")
    source = Path(original.__file__).read_text(encoding="utf-8")
    whole = source
    for old, new in mutant.changes.items():
        assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
        source = source.replace(old, new)
    copy = types.ModuleType(f"{original.__name__}_mutant")
    copy.__file__ = original.__file__
    monkeypatch.setitem(sys.modules, copy.__name__, copy)
    exec(compile(source, original.__file__, "exec"), copy.__dict__)
    for name in changed(whole, source):
        put(name, original, copy, monkeypatch)


def changed(whole, source):
    """Names of the functions and classes at the top that differ."""
    before, after = (
        {node.name: ast.dump(node) for node in ast.parse(text).body if hasattr(node, "name")}
        for text in (whole, source)
    )
    return [name for name in after if before[name] != after[name]]


def put(name, original, copy, monkeypatch):
    own = getattr(original, name)
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "").startswith("dflash.policy") and vars(module).get(name) is own:
            monkeypatch.setattr(module, name, getattr(copy, name))
    for rule, kind in RULES.items():
        if kind is own:
            monkeypatch.setitem(RULES, rule, getattr(copy, name))
