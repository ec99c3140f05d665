"""What goes in comes out, for this toolkit and for DuckDB and polars."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_drafts import header, request, tables, write

from dflash.draftfile.columns import COLUMNS, arrow_schema
from dflash.draftfile.errors import SchemaRefused, UnknownColumn, ValueOutOfType
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.rows import RequestRows

ANY_FOLDER = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY_FOLDER
@given(
    st.integers(0, 2**32),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(1, 9),
    st.booleans(),
)
def test_tables_survive(
    tmp_path: Path, seed: int, requests: int, rounds: int, dense: int, group: int, features: bool
) -> None:
    parts = tables(seed, requests, rounds=rounds, dense=dense, features=features)
    head = header(features={"mode": "fingerprint" if features else "none"})
    write(tmp_path / "run.parquet", parts, head, overwrite=True, row_group_rows=group)
    file = open_draft_file(tmp_path / "run.parquet")
    found = list(file.tables())
    assert file.rows == sum(table.num_rows for table in parts)
    assert file.requests == requests
    assert file.header.raw == head
    whole = pa.concat_tables(parts) if parts else arrow_schema(features).empty_table()
    again = pa.concat_tables(found) if found else arrow_schema(features).empty_table()
    assert again.schema.equals(arrow_schema(features), check_metadata=True)
    assert again.combine_chunks().equals(whole.combine_chunks())


ELEMENT = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32), st.just(math.nan))


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(ELEMENT)), max_size=6))
def test_lists_become_arrow_lists(lists: list[list[float | None] | None]) -> None:
    wanted = [None if row is None else [None if x is None or x != x else x for x in row] for row in lists]
    for form in (list, np.array, lambda row: np.ma.masked_invalid(np.array(row, np.float32))):
        rows = RequestRows("a")
        for row in lists:
            rows.append({"node_logq": None if row is None else form(row), "kind": 0, "round": 0})
        assert rows.table()["node_logq"].to_pylist() == wanted


def test_whole_numbers_with_holes_become_null_elements() -> None:
    rows = RequestRows("a")
    rows.append({"node_rank": np.array([1.0, math.nan])})
    rows.append({"node_rank": np.ma.masked_equal([3, 4], 4)})
    rows.append({"node_rank": [None, 5]})
    assert rows.table()["node_rank"].to_pylist() == [[1, None], [3, None], [None, 5]]


def test_a_timer_that_failed_is_null() -> None:
    rows = RequestRows("a")
    rows.append({"draft_us": math.nan})
    assert rows.table()["draft_us"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("node_parent", [40_000]),
        ("node_token", [0.5]),
        ("emitted", 2**20),
        ("node_token", 3),
        ("truncated_by", 5),
    ],
)
def test_values_that_do_not_fit_are_refused(column: str, value: object) -> None:
    rows = RequestRows("a")
    rows.append({column: value})
    with pytest.raises(ValueOutOfType, match=column):
        rows.table()


def test_unknown_columns_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownColumn, match="did you mean node_token"):
        RequestRows("a").append({"node_tokens": [1]})


def test_user_columns_survive(tmp_path: Path) -> None:
    rows = request(np.random.default_rng(0), "a", rounds=2)
    rows.append(
        {
            "kind": 0,
            "round": 2,
            "anchor_position": 9,
            "anchor_token": 1,
            "x_note": "hello",
            "x_score": [1.5, 2.5],
        }
    )
    write(tmp_path / "run.parquet", [rows.table()])
    file = open_draft_file(tmp_path / "run.parquet")
    (table,) = file.tables(["x_note", "x_score"])
    assert table["x_note"].to_pylist() == [None, None, None, "hello"]
    assert table["x_score"].to_pylist()[-1] == [1.5, 2.5]
    assert {"x_note", "x_score"} <= set(file.column_digests)
    assert file.column_sizes()["user"] > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.drop_columns(["node_logp"]), "no column node_logp"),
        (lambda table: table.append_column("mine", pa.array([1] * table.num_rows)), "unknown column mine"),
        (lambda table: table.set_column(1, "kind", table["kind"].cast(pa.int32())), "kind as int32"),
        (lambda table: table.append_column("x_a.b", pa.array([1] * table.num_rows)), "no plain name"),
        (lambda table: table.append_column("x_words", pa.array([["a"]] * table.num_rows)), "x_words"),
    ],
)
def test_tables_of_another_schema_are_refused(tmp_path: Path, change, words: str) -> None:
    (table,) = tables(1, 1)
    with pytest.raises(SchemaRefused, match=words):
        write(tmp_path / "run.parquet", [change(table)])
    assert list(tmp_path.iterdir()) == []


def test_the_first_request_settles_the_user_columns(tmp_path: Path) -> None:
    first, second = tables(1, 2)
    odd = second.append_column("x_late", pa.array([1] * second.num_rows))
    with pytest.raises(SchemaRefused, match="x_late"):
        write(tmp_path / "run.parquet", [first, odd])


def _plain(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


def test_duckdb_and_polars_read_the_same_values(tmp_path: Path) -> None:
    parts = tables(5, 3, dense=2)
    path = tmp_path / "run.parquet"
    write(path, parts, row_group_rows=4)
    whole = pa.concat_tables(parts)
    frame = pl.read_parquet(path)
    with duckdb.connect() as database:
        for column in COLUMNS:
            if column.group == "features" or column.name == "started_at":
                continue
            wanted = whole[column.name].to_pylist()
            assert frame[column.name].to_list() == wanted, column.name
            rows = f"read_parquet('{path}', file_row_number=true) order by file_row_number"
            query = f"select {column.name} from {rows}"
            assert [row[0] for row in database.execute(query).fetchall()] == wanted, column.name
        pairs = database.execute(f"select key, value from parquet_kv_metadata('{path}')").fetchall()
    assert (b"dflash.format_version", b"1") in pairs
    assert pl.read_parquet_metadata(path)["dflash.complete"] == "true"
    assert frame["started_at"].drop_nulls()[0].isoformat() == "2026-11-29T12:00:00+00:00"


def test_tau_from_sql_is_tau_of_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    write(path, tables(6, 3, rounds=8))
    with duckdb.connect() as database:
        query = f"select avg(len(accepted_nodes) + 1) from '{path}' where kind = 0"
        (tau,) = database.execute(query).fetchone()
    summary = open_draft_file(path).summary
    assert tau == pytest.approx(1 + sum(summary["accepted"]) / summary["rounds"])


def test_memory_is_bounded_by_one_row_group(tmp_path: Path) -> None:
    parts = tables(7, 24, rounds=40, nodes=6)
    write(tmp_path / "run.parquet", parts, row_group_rows=1)
    largest = max(table.nbytes for table in parts)
    before, peak = pa.total_allocated_bytes(), 0
    for table in open_draft_file(tmp_path / "run.parquet").tables():
        assert table.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 4 * largest < sum(part.nbytes for part in parts)
