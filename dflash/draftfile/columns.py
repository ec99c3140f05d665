"""The columns of a draft file, read from the machine-readable table that is their single source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import pyarrow as pa

FORMAT_VERSION = 1
USER_PREFIX = "x_"
FIELD_ID = b"PARQUET:field_id"

Group = Literal["identity", "tree", "target", "decision", "dense", "volatile", "features"]
Encoding = Literal["byte_stream_split", "dictionary", "plain"]

_LEAVES: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One row of `schemas/draft_file_v1.json`.

    Attributes:
        field_id: Parquet field id; given for ever, never reused.
        element_id: Field id of the list elements; None for scalars.
        type: Arrow type in words, such as `int32` or `list<float32>`.
        per: What one value, or one list element, belongs to.
        since: Format version that introduced the column.
        volatile: Left out of the content digest.
    """

    name: str
    field_id: int
    element_id: int | None
    type: str
    unit: str | None
    nullable: bool
    element_nullable: bool | None
    encoding: Encoding
    per: str
    group: Group
    meaning: str
    since: int
    volatile: bool

    @property
    def is_list(self) -> bool:
        """Whether a value is a list."""
        return self.element_id is not None

    @property
    def leaf_type(self) -> pa.DataType:
        """Arrow type of the value, or of a list element."""
        return _LEAVES[self.type.removeprefix("list<").removesuffix(">")]

    @property
    def arrow_type(self) -> pa.DataType:
        """Arrow type, with the field id on the elements of a list."""
        if self.element_id is None:
            return self.leaf_type
        element = pa.field("element", self.leaf_type, bool(self.element_nullable))
        return pa.list_(element.with_metadata({FIELD_ID: str(self.element_id)}))

    @property
    def arrow_field(self) -> pa.Field:
        """Arrow field with its field id."""
        return pa.field(self.name, self.arrow_type, self.nullable, {FIELD_ID: str(self.field_id)})


def _load() -> tuple[Column, ...]:
    table = resources.files("dflash").joinpath("schemas", "draft_file_v1.json").read_text("utf-8")
    rows: list[dict[str, Any]] = json.loads(table)["columns"]
    return tuple(Column(**row) for row in rows)


COLUMNS: tuple[Column, ...] = _load()
COLUMN: Mapping[str, Column] = {column.name: column for column in COLUMNS}


@cache
def arrow_schema(features: bool = False) -> pa.Schema:
    """The explicit schema of a draft file.

    Args:
        features: Include the columns of the capability `features`.

    Returns:
        Fields in table order, field ids in `PARQUET:field_id`, on list elements too.
    """
    wanted = [column for column in COLUMNS if features or column.group != "features"]
    return pa.schema([column.arrow_field for column in wanted])


def is_user_column(name: str) -> bool:
    """Whether a column is a user's own."""
    return name.startswith(USER_PREFIX)
