"""`dflash policies`: the acceptance rules, what they promise, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import json_option
from dflash.cli.output import emit
from dflash.policy.control import Control
from dflash.policy.registry import CONTROLS, DEFAULT_RULE, parameters
from dflash.policy.registry import policies as rules
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape

SCHEMA = "dflash.policies/1"


@click.command()
@json_option
def policies(as_json: bool) -> None:
    """List the acceptance rules: lossless or lossy, how exact replay is, which columns they need.

    A policy is written NAME:key=value,key=value with the keys of its rule and of the shape.
    """
    document = describe()
    emit(document, as_json, lambda console: render(document, console))


def describe() -> dict[str, Any]:
    """Return the document of schema `dflash.policies/1`."""
    return {
        "schema": SCHEMA,
        "default": DEFAULT_RULE,
        "rules": [_rule(rule) for rule in rules()],
        "shape": [_parameter(item) for item in parameters(Shape)],
        "controls": [_control(control) for _, control in sorted(CONTROLS.items())],
    }


def render(document: Mapping[str, Any], console: Console) -> None:
    """Print one block a rule."""
    for rule in document["rules"]:
        mark = " (default)" if rule["name"] == document["default"] else ""
        console.print(f"{rule['name']}{mark}: {rule['summary']}", style="bold", soft_wrap=True)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for key, text in _facts(rule):
            table.add_row(f"  {key}", text)
        console.print(table)
    console.print("Shape, in every policy:", style="bold")
    for item in document["shape"]:
        console.print(f"  {item['name']}: {item['expected']}; as recorded unless given", soft_wrap=True)
    console.print(f"Controls: {', '.join(item['name'] for item in document['controls'])}", soft_wrap=True)


def _facts(rule: Mapping[str, Any]) -> list[tuple[str, str]]:
    keys = [f"{item['name']} ({item['expected']}; default {item['default']})" for item in rule["parameters"]]
    return [
        ("lossless", f"{rule['lossless']}: {rule['lossless_note']}"),
        ("exactness", f"{rule['exactness']}: {rule['exactness_note']}"),
        ("temperature 0", rule["temperature_zero"]),
        ("trees", "yes" if rule["trees"] else "chains only"),
        ("record", "yes" if rule["live"] else "replay only"),
        ("parameters", "; ".join(keys) or "none"),
        ("columns", ", ".join(rule["columns"])),
        ("source", rule["source"]),
    ]


def _rule(rule: type[Rule]) -> dict[str, Any]:
    return {
        "name": rule.name,
        "summary": rule.summary,
        "lossless": str(rule.lossless),
        "lossless_note": rule.lossless_note,
        "exactness": str(rule.exactness),
        "exactness_note": rule.exactness_note,
        "temperature_zero": rule.temperature_zero,
        "trees": rule.trees,
        "live": rule.live,
        "parameters": [_parameter(item) for item in parameters(rule)],
        "columns": list(rule.columns),
        "source": rule.source,
    }


def _control(control: type[Control]) -> dict[str, Any]:
    keys = [_parameter(item) for item in parameters(control)]
    return {"name": control.name, "summary": control.summary, "parameters": keys}


def _parameter(item: Field[Any]) -> dict[str, Any]:
    return {"name": item.name, "default": item.default, "expected": item.metadata["type"].expected}
