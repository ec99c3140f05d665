"""The summary equals a plain count over the rows, and merges in any grouping."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_drafts import DENSE, LIVE, PREFILL, tables, write

from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.summary import Summary, merged, tree_depths
from dflash.draftfile.violations import ParentOrder


def depth(parents: list[int]) -> int:
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return max(found, default=0)


def counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary by plain loops."""
    live = [row for row in rows if row["kind"] == LIVE]
    decided = [row for row in rows if row["kind"] in (LIVE, PREFILL)]
    lengths = [len(row["accepted_nodes"]) for row in live]
    depths = [depth(row["node_parent"]) for row in live]
    return {
        "requests": len({row["request_id"] for row in rows}),
        "rounds": len(live),
        "dense_rows": sum(row["kind"] == DENSE for row in rows),
        "nodes": sum(len(row["node_token"]) for row in live),
        "prompt_tokens": sum(len(row["prompt_tokens"] or []) for row in rows),
        "tokens_emitted": sum(row["emitted"] for row in decided),
        "drafted": [sum(d > i for d in depths) for i in range(max(depths, default=0))],
        "accepted": [sum(n > i for n in lengths) for i in range(max(lengths, default=0))],
        "lengths": [lengths.count(n) for n in range(max(lengths, default=-1) + 1)],
        "truncations": dict(Counter(row["truncated_by"] for row in decided)),
    }


def summed(parts: list[pa.Table]) -> Summary:
    summary = Summary()
    for table in parts:
        summary.add(table)
    return summary


SHAPES = {"requests": st.integers(0, 4), "rounds": st.integers(0, 5), "dense": st.integers(0, 2)}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.fixed_dictionaries(SHAPES))
def test_it_equals_a_plain_count(seed: int, shape: dict[str, int]) -> None:
    parts = tables(seed, **shape)
    rows = [row for table in parts for row in table.drop_columns(["started_at"]).to_pylist()]
    assert summed(parts).to_dict() == counted(rows)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 99), max_size=4), st.integers(0, 4))
def test_merging_is_associative(seeds: list[int], cut: int) -> None:
    every = [summed(tables(seed, 1)) for seed in seeds]
    parts = [table for seed in seeds for table in tables(seed, 1)]
    assert merged(every) == merged(every[:cut]).merge(merged(every[cut:])) == summed(parts)


def test_tau_counts_the_bonus_and_needs_rounds() -> None:
    assert Summary().tau is None
    assert Summary(rounds=4, accepted=[3, 1]).tau == 2.0


def test_the_file_keeps_it(tmp_path: Path) -> None:
    parts = tables(3, 2, dense=1)
    write(tmp_path / "run.parquet", parts)
    found = open_draft_file(tmp_path / "run.parquet").summary
    assert found == summed(parts).to_dict()
    assert Summary.from_dict(found) == summed(parts)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 5), max_size=6), min_size=1, max_size=5))
def test_nodes_that_do_not_stand_behind_their_parents_are_refused(parents: list[list[int]]) -> None:
    """Circles among them, in which no path would end."""
    column = pa.chunked_array([pa.array(parents, pa.list_(pa.int16()))])
    if all(parent < place for row in parents for place, parent in enumerate(row)):
        assert tree_depths(column).tolist() == [depth(row) for row in parents]
        return
    with pytest.raises(ParentOrder, match="before it"):
        tree_depths(column)
