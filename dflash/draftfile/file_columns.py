"""Whether a Parquet file has the columns of the format: names, types, nullability, field ids."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.columns import COLUMN, FIELD_ID, arrow_schema, is_user_column
from dflash.draftfile.errors import ColumnFieldId, ColumnMissing, ColumnType


def check_columns(path: Path, parquet: pq.ParquetFile, features: bool) -> pa.Schema:
    """The schema to read with: the format's columns, then the user's.

    Raises:
        ColumnError: A column is missing, of another type, or of another field id.
    """
    found, wanted = parquet.schema_arrow, arrow_schema(features)
    for field in wanted:
        if found.get_field_index(field.name) < 0:
            raise ColumnMissing(path, field.name)
        actual = found.field(field.name)
        if actual.type != field.type or actual.nullable != field.nullable:
            raise ColumnType(path, field.name, _type(field), _type(actual))
        _check_field_ids(path, field.name, actual)
    users = [field for field in found if is_user_column(field.name)]
    return pa.schema([*wanted, *users])


def _check_field_ids(path: Path, name: str, field: pa.Field) -> None:
    column = COLUMN[name]
    found = _field_id(field)
    if found != column.field_id:
        raise ColumnFieldId(path, name, column.field_id, found)
    if column.element_id is not None and (inner := _field_id(field.type.value_field)) != column.element_id:
        raise ColumnFieldId(path, f"the elements of {name}", column.element_id, inner)


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return int(found) if found is not None else None


def _type(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"
