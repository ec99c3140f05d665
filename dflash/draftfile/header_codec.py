"""The header's schema, and how numbers become strings in its canonical JSON and numbers again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from dflash.draftfile.errors import HeaderInvalid
from dflash.draftfile.schema_check import SchemaChecker

FLOAT = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")

Json = dict[str, Any]


@cache
def header_schema() -> Json:
    """The JSON Schema of the header as it stands in the file."""
    path = resources.files("dflash").joinpath("schemas", "header_v1.schema.json")
    schema: Json = json.loads(path.read_text("utf-8"))
    return schema


def to_numbers(encoded: Any) -> Any:
    """A header as it stands in the file, with numbers where the schema says that a string is one."""
    return _walk(encoded, header_schema(), _decode)


def with_floats(header: Any) -> Any:
    """A header with whole numbers as floats where the schema wants floats.

    Raises:
        ValueError: A string in a free place would come back as a number.
    """
    return _walk(header, header_schema(), _numeric)


def validate(encoded: Any, path: Path | None = None) -> None:
    """Checks a header as it stands in the file against the schema.

    Raises:
        HeaderInvalid: The first violation.
    """
    violation = next(_checker().violations(encoded), None)
    if violation is not None:
        where = ".".join(str(step) for step in violation.path) or "the top"
        raise HeaderInvalid(where, f"expected {violation.expected}, found {violation.found}", path)


@cache
def _checker() -> SchemaChecker:
    return SchemaChecker(header_schema())


def _walk(value: Any, node: Json, change: Callable[[Any, str], Any]) -> Any:
    """Applies `change(value, definition)` wherever the schema refers to a number or a free value."""
    reference = node.get("$ref")
    if reference is not None:
        name = reference.rpartition("/")[2]
        changed = change(value, name)
        return _walk(changed, header_schema()["$defs"][name], change)
    branches = [branch for branch in node.get("anyOf", []) if branch != {"type": "null"}]
    if branches and value is not None:
        return _walk(value, branches[0], change)
    if isinstance(value, dict):
        known, other = node.get("properties", {}), node.get("additionalProperties", {})
        return {key: _walk(item, known.get(key, other), change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, node.get("items", {}), change) for item in value]
    return value


def _numeric(value: Any, definition: str) -> Any:
    if definition == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if definition == "value" and _free(value) != value:
        raise ValueError(f"a string that reads as a number in {value!r}")
    return value


def _decode(value: Any, definition: str) -> Any:
    if definition == "float" and isinstance(value, str):
        return float(value)
    if definition == "big_integer" and isinstance(value, str):
        return int(value)
    return _free(value) if definition == "value" else value


def _free(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _free(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_free(item) for item in value]
    is_float = isinstance(value, str) and FLOAT.fullmatch(value) and ("." in value or "e" in value)
    return float(value) if is_float else value
