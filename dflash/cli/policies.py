"""`dflash policies`: the acceptance rules, what they promise, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import json_option
from dflash.cli.output import emit
from dflash.policy.catalogue import CONTROLS, DEFAULT_RULE, provider
from dflash.policy.catalogue import policies as rules
from dflash.policy.control import Control
from dflash.policy.parameter import parameters, text_of
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape

SCHEMA = "dflash.policies/1"


@click.command()
@json_option
def policies(as_json: bool) -> None:
    """List the acceptance rules: lossless or lossy, how exact replay is, which columns they need.

    A policy is written NAME:key=value,key=value with the keys of its rule and of the shape, control=NAME and
    control.key=value; or as a file with [rule], [shape] and [control], given by its path FILE.toml.

    A preset is a rule with one engine's inequalities, coin range and tie-break. Other distributions add rules
    through the entry point group dflash.policies; CONTRIBUTING.md has an example.
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
    """Print one block a rule, then what every policy takes."""
    for rule in document["rules"]:
        mark = " (default)" if rule["name"] == document["default"] else ""
        kind = " (preset)" if rule["preset"] else ""
        console.print(f"{rule['name']}{mark}{kind}: {rule['summary']}", style="bold", soft_wrap=True)
        _table(console, _facts(rule))
    console.print("Shape, in every policy:", style="bold")
    for item in document["shape"]:
        console.print(f"  {item['name']}: {item['expected']}; as recorded unless given", soft_wrap=True)
    for control in document["controls"]:
        console.print(f"control={control['name']}: {control['summary']}", style="bold", soft_wrap=True)
        facts = [
            ("varies", ", ".join(control["varies"]) or "nothing"),
            ("walk", control["walk"] + ("; reads step times" if control["step_times"] else "")),
            ("columns", ", ".join(control["columns"])),
            ("source", control["source"]),
        ]
        _table(console, [(key, text) for key, text in facts if text])
        _table(console, [(f"control.{item['name']}", _expected(item)) for item in control["parameters"]])


def _table(console: Console, facts: list[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, text in facts:
        table.add_row(f"  {key}", text)
    if facts:
        console.print(table)


def _facts(rule: Mapping[str, Any]) -> list[tuple[str, str]]:
    keys = [f"{item['name']} ({_expected(item)})" for item in rule["parameters"]]
    facts = [
        ("lossless", f"{rule['lossless']}: {rule['lossless_note']}"),
        ("exactness", f"{rule['exactness']}: {rule['exactness_note']}"),
        ("temperature 0", rule["temperature_zero"]),
        ("trees", "yes" if rule["trees"] else "chains only"),
        ("record", "yes" if rule["live"] else "replay only"),
        ("parameters", "; ".join(keys) or "none"),
        ("columns", ", ".join(rule["columns"])),
        ("source", rule["source"]),
    ]
    more = [("processing", rule["processing"]), ("from", rule["provider"])]
    return [*facts, *((key, text) for key, text in more if text is not None)]


def _expected(item: Mapping[str, Any]) -> str:
    if item["required"]:
        return f"{item['expected']}; required"
    default = item["default"]
    return item["expected"] if default is None else f"{item['expected']}; default {text_of(default)}"


def _rule(rule: type[Rule]) -> dict[str, Any]:
    return {
        "name": rule.name,
        "summary": rule.summary,
        "preset": rule.preset,
        "provider": provider(rule),
        "processing": rule.processing,
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
    return {
        "name": control.name,
        "summary": control.summary,
        "varies": list(control.varies),
        "walk": "simulation" if control.batch else "path-exact",
        "step_times": control.timed,
        "columns": list(control.columns),
        "source": control.source,
        "parameters": keys,
    }


def _parameter(item: Field[Any]) -> dict[str, Any]:
    required = item.default is MISSING
    default = None if required else item.default
    return {
        "name": item.name,
        "default": item.metadata.get("shown") if default is None else default,
        "required": required,
        "expected": item.metadata["type"].expected,
    }
