"""Policies as values: the table of rules, the short form `NAME:key=value,...` and the header form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from dflash.policy.block import Block
from dflash.policy.control import CONTROLS as CONTROL_KINDS
from dflash.policy.control import Control, Static
from dflash.policy.errors import (
    BadParameter,
    PolicySyntax,
    RepeatedParameter,
    UnknownControl,
    UnknownParameter,
    UnknownRule,
)
from dflash.policy.greedy import Greedy
from dflash.policy.match import Match
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape
from dflash.policy.speculative import Speculative
from dflash.policy.threshold import Threshold

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Block, Greedy, Match, Speculative, Threshold)}
CONTROLS: dict[str, type[Control]] = {control.name: control for control in CONTROL_KINDS}
DEFAULT_RULE = Match.name


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule, the part of the tree that it sees, and how both change over time."""

    rule: Rule
    shape: Shape = field(default_factory=Shape)
    control: Control = field(default_factory=Static)

    def __str__(self) -> str:
        pairs = [
            f"{item.name}={getattr(part, item.name)!r}"
            for part in (self.rule, self.shape)
            for item in parameters(part)
            if getattr(part, item.name) is not None
        ]
        return f"{self.rule.name}:{','.join(pairs)}" if pairs else self.rule.name

    def to_dict(self) -> dict[str, Any]:
        """Return the form that the header stores; `from_dict` reads it."""
        return {
            "rule": {"name": self.rule.name, **_given(self.rule)},
            "shape": _given(self.shape),
            "control": {"name": self.control.name, **_given(self.control)},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Policy:
        """Read the header form; numbers may be text.

        Raises:
            UnknownRule: likewise `UnknownControl`, `UnknownParameter` and `BadParameter`.
        """
        rule = dict(document.get("rule", {"name": DEFAULT_RULE}))
        control = dict(document.get("control", {"name": Static.name}))
        name = str(rule.pop("name", DEFAULT_RULE))
        return _make(name, str(control.pop("name", Static.name)), rule, document.get("shape", {}), control)


def policies() -> tuple[type[Rule], ...]:
    """Return every rule, by name."""
    return tuple(RULES[name] for name in sorted(RULES))


def parameters(part: object) -> tuple[Field[Any], ...]:
    """Return the parameters of a rule, a shape or a control: dataclass fields with their `type`."""
    return fields(part)  # type: ignore[arg-type]


def parse_policy(text: str, extra: Mapping[str, str] | None = None) -> Policy:
    """Read the short form of a policy.

    Args:
        text: `NAME` or `NAME:key=value,key=value`; keys of the rule and of the shape share one list.
        extra: further pairs, which win over those in `text`.

    Raises:
        PolicySyntax: a part is not `key=value`.
        RepeatedParameter: a key stands twice in `text`.
        UnknownRule: likewise `UnknownControl`, `UnknownParameter` and `BadParameter`.
    """
    name, colon, rest = text.strip().partition(":")
    if not name or (colon and not rest.strip()):
        raise PolicySyntax(text, text)
    pairs: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise PolicySyntax(text, part)
        if key in pairs:
            raise RepeatedParameter(key, text)
        pairs[key] = value
    pairs.update(extra or {})
    control = pairs.pop("control", Static.name)
    rule_keys = {item.name for item in fields(_rule(name))}  # type: ignore[arg-type]
    shape_keys = {item.name for item in fields(Shape)}
    if unknown := sorted(set(pairs) - rule_keys - shape_keys):
        raise UnknownParameter(name, unknown[0], rule_keys | shape_keys)
    rule_pairs = {key: value for key, value in pairs.items() if key in rule_keys}
    shape_pairs = {key: value for key, value in pairs.items() if key in shape_keys}
    return _make(name, control, rule_pairs, shape_pairs, {})


def _rule(name: str) -> type[Rule]:
    if name not in RULES:
        raise UnknownRule(name, RULES)
    return RULES[name]


def _make(
    name: str,
    control: str,
    rule_pairs: Mapping[str, Any],
    shape_pairs: Mapping[str, Any],
    control_pairs: Mapping[str, Any],
) -> Policy:
    kind = _rule(name)
    if control not in CONTROLS:
        raise UnknownControl(control, CONTROLS)
    return Policy(
        kind(**_read(name, kind, rule_pairs)),
        Shape(**_read(name, Shape, shape_pairs)),
        CONTROLS[control](**_read(name, CONTROLS[control], control_pairs)),
    )


def _read(policy: str, kind: type[Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    known = {item.name: item for item in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in pairs.items():
        if key not in known:
            raise UnknownParameter(policy, key, known)
        if value is None and known[key].default is not None:
            raise BadParameter(key, value, known[key].metadata["type"].expected)
        if value is not None:
            values[key] = known[key].metadata["type"].read(key, value)
    return values


def _given(part: object) -> dict[str, Any]:
    pairs = {item.name: getattr(part, item.name) for item in parameters(part)}
    return {key: value for key, value in pairs.items() if value is not None}
