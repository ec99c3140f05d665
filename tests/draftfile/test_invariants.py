"""Every way in which rows can break the format has its own error, with file, row group and row."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_drafts import PADDED, K, forge, header, request, tables, write

from dflash.draftfile import violations as broken
from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import DataError
from dflash.draftfile.header import validate_header
from dflash.draftfile.invariants import check_rows, row_problems
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.requests import check_requests
from dflash.draftfile.view import Limits
from dflash.draftfile.violations import RequestSplit, RowOrder

LIMITS = Limits.of(validate_header(header()))
Change = Callable[[pa.Table], pa.Table]
ROW = 3


def put(name: str, value: Any, row: int = ROW) -> Change:
    """Sets one cell, or one cell as a function of what was there."""

    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value(values[row]) if callable(value) else value
        position, field = table.column_names.index(name), table.schema.field(name)
        return table.set_column(position, field, pa.array(values, field.type))

    return change


def one_request() -> pa.Table:
    return request(np.random.default_rng(11), "a", rounds=4, dense=2, nodes=5).table()


def longer(values: list[Any]) -> list[Any]:
    return [*values, *values[-1:]]


CASES: list[tuple[str, Change, type[DataError]]] = [
    ("kind 7", put("kind", 7), broken.KindUnknown),
    ("kind -1", put("kind", -1), broken.KindUnknown),
    *[
        (f"{name} one longer", put(name, longer), broken.ListLength)
        for name, column in COLUMN.items()
        if column.per in ("node", "slot", "K per slot") and name != "node_token"
    ],
    ("node_token one longer", put("node_token", longer), broken.ListLength),
    ("slots gone", put("slot_choice", []), broken.ListLength),
    ("draft top-k one longer", put("draft_topk_logit", longer), broken.ListLength),
    ("draft top-k without slots", put("draft_lse", [None] * 6), broken.ListLength),
    ("parent of itself", put("node_parent", [0, -1, 0, 1, 2]), broken.ParentOrder),
    ("child before parent", put("node_parent", [-1, 2, 0, 1, 2]), broken.ParentOrder),
    ("parent below the anchor", put("node_parent", [-1, -2, 0, 1, 2]), broken.ParentOrder),
    ("path leaves the tree", put("accepted_nodes", [99]), broken.AcceptedPath),
    ("path of a negative node", put("accepted_nodes", [-1]), broken.AcceptedPath),
    ("path twice the same", put("accepted_nodes", [0, 0]), broken.AcceptedPath),
    ("truncated by magic", put("truncated_by", "magic"), broken.TruncationUnknown),
    ("source without drafter", put("node_source", [0, 0, 2, 0, 0]), broken.SourceRange),
    *[
        (
            f"{name} {found}",
            put(name, found if not COLUMN[name].is_list else lambda old, found=found: [*old[:-1], found]),
            broken.TokenRange,
        )
        for name, column in COLUMN.items()
        if column.unit == "token id" and name not in ("prompt_tokens", "draft_topk_token")
        for found in (-1, PADDED)
    ],
    ("prompt token too big", put("prompt_tokens", [PADDED], row=0), broken.TokenRange),
    *[
        (
            f"{name} {found}",
            put(name, found if not COLUMN[name].is_list else lambda old, found=found: [found, *old[1:]]),
            broken.NotFinite,
        )
        for name, column in COLUMN.items()
        if pa.types.is_floating(column.leaf_type)
        and column.group in ("tree", "target", "volatile")
        and "draft_topk" not in name
        for found in (math.nan, math.inf, -math.inf)
        if found != -math.inf or name not in ("node_logp", "slot_cutoff")
    ],
]


@pytest.mark.parametrize(("change", "error"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_violation_has_its_class_and_its_row(change: Change, error: type[DataError]) -> None:
    with pytest.raises(DataError) as caught:
        check_rows(change(one_request()), LIMITS)
    assert type(caught.value) is error
    assert caught.value.row in (0, ROW)
    assert "expected" in str(caught.value)
    assert "found" in str(caught.value)


@pytest.mark.parametrize(("name", "row"), [("node_logp", ROW), ("slot_cutoff", ROW), ("trunk_logq", 6)])
def test_minus_infinity_is_allowed_where_a_probability_may_be_zero(name: str, row: int) -> None:
    check_rows(put(name, lambda old: [-math.inf, *old[1:]], row)(one_request()), LIMITS)


def test_accepted_sibling_is_no_path() -> None:
    table = put("node_parent", [-1, -1, 0, 0, 1])(one_request())
    with pytest.raises(broken.AcceptedPath, match="child of node 0, found node 1"):
        check_rows(put("accepted_nodes", [0, 1])(table), LIMITS)
    check_rows(put("accepted_nodes", [1, 4])(table), LIMITS)


def test_null_where_a_value_must_be() -> None:
    for name in ("request_id", "kind", "round", "anchor_position", "anchor_token"):
        with pytest.raises(broken.NullValue, match=name):
            check_rows(put(name, None)(_nullable(one_request())), LIMITS)
    with pytest.raises(broken.NullValue, match="node_token"):
        check_rows(put("node_token", [1, None, 2, 3, 4])(_nullable(one_request())), LIMITS)


def _nullable(table: pa.Table) -> pa.Table:
    kinds = {"node_token": pa.list_(pa.int32())}
    return table.cast(
        pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in table.schema])
    )


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(sorted(COLUMN)), min_size=1))
def test_good_rows_pass_whatever_columns_are_read(seed: int, names: set[str]) -> None:
    (table,) = tables(seed, 1, dense=2)
    wanted = [name for name in table.column_names if name in names]
    assert row_problems(table.select(wanted), LIMITS) == []
    check_requests(table.select(wanted), set())


@pytest.mark.parametrize(
    "name", [name for name, column in COLUMN.items() if column.nullable and name != "node_parent"]
)
def test_any_nullable_value_may_be_absent(name: str) -> None:
    table = one_request()
    if name in table.column_names:
        assert row_problems(put(name, None)(table), LIMITS) == []


def test_all_kinds_of_problems_are_found_at_once() -> None:
    table = put("kind", 9)(put("truncated_by", "magic")(put("accepted_nodes", [99])(one_request())))
    kinds = {type(problem) for problem in row_problems(table, LIMITS)}
    assert kinds == {broken.KindUnknown, broken.TruncationUnknown, broken.AcceptedPath}


def test_an_empty_table_is_fine() -> None:
    assert row_problems(one_request().slice(0, 0), LIMITS) == []
    assert check_requests(one_request().slice(0, 0), set()) == set()


ORDER: list[tuple[str, Change, type[DataError]]] = [
    ("a later row of another request", put("request_id", "b", row=2), RequestSplit),
    ("live after dense", put("kind", 1, row=2), RowOrder),
    ("two prefills", put("kind", 2, row=1), RowOrder),
    ("no prefill", put("kind", 0, row=0), RowOrder),
    ("a round left out", put("round", 5, row=2), RowOrder),
    ("a dense row with a round", put("round", 0, row=6), RowOrder),
    ("rounds from one", put("round", 1, row=1), RowOrder),
]


@pytest.mark.parametrize(("change", "error"), [case[1:] for case in ORDER], ids=[case[0] for case in ORDER])
def test_rows_out_of_order(change: Change, error: type[DataError]) -> None:
    with pytest.raises(error):
        check_requests(change(one_request()), set())


def test_a_request_in_two_row_groups() -> None:
    seen = check_requests(one_request(), set())
    assert seen == {"a"}
    with pytest.raises(RequestSplit, match="'a'"):
        check_requests(one_request(), seen)


@pytest.mark.parametrize(
    ("change", "error"), [case[1:] for case in CASES[:3]], ids=[case[0] for case in CASES[:3]]
)
def test_the_writer_refuses_bad_rows(tmp_path: Path, change: Change, error: type[DataError]) -> None:
    with pytest.raises(error):
        write(tmp_path / "run.parquet", [change(one_request())])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "error"),
    [(case[1], case[2]) for case in CASES + ORDER],
    ids=[case[0] for case in CASES + ORDER],
)
def test_the_reader_refuses_bad_rows_and_says_where(
    tmp_path: Path, change: Change, error: type[DataError]
) -> None:
    write(tmp_path / "good.parquet", [one_request()])
    forge(tmp_path / "good.parquet", tmp_path / "bad.parquet", table=change)
    file = open_draft_file(tmp_path / "bad.parquet")
    with pytest.raises(error) as caught:
        list(file.tables())
    assert str(caught.value).startswith(
        f"{tmp_path}/bad.parquet, row group 0, row {caught.value.row}: expected "
    )


def test_top_logits_are_k_per_slot_of_the_logical_vocabulary() -> None:
    assert LIMITS.topk == K
    assert Limits.of(validate_header(header(store_topk=999))).topk == 100
