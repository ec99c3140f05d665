"""Defaults from `dflash.toml`, one section a command, one key an option, and from the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from dflash.errors import UsageError, unread

SETTINGS_FILE = "dflash.toml"


class BadSettings(UsageError):
    """A settings file that cannot be read, or that names what does not exist."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A sentence that offers the nearest known name, or an empty string."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def read_settings(path: Path, commands: Collection[str]) -> dict[str, dict[str, Any]]:
    """Read a settings file.

    Returns:
        Option values by command and parameter name, as click's `default_map` takes them.

    Raises:
        BadSettings: The file is not readable TOML, or a section is no command.
    """
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"{path}: expected settings as TOML, but {unread(error)}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSettings(f"{path}: expected settings as TOML, but it cannot be read: {error}.") from error
    for name, section in sections.items():
        if name not in commands or not isinstance(section, dict):
            hint = did_you_mean(name, commands)
            raise BadSettings(f"{path}: expected one section a command, found {name!r}.{hint}")
    return {name: _spelt_once(path, name, section) for name, section in sections.items()}


def _spelt_once(path: Path, name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key.replace("-", "_"): value for key, value in section.items()}
    if len(settings) < len(section):
        raise BadSettings(f"{path}: expected every setting of [{name}] once, found one with both - and _.")
    return settings


def by_parameter(name: str, command: click.Command, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A command's settings by parameter name; users write them as flags without the dashes in front.

    Raises:
        BadSettings: The command has no such option (a silent typo would change what is recorded), or the
            value is a list where one value is expected, or the other way round.
    """
    known = {spelling(parameter): parameter for parameter in command.params if parameter.name}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise BadSettings(f"Settings: [{name}] has no {key!r}.{did_you_mean(key, known)}")
        several = known[key].multiple or known[key].nargs != 1
        if isinstance(value, dict) or isinstance(value, list) != several:
            wanted = "a list" if several else "one value"
            raise BadSettings(f"Settings: [{name}] expected {wanted} for {key!r}, found {value!r}.")
        found[str(known[key].name)] = value
    return found


def name_variables(command: click.Command, prefix: str) -> None:
    """Let every option be read from a variable that is called as its flag is."""
    for option in command.params:
        if isinstance(option, click.Option) and option.expose_value:
            option.allow_from_autoenv = False
            option.envvar = f"{prefix}_{spelling(option)}".upper()


def spelling(parameter: click.Parameter) -> str:
    """How an option is written in settings: its longest flag, dashes as underscores; an argument's name."""
    if isinstance(parameter, click.Argument):
        return str(parameter.name)
    return max(parameter.opts, key=len).lstrip("-").replace("-", "_")
