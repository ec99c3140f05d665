"""`dflash env`: versions, devices and folders, as a bug report needs them."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import dflash
from dflash.cli.options import json_option
from dflash.cli.output import emit
from dflash.cli.settings import SETTINGS_FILE
from dflash.target.catalogue import DEFAULT, cache_folder
from dflash.target.default import is_present

SCHEMA = "dflash.env/1"
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "pyarrow",
    "numpy",
    "safetensors",
    "torchao",
    "gguf",
    "kernels",
)


@click.command()
@json_option
def env(as_json: bool) -> None:
    """Show versions, devices and folders in use, and what is known to clash."""
    packages = {name: _version(name) for name in PACKAGES}
    document = {
        "schema": SCHEMA,
        "dflash": {"version": dflash.__version__, "folder": str(Path(dflash.__file__).parent)},
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": packages,
        "devices": _devices() if packages["torch"] else [],
        "cache": {"folder": str(cache_folder()), "default_target": is_present(DEFAULT)},
        "settings": _settings(),
        "problems": _problems(packages),
    }
    emit(document, as_json, lambda console: _render(document, console))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    import torch

    devices: list[dict[str, Any]] = [
        {"name": "cpu", "what": platform.processor() or platform.machine(), "bytes": _memory()}
    ]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        devices.append({"name": f"cuda:{index}", "what": facts.name, "bytes": facts.total_memory})
    return devices


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _settings() -> dict[str, Any]:
    path = Path(SETTINGS_FILE)
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("DFLASH_")}
    return {"file": str(path.absolute()) if path.is_file() else None, "environment": variables}


def _problems(packages: dict[str, str | None]) -> list[str]:
    problems = []
    if _version("dflash"):
        problems.append(
            "The package `dflash` (another project) has the same import name and command as dflash-toolkit; "
            "keep the two in separate environments."
        )
    if packages["torch"] is None:
        problems.append("torch is not installed; record and train need it, replay and info do not.")
    return problems


def _render(document: dict[str, Any], console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("dflash", f"{document['dflash']['version']}  {document['dflash']['folder']}")
    table.add_row("python", f"{document['python']}  {document['executable']}")
    table.add_row("platform", f"{document['platform']}, {document['cpus']} cpus")
    for name, number in document["packages"].items():
        table.add_row(name, number or "-")
    for device in document["devices"]:
        size = f", {device['bytes'] / 2**30:.0f} GiB" if device["bytes"] else ""
        table.add_row(device["name"], f"{device['what']}{size}")
    here = "here" if document["cache"]["default_target"] else "not fetched yet"
    table.add_row("cache", f"{document['cache']['folder']}  (default target: {here})")
    table.add_row("settings", document["settings"]["file"] or "-")
    for name, value in document["settings"]["environment"].items():
        table.add_row(name, value)
    console.print(table)
    for problem in document["problems"]:
        console.print(f"problem: {problem}", soft_wrap=True)
