"""Checks a JSON value against the few JSON Schema keywords that the header's schema uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = Mapping[str, Any]

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}
DESCRIPTIONS = {"$schema", "$id", "title", "description"}
CHECKS = {"type", "enum", "pattern", "minLength", "minimum", "required"}
BRANCHES = {"$ref", "$defs", "anyOf", "properties", "items", "additionalProperties"}


class Violation(NamedTuple):
    """Where a value breaks the schema, and how; `found` is shortened."""

    path: tuple[str | int, ...]
    expected: str
    found: str


class SchemaChecker:
    """The verdict that a JSON Schema validator (draft 2020-12) gives, on the keywords known here.

    Args:
        schema: The whole schema; references are to its own `$defs`.

    Raises:
        ValueError: The schema uses a keyword or a form of one that is not known here.
    """

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._definitions: Json = schema.get("$defs", {})
        self._refuse_unknown(schema)

    def violations(self, value: Any) -> Iterator[Violation]:
        """Everything that is wrong with a value as `json.loads` gives it, from the top down."""
        yield from self._check(value, self._schema, ())

    def _refuse_unknown(self, node: Any) -> None:
        if not isinstance(node, Mapping):
            raise ValueError(f"expected a schema as an object, found {node!r}")
        if unknown := sorted(set(node) - DESCRIPTIONS - CHECKS - BRANCHES):
            raise ValueError(f"the schema uses keywords that are not known here: {', '.join(unknown)}")
        if unknown := sorted(_types(node) - set(TYPES) - {"integer"}):
            raise ValueError(f"the schema uses types that are not known here: {', '.join(unknown)}")
        if not all(option is None or isinstance(option, str) for option in node.get("enum", [])):
            raise ValueError(f"expected an enum of strings and null, found {node['enum']}")
        if "$ref" in node and node["$ref"].removeprefix("#/$defs/") not in self._definitions:
            raise ValueError(f"expected a reference to one of $defs, found {node['$ref']}")
        inner = node.get("anyOf", []) + [
            node[key] for key in ("items", "additionalProperties") if key in node
        ]
        for key in ("properties", "$defs"):
            inner += node.get(key, {}).values()
        for child in inner:
            self._refuse_unknown(child)

    def _check(self, value: Any, node: Json, path: tuple[str | int, ...]) -> Iterator[Violation]:
        if "$ref" in node:
            yield from self._check(value, self._definitions[node["$ref"].removeprefix("#/$defs/")], path)
        if expected := _broken(value, node):
            yield Violation(path, expected, _shown(value))
        if "anyOf" in node:
            tried = [list(self._check(value, branch, path)) for branch in node["anyOf"]]
            if all(tried):
                # the branch that came furthest tells most
                yield max(tried, key=lambda found: len(found[0].path))[0]
        if isinstance(value, dict):
            known, other = node.get("properties", {}), node.get("additionalProperties")
            for key, item in value.items():
                child = known.get(key, other)
                if child is not None:
                    yield from self._check(item, child, (*path, key))
        if isinstance(value, list) and "items" in node:
            for index, item in enumerate(value):
                yield from self._check(item, node["items"], (*path, index))


def _types(node: Json) -> set[str]:
    kinds = node.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _broken(value: Any, node: Json) -> str | None:
    """What the keywords about the value itself expect, if it is something else."""
    kinds = _types(node)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return " or ".join(sorted(kinds))
    if "enum" in node and value not in node["enum"]:
        return " or ".join(str(option) for option in node["enum"])
    if isinstance(value, str):
        if len(value) < node.get("minLength", 0):
            return f"at least {node['minLength']} characters"
        if "pattern" in node and not re.search(node["pattern"], value):
            return f"text like {node['pattern']}"
    if isinstance(value, int | float) and not isinstance(value, bool) and value < node.get("minimum", value):
        return f"at least {node['minimum']}"
    if isinstance(value, dict) and (missing := [key for key in node.get("required", []) if key not in value]):
        return f"the key {missing[0]}"
    return None


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return whole and not isinstance(value, bool)
    return isinstance(value, TYPES[kind])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"the keys {', '.join(sorted(value))}"[:100] if value else "no keys"
    return f"{value!r}"[:100]
