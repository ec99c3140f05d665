"""Attacks on files: each kind of damage is refused by its own class, in words that name the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_drafts import Pairs, forge, tables, write

from dflash.draftfile import errors
from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.columns import FIELD_ID, arrow_schema
from dflash.draftfile.errors import DraftFileError
from dflash.draftfile.footer import METADATA_LIMIT, check_body, open_parquet, read_pairs
from dflash.draftfile.metadata import footer_start
from dflash.draftfile.reader import open_draft_file
from dflash.errors import DflashError


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "run.parquet"
    write(path, tables(1, 2, rounds=2, dense=1), row_group_rows=1)
    return path


def read(path: Path) -> list[pa.Table]:
    return list(open_draft_file(path).tables())


Bytes = Callable[[bytes], bytes]
BYTES: list[tuple[str, Bytes, type[DraftFileError], str]] = [
    ("empty", lambda data: b"", errors.FileEmpty, "0 bytes"),
    ("half of it", lambda data: data[: len(data) // 2], errors.FileTruncated, "end is missing"),
    ("one byte less", lambda data: data[:-1], errors.FileTruncated, "end is missing"),
    ("four bytes", lambda data: data[:4], errors.FileTruncated, "4 bytes"),
    ("head cut off", lambda data: data[4:], errors.NotParquet, "PAR1"),
    ("some text", lambda data: b"prompt,answer\n" * 99, errors.NotParquet, "b'prom'"),
    ("a trailing byte", lambda data: data + b"\n", errors.TrailingBytes, "1 bytes more"),
    ("trailing zeros", lambda data: data + bytes(5000), errors.TrailingBytes, "5000 bytes more"),
    ("a trailing end", lambda data: data + b"\xff\xff\xff\xffPAR1.", errors.TrailingBytes, "9 bytes more"),
    (
        "half of it and an end",
        lambda data: data[: len(data) // 2] + b"PAR1.",
        errors.FileTruncated,
        "missing",
    ),
    (
        "footer too long",
        lambda data: _length(data, METADATA_LIMIT + 1),
        errors.MetadataTooLarge,
        str(METADATA_LIMIT),
    ),
    ("footer over the file", lambda data: _length(data, len(data)), errors.FileTruncated, "claims"),
    ("footer of zeros", lambda data: data[:-600] + bytes(592) + data[-8:], errors.FooterCorrupt, "footer"),
    ("middle of zeros", lambda data: data[:400] + bytes(400) + data[800:], errors.PageCorrupt, "row group 0"),
]


def _length(data: bytes, length: int) -> bytes:
    return data[:-8] + struct.pack("<I", length) + data[-4:]


@pytest.mark.parametrize(
    ("change", "error", "words"), [case[1:] for case in BYTES], ids=[case[0] for case in BYTES]
)
def test_damaged_bytes(
    good: Path, tmp_path: Path, change: Bytes, error: type[DraftFileError], words: str
) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(change(good.read_bytes()))
    _refused(path, error, words)


def _refused(path: Path, error: type[DraftFileError], words: str) -> None:
    with pytest.raises(DraftFileError) as caught:
        read(path)
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def setting(**changes: Any) -> Callable[[Pairs], Pairs]:
    def change(pairs: Pairs) -> Pairs:
        named = {f"dflash.{key}": value for key, value in changes.items()}
        return {key: value for key, value in (pairs | named).items() if value is not None}

    return change


def heading(**changes: Any) -> Callable[[Pairs], Pairs]:
    def change(pairs: Pairs) -> Pairs:
        return pairs | {"dflash.header": canonical_json(json.loads(pairs["dflash.header"]) | changes)}

    return change


METADATA: list[tuple[str, Callable[[Pairs], Pairs], type[DraftFileError], str]] = [
    ("newer format", setting(format_version="2"), errors.NewerFormat, "format 2"),
    ("odd format", setting(format_version="one"), errors.MetadataInvalid, "dflash.format_version"),
    ("no format", setting(format_version=None), errors.NotADraftFile, "dflash.format_version"),
    (
        "unknown capability",
        setting(requires='["features","time_travel"]'),
        errors.UnknownCapability,
        "'time_travel'",
    ),
    ("dated capability", setting(requires='["time_travel@9.1"]'), errors.UnknownCapability, "9.1 or newer"),
    ("odd capabilities", setting(requires='{"a":1}'), errors.MetadataInvalid, "dflash.requires"),
    ("no capabilities", setting(requires=None), errors.MetadataInvalid, "dflash.requires"),
    ("incomplete", setting(complete=None), errors.Incomplete, "dflash.complete"),
    ("complete is false", setting(complete="false"), errors.Incomplete, "recover"),
    ("rows miscounted", setting(rows="99"), errors.RowsDisagree, "99 rows"),
    ("rows are no count", setting(rows="-8"), errors.MetadataInvalid, "dflash.rows"),
    ("no run", setting(run_id=None), errors.MetadataInvalid, "dflash.run_id"),
    ("no header", setting(header=None), errors.MetadataInvalid, "dflash.header"),
    ("header is no json", setting(header="{"), errors.HeaderInvalid, "no JSON"),
    ("header without target", heading(target=None), errors.HeaderInvalid, "target"),
    ("summary is no json", setting(summary="{"), errors.MetadataInvalid, "dflash.summary"),
    ("summary without rounds", setting(summary="{}"), errors.MetadataInvalid, "dflash.summary"),
    ("other settings are no json", setting(other_settings="{"), errors.MetadataInvalid, "other_settings"),
    (
        "other settings are no counts",
        setting(other_settings='{"seed":"x"}'),
        errors.MetadataInvalid,
        "counts",
    ),
    ("other settings are a list", setting(other_settings="[1]"), errors.MetadataInvalid, "other_settings"),
    ("features without columns", setting(requires='["features"]'), errors.ColumnMissing, "feature_values"),
]


@pytest.mark.parametrize(
    ("change", "error", "words"), [case[1:] for case in METADATA], ids=[case[0] for case in METADATA]
)
def test_wrong_metadata_under_a_right_seal(
    good: Path, tmp_path: Path, change: Callable[[Pairs], Pairs], error: type[DraftFileError], words: str
) -> None:
    _refused(forge(good, tmp_path / "bad.parquet", pairs=change), error, words)


@pytest.mark.parametrize(
    "key", ["header", "summary", "rows", "content_digest", "column_digests", "run_status", "note"]
)
def test_a_changed_pair_breaks_the_seal(good: Path, tmp_path: Path, key: str) -> None:
    change = setting(**{key: "7"})
    _refused(
        forge(good, tmp_path / "bad.parquet", pairs=change, seal=False),
        errors.SealBroken,
        "dflash.* metadata",
    )


def test_a_missing_seal_is_refused(good: Path, tmp_path: Path) -> None:
    path = forge(good, tmp_path / "bad.parquet", pairs=setting(seal=None), seal=False)
    _refused(path, errors.MetadataInvalid, "dflash.seal")


def test_a_parquet_file_of_someone_else(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "bad.parquet")
    _refused(tmp_path / "bad.parquet", errors.NotADraftFile, "no draft file")


REWRITTEN: dict[str, Callable[[pa.Table], pa.Table]] = {
    "as it is": lambda table: table,
    "without field ids": lambda table: table.cast(
        pa.schema([pa.field(field.name, field.type, field.nullable) for field in table.schema])
    ),
    "all nullable": lambda table: pa.table(dict(zip(table.column_names, table.columns, strict=True))),
    "a column dropped": lambda table: table.drop_columns(["slot_gap"]),
    "a column more": lambda table: table.append_column("x_mine", pa.array([1] * table.num_rows)),
    "fewer rows": lambda table: table.slice(0, 1),
}


@pytest.mark.parametrize("change", REWRITTEN.values(), ids=REWRITTEN.keys())
@pytest.mark.parametrize("kept", [True, False], ids=["metadata kept", "metadata dropped"])
def test_a_draft_file_that_another_tool_has_rewritten(
    good: Path, tmp_path: Path, change: Callable[[pa.Table], pa.Table], kept: bool
) -> None:
    pairs = pq.read_metadata(good).metadata if kept else None
    table = change(pq.read_table(good))
    pq.write_table(table.replace_schema_metadata(pairs), tmp_path / "bad.parquet")
    if kept:
        _refused(tmp_path / "bad.parquet", errors.FooterChanged, "another program has written it anew")
    else:
        _refused(tmp_path / "bad.parquet", errors.NotADraftFile, "program that wrote it has dropped")


def _replaced(name: str, field: Callable[[pa.Field], pa.Field]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        position = table.column_names.index(name)
        wanted = field(table.schema.field(name))
        return table.set_column(position, wanted, table[name].cast(wanted.type))

    return change


def _with_id(field: pa.Field) -> pa.Field:
    return field.with_metadata({FIELD_ID: b"77"})


def _with_element_id(field: pa.Field) -> pa.Field:
    return field.with_type(pa.list_(field.type.value_field.with_metadata({FIELD_ID: b"77"})))


COLUMN_CASES: list[tuple[str, Callable[[pa.Table], pa.Table], type[DraftFileError], str]] = [
    ("missing", lambda table: table.drop_columns(["slot_gap"]), errors.ColumnMissing, "slot_gap"),
    ("renamed", lambda table: table.rename_columns({"slot_gap": "x_gap"}), errors.ColumnMissing, "slot_gap"),
    (
        "wider",
        _replaced("kind", lambda field: field.with_type(pa.int64())),
        errors.ColumnType,
        "kind to be int8",
    ),
    (
        "double",
        _replaced("node_logp", lambda field: field.with_type(pa.list_(pa.float64()))),
        errors.ColumnType,
        "node_logp",
    ),
    ("nullable", _replaced("kind", lambda field: field.with_nullable(True)), errors.ColumnType, "not null"),
    ("wrong id", _replaced("kind", _with_id), errors.ColumnFieldId, "field id 2 for kind, found 77"),
    (
        "wrong element id",
        _replaced("node_token", _with_element_id),
        errors.ColumnFieldId,
        "field id 1101 for the elements of node_token, found 77",
    ),
]


@pytest.mark.parametrize(
    ("change", "error", "words"), [case[1:] for case in COLUMN_CASES], ids=[case[0] for case in COLUMN_CASES]
)
def test_wrong_columns(
    good: Path,
    tmp_path: Path,
    change: Callable[[pa.Table], pa.Table],
    error: type[DraftFileError],
    words: str,
) -> None:
    _refused(forge(good, tmp_path / "bad.parquet", table=change), error, words)


def test_columns_of_a_later_writer_are_ignored(good: Path, tmp_path: Path) -> None:
    def add(table: pa.Table) -> pa.Table:
        return table.append_column("node_mood", pa.array([1] * table.num_rows))

    file = open_draft_file(forge(good, tmp_path / "later.parquet", table=add))
    assert file.schema.names == arrow_schema().names
    assert sum(table.num_rows for table in file.tables()) == file.rows


def test_unknown_optional_pairs_are_ignored(good: Path, tmp_path: Path) -> None:
    path = forge(good, tmp_path / "later.parquet", pairs=setting(mood="fine"))
    assert read(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    _refused(tmp_path / "missing.parquet", errors.FileMissing, "does not exist")
    _refused(tmp_path, errors.NotAFile, "not a regular file")


def test_a_file_replaced_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    write(path, tables(1, 1))
    file = open_draft_file(path)
    write(path, tables(2, 1), overwrite=True)
    with pytest.raises(errors.FooterChanged):
        next(file.tables())


def test_a_column_that_the_file_does_not_have(good: Path) -> None:
    with pytest.raises(errors.ColumnUnknown, match="did you mean node_logp"):
        next(open_draft_file(good).tables(["node_logprob"]))


def _every_flip(path: Path, target: Path, places: range, original: list[pa.Table]) -> tuple[int, list[int]]:
    """Flips one bit at each place; returns how many were refused and where other values were read."""
    data, rng, refused, wrong = path.read_bytes(), np.random.default_rng(0), 0, []
    for place in places:
        broken = bytearray(data)
        broken[place] ^= 1 << int(rng.integers(8))
        target.write_bytes(broken)
        try:
            if read(target) != original:
                wrong.append(place)
        except DflashError:
            refused += 1
    return refused, wrong


def test_every_flipped_bit_of_the_footer_is_refused(good: Path, tmp_path: Path) -> None:
    with good.open("rb") as file:
        start = footer_start(file)
    places = range(start, good.stat().st_size, 97)
    refused, wrong = _every_flip(good, tmp_path / "bad.parquet", places, read(good))
    assert wrong == []
    assert refused == len(places)


def test_no_flipped_bit_of_the_body_is_read_as_another_value(good: Path, tmp_path: Path) -> None:
    with good.open("rb") as file:
        start = footer_start(file)
    refused, wrong = _every_flip(good, tmp_path / "bad.parquet", range(0, start, 113), read(good))
    assert wrong == []
    assert refused > 0


def test_every_flipped_bit_of_the_body_changes_its_digest(good: Path, tmp_path: Path) -> None:
    with good.open("rb") as file:
        start = footer_start(file)
    target = tmp_path / "bad.parquet"
    with open_parquet(good) as parquet:
        pairs = read_pairs(target, parquet)
    for place in range(0, start, 113):
        data = bytearray(good.read_bytes())
        data[place] ^= 1 << (place % 8)
        target.write_bytes(data)
        with pytest.raises(errors.BodyChanged):
            check_body(target, pairs)


@pytest.mark.slow
def test_bytes_all_over_the_file(good: Path, tmp_path: Path) -> None:
    _, wrong = _every_flip(good, tmp_path / "bad.parquet", range(0, good.stat().st_size, 11), read(good))
    assert wrong == []


def test_errors_of_every_class_end_with_code_2() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DflashError)
    ]
    assert {kind.exit_code for kind in kinds} == {2}
