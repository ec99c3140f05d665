"""What the Parquet metadata must show: encodings by leaf path, checksums, page index, row groups."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from sample_drafts import header, tables, write

from dflash.draftfile.columns import COLUMN, COLUMNS
from dflash.draftfile.reader import open_draft_file


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layout") / "run.parquet"
    write(
        path,
        tables(0, 6, rounds=5, dense=2, features=True),
        header(features={"mode": "all"}),
        row_group_rows=10,
    )
    return path


def chunks(path: Path) -> list[pq.ColumnChunkMetaData]:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    return [group.column(index) for group in groups for index in range(group.num_columns)]


def test_encodings_are_those_of_the_table(path: Path) -> None:
    for chunk in chunks(path):
        column = COLUMN[chunk.path_in_schema.split(".")[0]]
        assert chunk.path_in_schema == (f"{column.name}.list.element" if column.is_list else column.name)
        assert ("BYTE_STREAM_SPLIT" in chunk.encodings) == (column.encoding == "byte_stream_split"), (
            column.name
        )
        assert chunk.has_dictionary_page == (column.encoding == "dictionary"), column.name
        assert chunk.compression == "ZSTD"


@pytest.mark.parametrize(
    ("encoding", "codec"), [("int8", "UNCOMPRESSED"), ("fp8", "UNCOMPRESSED"), ("bf16", "ZSTD")]
)
def test_codes_of_eight_bits_alone_are_not_compressed(tmp_path: Path, encoding: str, codec: str) -> None:
    features = {"mode": "all", "encoding": encoding}
    path = tmp_path / "run.parquet"
    found = write(path, tables(0, 2, rounds=3, features=True), header(features=features))
    codecs = {chunk.path_in_schema: chunk.compression for chunk in chunks(path)}
    assert codecs.pop("feature_values") == codec
    assert set(codecs.values()) == {"ZSTD"}
    assert open_draft_file(path).content_digest == found.content_digest
    assert sum(table.num_rows for table in open_draft_file(path).tables(["feature_values"])) == found.rows


def test_every_chunk_has_a_page_index(path: Path) -> None:
    assert all(chunk.has_offset_index and chunk.has_column_index for chunk in chunks(path))


def test_pages_carry_checksums(path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes())
    chunk = next(chunk for chunk in chunks(path) if chunk.path_in_schema == "node_logp.list.element")
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(data)
    with (
        pytest.raises(OSError, match="CRC"),
        pq.ParquetFile(broken, page_checksum_verification=True) as parquet,
    ):
        parquet.read_row_group(0)


def test_field_ids_stand_in_the_parquet_schema(path: Path) -> None:
    with duckdb.connect() as database:
        rows = database.execute(f"select name, field_id from parquet_schema('{path}')").fetchall()
    ids = dict(row for row in rows if row[0] not in ("element", "list", "schema"))
    elements = [field_id for name, field_id in rows if name == "element"]
    assert ids == {column.name: column.field_id for column in COLUMNS}
    assert elements == [column.element_id for column in COLUMNS if column.is_list]


def test_row_groups_close_at_request_boundaries(path: Path) -> None:
    seen: set[str] = set()
    sizes = []
    for table in open_draft_file(path).tables(["request_id"]):
        names = set(table["request_id"].to_pylist())
        assert not names & seen
        seen |= names
        sizes.append(table.num_rows)
    assert sizes == [16, 16, 16]


def test_row_groups_close_after_enough_bytes(tmp_path: Path) -> None:
    parts = tables(1, 6)
    write(tmp_path / "run.parquet", parts, row_group_bytes=parts[0].nbytes + 1)
    assert 1 < open_draft_file(tmp_path / "run.parquet").row_groups < 6


def test_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, tables(2, 2))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
