"""Policies as values: their short form `NAME:key=value,...`, their header form, and what they promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash.errors import DflashError
from dflash.policy.catalogue import CONTROLS, DEFAULT_RULE, RULES, find_rule, policies
from dflash.policy.context import RuleContext, stored_coins
from dflash.policy.control import Control, Static
from dflash.policy.errors import (
    BadParameter,
    MisplacedParameter,
    MissingParameter,
    PolicyIsFile,
    PolicySyntax,
    RepeatedParameter,
    UnknownControl,
    UnknownParameter,
)
from dflash.policy.parameter import parameters, text_of
from dflash.policy.policy_file import SUFFIX, read_policy_file
from dflash.policy.rule import Exactness, Rule
from dflash.policy.shape import SCORED, Shape

__all__ = ["CONTROLS", "DEFAULT_RULE", "RULES", "Policy", "parameters", "parse_policy", "policies"]

_SECTIONS = ("rule", "shape")
Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule, the part of the tree that it sees, and how both change over time."""

    rule: Rule
    shape: Shape = field(default_factory=Shape)
    control: Control = field(default_factory=Static)

    def __str__(self) -> str:
        pairs = {**_given(self.rule), **_given(self.shape)}
        if self.control != Static():
            usual = _given(type(self.control)())
            changed = {key: value for key, value in _given(self.control).items() if usual.get(key) != value}
            pairs |= {"control": self.control.name}
            pairs |= {f"control.{key}": value for key, value in changed.items()}
        text = ",".join(f"{key}={text_of(value)}" for key, value in pairs.items())
        return f"{self.rule.name}:{text}" if text else self.rule.name

    def __deepcopy__(self, memo: object) -> Policy:
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the form that the header stores; `from_dict` reads it."""
        return {
            "rule": {"name": self.rule.name, **_plain(self.rule)},
            "shape": _plain(self.shape),
            "control": {"name": self.control.name, **_plain(self.control)},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Policy:
        """Read the header form; numbers may be text.

        Raises:
            UnknownRule: likewise `UnknownControl`, `UnknownParameter`, `MissingParameter`, `BadParameter` and
                `ParameterConflict`.
        """
        rule, control = dict(document.get("rule", {})), dict(document.get("control", {}))
        name, control_name = rule.pop("name", DEFAULT_RULE), control.pop("name", Static.name)
        kind = find_rule(str(name))
        if control_name not in CONTROLS:
            raise UnknownControl(str(control_name), CONTROLS)
        return cls(
            _make(kind, name, rule, also=Shape),
            _make(Shape, name, document.get("shape", {}), also=kind),
            _make(CONTROLS[control_name], control_name, control),
        )

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Return the columns that cutting and deciding read in this context."""
        coins = ("node_uniform",) if context.coins is stored_coins else ()
        own = (*self.rule.needs(context), *self.shape.needs(context), *self.control.columns)
        return tuple(dict.fromkeys((*own, *coins)))

    def is_lossless(self, context: RuleContext) -> bool:
        """Return whether emitted tokens follow the target's law in this context.

        A rule that takes q for the law of a draft loses that where a cut has looked at the draft.
        """
        peeking = self.rule.judges_q(context) and self.peeks(context)
        return all(rule.is_lossless(context) for rule in self.control.extremes(self.rule)) and not peeking

    def exactness_in(self, context: RuleContext, trees: bool) -> Exactness:
        """Return how a walk under this policy would relate to a live run.

        Args:
            context: of the recording.
            trees: whether any round branches.
        """
        found = {rule.exactness_in(context, trees) for rule in self.control.extremes(self.rule)}
        # the law along a trunk is known for chains of fixed length alone
        varying = self.control.adaptive or self.shape.cuts() & set(SCORED)
        if len(found) > 1 or (Exactness.LAW in found and varying):
            return Exactness.REJUDGE
        return found.pop()

    def remarks(self, context: RuleContext) -> tuple[str, ...]:
        """Return what a reader of the result must know in this context."""
        found = self.rule.remark(context)
        peeking = sorted(self.peeks(context)) if self.rule.judges_q(context) else []
        lossy = f"lossy: the cut by {', '.join(peeking)} looks at drafted tokens before they are judged"
        return (*([found] if found else []), *([lossy] if peeking else []))

    def peeks(self, context: RuleContext) -> set[str]:
        """Return the cuts that look at a token before it is judged, those of the control among them."""
        admits = "survival" in self.control.varies
        return (replace(self.shape, survival=1.0) if admits else self.shape).peeks(context)


def parse_policy(text: str, extra: Mapping[str, str] | None = None) -> Policy:
    """Read the short form of a policy, or a policy file.

    Args:
        text: `NAME` or `NAME:key=value,key=value`, where keys of the rule and of the shape share one list and
            those of the control begin with `control.`; or the path of a file that ends in `.toml`.
        extra: further pairs.

    Raises:
        PolicyIsFile: the path of another file.
        PolicySyntax: a part is not `key=value`.
        RepeatedParameter: a key is given twice.
        BadPolicyFile: the file cannot be read.
        UnknownRule: likewise all that `Policy.from_dict` raises.
    """
    written = text.endswith(SUFFIX)
    if not written and text not in RULES and (Path(text).suffix == ".parquet" or Path(text).is_file()):
        raise PolicyIsFile(text)
    try:
        sections = read_policy_file(text) if written else _split(text)
        for key, value in (extra or {}).items():
            _place(sections, key, value, text)
        return Policy.from_dict(sections)
    except DflashError as error:
        if written and text not in str(error):
            error.args = (f"{text}: {error}",)
        raise


def _split(text: str) -> Sections:
    name, colon, rest = text.strip().partition(":")
    if not name or (colon and not rest.strip()):
        raise PolicySyntax(text, text)
    sections: Sections = {"rule": {"name": name}, "shape": {}, "control": {}}
    for part in rest.split(",") if rest else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise PolicySyntax(text, part)
        _place(sections, key, value, text)
    return sections


def _place(sections: Sections, key: str, value: str, text: str) -> None:
    section, _, name = key.rpartition(".")
    if key == "control":
        section, name = "control", "name"
    elif section != "control":
        shape = {item.name for item in parameters(Shape)}
        section, name = "shape" if key in shape else "rule", key
    if name in sections[section] or (section, name) == ("rule", "name"):
        raise RepeatedParameter(key, text)
    sections[section][name] = value


def _make(kind: type[Any], policy: str, pairs: Mapping[str, Any], also: type[Any] | None = None) -> Any:
    """Make a rule, a shape or a control; `also` knows more parameters of the same policy."""
    known = {item.name: item for item in parameters(kind)}
    values: dict[str, Any] = {}
    for key, value in pairs.items():
        if key not in known:
            others = {item.name for item in parameters(also)} if also else set()
            if key in others:
                raise MisplacedParameter(policy, key, *(_SECTIONS if also is Shape else _SECTIONS[::-1]))
            raise UnknownParameter(policy, key, known.keys() | others)
        if value is None and known[key].default is not None:
            raise BadParameter(key, value, known[key].metadata["type"].expected)
        if value is not None:
            values[key] = known[key].metadata["type"].read(key, value)
    for name, item in known.items():
        if name not in values and item.default is MISSING:
            raise MissingParameter(policy, name, item.metadata["type"].expected)
    return kind(**values)


def _given(part: object) -> dict[str, Any]:
    pairs = {item.name: getattr(part, item.name) for item in parameters(part)}
    return {key: value for key, value in pairs.items() if value is not None}


def _plain(part: object) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in _given(part).items()}
