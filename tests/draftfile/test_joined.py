"""Row groups that were encoded apart make the file, byte for byte, that one writer makes of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_drafts import tables

from dflash.draftfile import thrift
from dflash.draftfile.joined import Encoded, Joined, Layout, encoded
from dflash.draftfile.layout import file_schema, parquet_writer
from dflash.draftfile.thrift import Items, decode, encode

PAIRS = {"dflash.a": "b", "dflash.long": "0" * 20_000}


def rows(seed: int, count: int, features: bool) -> pa.Table:
    """Some rows of requests, with the schema that a file of them has."""
    table = pa.concat_tables(tables(seed, count, rounds=5, dense=1, features=features)).combine_chunks()
    return pa.Table.from_arrays(table.columns, schema=file_schema(table.schema, features))


def by_one_writer(groups: Sequence[pa.Table], layout: Layout) -> bytes:
    file = io.BytesIO()
    with parquet_writer(file, layout.schema, layout.level, layout.codes) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
        writer.add_key_value_metadata(PAIRS)
    return file.getvalue()


def joined(groups: Sequence[Encoded], layout: Layout) -> bytes:
    file = io.BytesIO()
    whole = Joined(file, layout)
    for group in groups:
        whole.add(group)
    whole.close(PAIRS)
    return file.getvalue()


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 99),
    st.lists(st.integers(1, 12), max_size=20),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_it_is_the_file_of_one_writer(
    seed: int, sizes: list[int], features: bool, codes: bool, level: int
) -> None:
    """Column by column, with statistics, page index and checksums: none of its bytes differs."""
    table = rows(seed, 4, features)
    layout = Layout(table.schema, level, codes and features)
    groups = [table.slice(seed % 7 + number, size) for number, size in enumerate(sizes)]
    assert joined([encoded(group, layout) for group in groups], layout) == by_one_writer(groups, layout)


def test_columns_of_many_pages_are_found_where_they_moved() -> None:
    """Of values too long for statistics too, which have no extremes in the page index."""
    count = 40_000
    table = pa.table(
        {
            "x_number": pa.array(range(count), pa.int64()),
            "x_list": pa.array([[number, None] for number in range(count)], pa.list_(pa.int32())),
            "x_text": pa.array([f"{number % 9}" * 200 for number in range(count)]),
            "x_long": pa.array(
                [bytes([number % 251]) * 5000 for number in range(300)] + [None] * (count - 300)
            ),
        }
    )
    layout = Layout(table.schema, 3, False)
    groups = [table.slice(0, 25_000), table.slice(25_000)]
    whole = joined([encoded(group, layout) for group in groups], layout)
    assert whole == by_one_writer(groups, layout)
    with pq.ParquetFile(io.BytesIO(whole), page_checksum_verification=True) as file:
        assert [file.read_row_group(number) for number in (0, 1)] == groups
        columns = [file.metadata.row_group(0).column(number) for number in range(4)]
    assert not all(column.has_column_index for column in columns)
    assert all(column.has_offset_index for column in columns)
    found = pq.read_table(io.BytesIO(whole), filters=[("x_number", ">=", 30_000)])
    assert found == table.slice(30_000)


def test_a_row_group_may_be_joined_to_several_files() -> None:
    table = rows(1, 3, True)
    layout = Layout(table.schema, 3, True)
    one = encoded(table, layout)
    assert joined([one, one], layout) == joined([one, one], layout) == by_one_writer([table, table], layout)


def test_a_writer_that_lays_pages_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(1, 1, False)
    write_table = pq.ParquetWriter.write_table

    def twice(self: pq.ParquetWriter, table: pa.Table, **more: int) -> None:
        write_table(self, table, **more)
        self.where.write(b"more")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", twice)
    with pytest.raises(ValueError, match="page index"):
        encoded(table, Layout(table.schema, 3, False))


def structs(depth: int = 2) -> st.SearchStrategy[thrift.Struct]:
    """Structs of fields of any number and kind that Parquet has."""
    integers = {thrift.I16: 15, thrift.I32: 31, thrift.I64: 63}
    leaves: list[st.SearchStrategy[tuple[int, Any]]] = [
        st.tuples(st.just(kind), st.integers(-(2**bits), 2**bits - 1)) for kind, bits in integers.items()
    ]
    leaves += [st.sampled_from([(thrift.TRUE, True), (thrift.FALSE, False)])]
    leaves += [st.tuples(st.just(thrift.BINARY), st.binary(max_size=300))]
    if depth:
        inner = structs(depth - 1)
        leaves += [st.tuples(st.just(thrift.STRUCT), inner)]
        lists = st.one_of(
            st.builds(Items, st.just(thrift.STRUCT), st.lists(inner, max_size=17)),
            st.builds(Items, st.just(thrift.I64), st.lists(st.integers(-9, 2**40), max_size=40)),
            st.builds(Items, st.just(thrift.BINARY), st.lists(st.binary(max_size=9), max_size=17)),
            st.builds(Items, st.just(thrift.TRUE), st.lists(st.sampled_from([1, 2]), max_size=17)),
        )
        leaves += [st.tuples(st.just(thrift.LIST), lists)]
    return st.dictionaries(st.integers(-(2**15), 2**15 - 1), st.one_of(leaves), max_size=5)


@settings(deadline=None, max_examples=60)
@given(structs(), st.binary(max_size=5), st.binary(max_size=5))
def test_what_is_written_is_read(struct: thrift.Struct, before: bytes, after: bytes) -> None:
    text = encode(struct)
    assert decode(before + text + after, len(before)) == (struct, len(before) + len(text))
    for end in range(len(text)):
        with pytest.raises(IndexError):
            decode(text[:end])


def test_the_protocol_is_spelled_as_its_specification_does() -> None:
    """https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md"""
    struct: thrift.Struct = {
        1: (thrift.I32, 50399),
        2: (thrift.TRUE, True),
        20: (thrift.I16, -1),
        21: (thrift.BINARY, b"ab"),
        22: (thrift.LIST, Items(thrift.I32, [1, -2])),
        23: (thrift.STRUCT, {1: (thrift.FALSE, False)}),
    }
    spelled = "15 be 93 06 11 04 28 01 18 02 61 62 19 25 02 03 1c 12 00 00"
    assert encode(struct) == bytes.fromhex(spelled)


def test_a_kind_that_parquet_does_not_use_is_refused() -> None:
    with pytest.raises(ValueError, match="found 11"):
        decode(bytes([0x1B, 0x00, 0x00]))


def test_footers_of_others_are_written_as_they_were_read() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1, None], "b": [["x"], []]}), file)
    data = file.getvalue()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer, end = decode(data, start)
    assert (encode(footer), end) == (data[start:-8], len(data) - 8)
