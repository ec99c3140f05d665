"""Policy files: TOML with [rule], [shape] and [control], read and written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.errors import unread
from dflash.policy.errors import BadPolicyFile, UnknownSection

SUFFIX = ".toml"
SECTIONS = ("rule", "shape", "control")


def read_policy_file(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read a policy file.

    Returns:
        The three sections, as `Policy.from_dict` takes them.

    Raises:
        BadPolicyFile: it cannot be read, is no TOML, or names no rule.
        UnknownSection: it has another section, or keys outside of all.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadPolicyFile(str(path), unread(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPolicyFile(str(path), f"it cannot be read: {error}") from error
    for name, section in document.items():
        if name not in SECTIONS or not isinstance(section, dict):
            raise UnknownSection(str(path), name, SECTIONS, key=not isinstance(section, dict))
    if "name" not in document.get("rule", {}):
        others = ", ".join(map(repr, document.get("rule", {})))
        raise BadPolicyFile(str(path), "[rule] has no name" + (f", only {others}" if others else ""))
    return {name: dict(document.get(name, {})) for name in SECTIONS}


def policy_toml(document: Mapping[str, Mapping[str, Any]], comment: str = "") -> str:
    """Write a policy as TOML.

    Args:
        document: of `Policy.to_dict`.
        comment: lines to put in front.
    """
    lines = [f"# {line}" if line else "#" for line in comment.splitlines()]
    for name in SECTIONS:
        if pairs := document.get(name, {}):
            lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in pairs.items()), ""]
    return "\n".join(lines)


def _value(value: object) -> str:
    """Write a value; JSON strings, numbers, booleans and lists of them are TOML too."""
    return json.dumps(value, ensure_ascii=False)
