"""Digests: equal to a plain reading of the specification, stable over storage, sensitive to every cell."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_drafts import tables, write

from dflash.draftfile import digest
from dflash.draftfile.columns import COLUMN, COLUMNS, arrow_schema
from dflash.draftfile.digest import ColumnDigest, TableDigest, content_digest, encode
from dflash.draftfile.reader import open_draft_file

FORMATS = {
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "float": "<f",
    "bool": "<B",
    "timestamp[us, tz=UTC]": "<q",
}


def spell(value: Any, kind: pa.DataType) -> bytes:
    """The bytes of one cell, written from the words of the specification."""
    if pa.types.is_list(kind):
        if value is None:
            return struct.pack("<i", -1)
        return struct.pack("<i", len(value)) + b"".join(spell(item, kind.value_type) for item in value)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = b"" if value is None else value.encode() if isinstance(value, str) else value
        return struct.pack("<i", -1 if value is None else len(data)) + data
    code = FORMATS[str(kind)]
    return struct.pack("<B", value is not None) + struct.pack(code, value if value is not None else 0)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_encoding_follows_the_specification(column) -> None:
    table = pa.concat_tables(tables(3, 3, dense=2, features=True))
    kind = table[column.name].type
    values = table[column.name]
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    wanted = b"".join(spell(value, kind) for value in values.to_pylist())
    assert encode(table[column.name].combine_chunks()) == wanted


@pytest.mark.parametrize("size", [0, 10, 2000])
@pytest.mark.parametrize("start", [0, 3])
def test_bytes_of_any_length_are_spelled_alike(size: int, start: int) -> None:
    rng = np.random.default_rng(size)
    values = [None if number % 3 == 1 else rng.bytes(int(rng.integers(0, size + 1))) for number in range(20)]
    array = pa.array(values, pa.binary()).slice(start)
    assert encode(array) == b"".join(spell(value, pa.binary()) for value in values[start:])


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=3))), st.data()
)
def test_chunks_do_not_matter(lists: list[Any], data: st.DataObject) -> None:
    whole = pa.array(lists, pa.list_(pa.int32()))
    cut = data.draw(st.integers(0, len(lists)))
    one, two = ColumnDigest(), ColumnDigest()
    one.update(whole)
    two.update(pa.chunked_array([whole.slice(0, cut), whole.slice(cut)], whole.type))
    assert one.hexdigest() == two.hexdigest()


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=2)), max_size=4),
    st.data(),
)
def test_different_lists_have_different_bytes(lists: list[Any], data: st.DataObject) -> None:
    other = data.draw(st.permutations(lists)) + data.draw(st.sampled_from([[], [None], [[]], [[0]]]))
    kind = pa.list_(pa.int8())
    same = encode(pa.array(lists, kind)) == encode(pa.array(other, kind))
    assert same == (lists == other)


def test_every_nan_is_the_same() -> None:
    quiet, odd = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert encode(pa.array([quiet], pa.float32())) == encode(pa.array([odd], pa.float32()))


def test_all_null_columns_are_left_out() -> None:
    digests = TableDigest()
    digests.update(
        pa.table({"node_uniform": pa.nulls(3, COLUMN["node_uniform"].arrow_type), "step": [None, None, 4]})
    )
    assert list(digests.column_digests()) == ["505"]


def test_nulls_before_the_first_value_count() -> None:
    late, later = ColumnDigest(), ColumnDigest()
    late.update(pa.array([None, 1], pa.int32()))
    later.update(pa.array([None, None, 1], pa.int32()))
    assert late.hexdigest() != later.hexdigest()


@pytest.mark.parametrize("at_once", [1, 100, 3000])
@pytest.mark.parametrize("long", [1, 10**9], ids=["one by one", "together"])
def test_a_column_is_digested_in_pieces_as_it_is_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, at_once: int, long: int
) -> None:
    monkeypatch.setattr(digest, "_AT_ONCE", at_once)
    monkeypatch.setattr(digest, "_LONG", long)
    table = pa.concat_tables(tables(7, 4, dense=2, features=True)).combine_chunks().slice(1)
    for name in table.column_names:
        found = ColumnDigest()
        found.update(table[name])
        whole = hashlib.sha256(encode(table[name].combine_chunks())).hexdigest()
        assert found.hexdigest() in (whole, None), name


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 9), st.integers(3000, 300_000)), max_size=9),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_long_values_are_digested_as_the_specification_spells_them(
    sizes: list[int | None], start: int, cut: int
) -> None:
    values = [None if size is None else np.random.default_rng(size).bytes(size) for size in sizes]
    array = pa.array(values, pa.binary())[start:]
    found = ColumnDigest()
    found.update(pa.chunked_array([array[:cut], array[cut:]], pa.binary()))
    wanted = hashlib.sha256(b"".join(spell(value, pa.binary()) for value in values[start:])).hexdigest()
    assert found.hexdigest() == (None if set(values[start:]) <= {None} else wanted)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 99), st.integers(1, 20), st.sampled_from([1, 3, 9]))
def test_digests_are_stable_over_storage(tmp_path: Path, seed: int, rows: int, level: int) -> None:
    parts = tables(seed, 4)
    one = write(tmp_path / "a", parts, overwrite=True)
    two = write(tmp_path / "b", parts, overwrite=True, row_group_rows=rows, compression_level=level)
    assert one.content_digest == two.content_digest == open_draft_file(tmp_path / "b").content_digest
    assert open_draft_file(tmp_path / "a").column_digests == open_draft_file(tmp_path / "b").column_digests


def test_stored_digests_are_recomputed_from_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "a", tables(4, 3, dense=1), row_group_rows=3)
    file = open_draft_file(tmp_path / "a")
    digests = TableDigest()
    for table in file.tables():
        digests.update(table)
    assert digests.column_digests() == file.column_digests


def other(value: Any, kind: pa.DataType) -> Any:
    """Any value of the type but this one."""
    if pa.types.is_list(kind):
        return [] if value is None else None if not value else [other(value[0], kind.value_type), *value[1:]]
    if value is None:
        return {"string": "x", "binary": b"x"}.get(str(kind), 1)
    if isinstance(value, str | bytes):
        return value + value if value else None
    return 1 if value != 1 else 2


@pytest.mark.parametrize("name", [c.name for c in COLUMNS if not c.volatile and str(c.arrow_type) != "bool"])
def test_any_cell_changes_the_content_digest(name: str) -> None:
    table = pa.concat_tables(tables(8, 2, features=True)).combine_chunks()
    before = _content(table)
    position, field = table.column_names.index(name), table.schema.field(name)
    for row in range(table.num_rows):
        values = table[name].to_pylist()
        values[row] = other(values[row], field.type)
        changed = table.set_column(position, pa.field(name, field.type), pa.array(values, field.type))
        assert _content(changed) != before, row


def test_volatile_columns_do_not_change_the_content_digest() -> None:
    table = pa.concat_tables(tables(8, 2)).combine_chunks()
    for column in COLUMNS:
        if column.volatile:
            position = table.column_names.index(column.name)
            table = table.set_column(position, column.name, pa.nulls(table.num_rows, column.arrow_type))
    assert _content(table) == _content(pa.concat_tables(tables(8, 2)))


def test_the_content_digest_is_one_hash_of_sorted_column_digests() -> None:
    digests = {"10": "b", "505": "volatile", "2": "a"}
    text = json.dumps({"10": "b", "2": "a"}, sort_keys=True, separators=(",", ":"))
    assert content_digest(digests) == hashlib.sha256(text.encode()).hexdigest()


def test_a_changed_value_with_right_checksums_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a", tables(9, 1))
    file = open_draft_file(tmp_path / "a")
    table = pq.read_table(tmp_path / "a")
    digests = TableDigest()
    digests.update(table.set_column(4, arrow_schema().field(4), pa.array([1] * table.num_rows, pa.int32())))
    assert digests.column_digests() != file.column_digests


def _content(table: pa.Table) -> str:
    digests = TableDigest()
    digests.update(table)
    return content_digest(digests.column_digests())
