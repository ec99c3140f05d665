"""A change of one cell is found, whatever its column, and told in the right section."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from drifted import Requests, columns, compare, edited, recording, save

from dflash.draftfile.columns import COLUMNS, Column

SECTION = {
    "identity": "requests",
    "tree": "drafts",
    "target": "probabilities",
    "decision": "decisions",
    "dense": "probabilities",
    "features": "features",
    "volatile": "timing",
}
ELSEWHERE = {
    "request_info": "identity",
    "anchor_token": "tokens",
    "draft_topk_target_logit": "probabilities",
    "trunk_logq": "drafts",
    "off_trajectory": "decisions",
}
PREFILL, LIVE, DENSE = 0, 1, 5
ALIGNING = {"kind", "round", "anchor_position"}
NAMED = {"request_id", "request_info", "prompt_text"}
SPECIAL: dict[str, Any] = {
    "node_parent": [-1, 0, 0],
    "accepted_nodes": [2],
    "truncated_by": "interrupted",
    "control_state": '{"a":1}',
    "prompt_text": "another prompt",
    "request_info": '{"rng_key":"00000000deadbeef","ordinal":0,"seed":7}',
    "request_id": "another name",
    "off_trajectory": None,
    "feature_values": b"\x01\x03",
}


def row_of(column: Column) -> int:
    if column.group == "dense":
        return DENSE
    return PREFILL if column.name in {"request_id", "prompt_tokens", "prompt_text", "request_info"} else LIVE


def other(name: str, value: Any) -> Any:
    if name in SPECIAL:
        return SPECIAL[name]
    if name == "node_token":
        return [*value[:2], (value[2] + 1) % 128]
    if name.endswith("topk_token"):
        return [min(set(range(128)) - set(value)), *value[1:]]
    if hasattr(value, "__len__"):
        first = (value[0] + 1) % 2 if name == "node_source" else other(name, value[0])
        return [first, *value[1:]]
    if isinstance(value, float | np.floating):
        return float(value) + 0.25 if np.isfinite(value) else -1.0
    return value + timedelta(seconds=1) if hasattr(value, "tzinfo") else (int(value) + 1) % 128


def _columns(document: dict[str, Any], section: str) -> set[str]:
    return set(columns(document, section)) if document["sections"][section] else set()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Requests, Path]:
    requests = recording()
    return requests, save(tmp_path_factory.mktemp("base") / "a.parquet", requests)


def test_the_recording_fills_every_column(base: tuple[Requests, Path]) -> None:
    table = pq.read_table(base[1])
    assert [name for name in table.column_names if table[name].null_count == table.num_rows] == []
    assert set(table.column_names) == {column.name for column in COLUMNS} | {"x_note"}


@pytest.mark.parametrize("column", [c for c in COLUMNS if c.name not in ALIGNING], ids=lambda c: c.name)
def test_one_cell(column: Column, base: tuple[Requests, Path], tmp_path: Path) -> None:
    requests, path = base

    def edit(found: Requests) -> None:
        row = found["r1"][row_of(column)]
        row[column.name] = other(column.name, row.get(column.name))

    changed = save(tmp_path / "b.parquet", edited(requests, edit))
    document = compare(path, changed, timing=column.volatile)
    if column.name == "prompt_text":
        told = document["sections"]["requests"]
        assert (told["aligned"], told["listed_a"], told["listed_b"]) == (2, ["r1"], ["r1"])
        assert document["verdict"] == "different"
        return
    section = ELSEWHERE.get(column.name, SECTION[column.group])
    if section == "identity":
        assert document["sections"]["identity"]["requests"]["seed"] == {
            "requests": 1, "request": "r1", "a": None, "b": 7,
        }  # fmt: skip
    else:
        told = columns(document, section)[column.name]
        assert told["changed"] >= 1
        assert told["example"]["request_a"] == "r1"
        assert told["example"]["a"] != told["example"]["b"]
        found = {name for part in (*SECTION.values(), "tokens") for name in _columns(document, part)}
        assert found == {column.name}
    if column.volatile:
        assert document["verdict"] == "identical"
        assert compare(path, changed)["verdict"] == "identical"
    elif column.name in NAMED:
        assert document["verdict"] == "equal within tolerance"
    else:
        assert document["verdict"] not in {"identical", "no aligned request"}


def test_a_user_column(base: tuple[Requests, Path], tmp_path: Path) -> None:
    requests, path = base
    changed = save(
        tmp_path / "b.parquet", edited(requests, lambda found: found["r1"][LIVE].update(x_note=2.5))
    )
    assert columns(compare(path, changed), "schema")["x_note"]["changed"] == 1
    assert compare(path, changed, ignore=frozenset({"x_note"}))["verdict"] == "identical"


@pytest.mark.parametrize("on", ["rounds", "anchors"])
def test_rows_without_a_partner(base: tuple[Requests, Path], tmp_path: Path, on: str) -> None:
    from dflash.diff import On

    requests, path = base

    def turn_live(found: Requests) -> None:
        found["r1"][DENSE] |= {"kind": 0, "round": 4, "anchor_position": 90}

    told = compare(path, save(tmp_path / "b.parquet", edited(requests, turn_live)), on=On(on))
    rows = told["sections"]["requests"]["rows"]
    assert (rows["a"]["alone"], rows["b"]["alone"]) == (1, 1)
    assert told["sections"]["requests"]["status"] == "differs"


def test_an_anchor_elsewhere(base: tuple[Requests, Path], tmp_path: Path) -> None:
    requests, path = base
    moved = edited(requests, lambda found: found["r1"][LIVE].update(anchor_position=77))
    told = compare(path, save(tmp_path / "b.parquet", moved))
    assert told["sections"]["requests"]["rows"]["a"]["other_anchor"] == 1
    assert told["exit_code"] == 1


def test_ignored_columns_do_not_count(base: tuple[Requests, Path], tmp_path: Path) -> None:
    requests, path = base

    def edit(found: Requests) -> None:
        found["r0"][LIVE]["slot_entropy"] = [9.0] * 4

    changed = save(tmp_path / "b.parquet", edited(requests, edit))
    assert compare(path, changed)["exit_code"] == 1
    told = compare(path, changed, ignore=frozenset({"slot_entropy"}))
    assert told["verdict"] == "identical"
    assert told["sections"]["schema"]["ignored"] == ["slot_entropy"]
