"""The column table: unique ids for ever, types that Arrow has, a schema that derives from it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pyarrow as pa
from frozen_ids import FIELD_IDS

from dflash.draftfile.columns import COLUMNS, FIELD_ID, arrow_schema

SCHEMAS = Path(__file__).parents[2] / "schemas"


def test_names_and_ids_are_unique() -> None:
    names = [column.name for column in COLUMNS]
    ids = [column.field_id for column in COLUMNS] + [
        column.element_id for column in COLUMNS if column.element_id
    ]
    assert len(set(names)) == len(names)
    assert len(set(ids)) == len(ids)


def test_field_ids_are_for_ever() -> None:
    assert {column.name: (column.field_id, column.type) for column in COLUMNS} == FIELD_IDS


def test_element_ids_are_the_field_ids_plus_1000() -> None:
    for column in COLUMNS:
        assert column.field_id < 1000
        assert column.element_id == (column.field_id + 1000 if column.type.startswith("list<") else None)
        assert (column.element_nullable is None) == (column.element_id is None)


def test_a_group_has_its_own_hundred() -> None:
    hundreds = {}
    for column in COLUMNS:
        hundreds.setdefault(column.field_id // 100, set()).add(column.group)
    assert all(len(groups) == 1 for groups in hundreds.values())


def test_encodings_follow_the_types() -> None:
    for column in COLUMNS:
        is_float = pa.types.is_floating(column.leaf_type)
        is_text = pa.types.is_string(column.leaf_type)
        assert (column.encoding == "dictionary") == is_text
        if is_float or column.unit == "token id":
            assert column.encoding == "byte_stream_split"


def test_arrow_schema_has_the_ids_on_fields_and_elements() -> None:
    for column, field in zip(COLUMNS, arrow_schema(features=True), strict=True):
        assert field.metadata[FIELD_ID] == str(column.field_id).encode()
        if column.is_list:
            assert field.type.value_field.metadata[FIELD_ID] == str(column.element_id).encode()


def test_features_are_only_there_on_request() -> None:
    lean = set(arrow_schema().names)
    assert {name for name in arrow_schema(features=True).names if name not in lean} == {
        "feature_values",
        "feature_scale",
        "feature_fingerprint",
    }


def test_only_the_volatile_group_is_volatile() -> None:
    assert all(column.volatile == (column.group == "volatile") for column in COLUMNS)


def test_the_table_fits_its_json_schema() -> None:
    table = json.loads((SCHEMAS / "draft_file_v1.json").read_text("utf-8"))
    column = json.loads((SCHEMAS / "schema_v1.schema.json").read_text("utf-8"))["properties"]["columns"]
    jsonschema.validate(table["columns"], column)
