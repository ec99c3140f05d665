"""The rules that there are: those built in, and those that other distributions register.

A distribution adds a rule through the entry point group `dflash.policies`: the rule's name = its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dflash.policy.block import Block
from dflash.policy.control import CONTROLS as CONTROL_KINDS
from dflash.policy.control import Control
from dflash.policy.coverage import Coverage
from dflash.policy.ensemble import Ensemble
from dflash.policy.errors import BadEntryPoint, UnknownRule
from dflash.policy.fly import Fly
from dflash.policy.greedy import Greedy
from dflash.policy.margin import Margin
from dflash.policy.match import Match
from dflash.policy.parameter import parameters
from dflash.policy.presets.medusa import Medusa
from dflash.policy.presets.sglang import Sglang
from dflash.policy.presets.transformers import Transformers
from dflash.policy.presets.trtllm import Trtllm
from dflash.policy.presets.vllm_mrv2 import VllmMrv2
from dflash.policy.presets.vllm_v1 import VllmV1
from dflash.policy.relaxed import Relaxed
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape
from dflash.policy.speculative import Speculative
from dflash.policy.synthetic import Synthetic
from dflash.policy.threshold import Threshold
from dflash.policy.tolerance import Tolerance
from dflash.policy.typical import Typical

GROUP = "dflash.policies"
_OWN: tuple[type[Rule], ...] = (
    Block,
    Coverage,
    Ensemble,
    Fly,
    Greedy,
    Margin,
    Match,
    Relaxed,
    Speculative,
    Synthetic,
    Threshold,
    Tolerance,
    Typical,
)
_PRESETS: tuple[type[Rule], ...] = (Medusa, Sglang, Transformers, Trtllm, VllmMrv2, VllmV1)
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (*_OWN, *_PRESETS)}
CONTROLS: dict[str, type[Control]] = {control.name: control for control in CONTROL_KINDS}
DEFAULT_RULE = Match.name


def find_rule(name: str) -> type[Rule]:
    """Return a rule, built in or registered; only the one that is asked for is imported.

    Raises:
        UnknownRule: there is none of this name.
        BadEntryPoint: what is registered under it is no rule.
    """
    if name in RULES:
        return RULES[name]
    for entry in entry_points(group=GROUP, name=name):
        return _load(entry)
    raise UnknownRule(name, {*RULES, *(entry.name for entry in entry_points(group=GROUP))})


def policies() -> tuple[type[Rule], ...]:
    """Return every rule, by name.

    Raises:
        BadEntryPoint: something registered is no rule, or its name is taken.
    """
    found = dict(RULES)
    for entry in entry_points(group=GROUP):
        if entry.name in found:
            raise BadEntryPoint(distribution(entry), entry.name, "another rule has that name")
        found[entry.name] = _load(entry)
    return tuple(found[name] for name in sorted(found))


def distribution(entry: EntryPoint) -> str:
    """Return the name of the distribution that registers an entry point."""
    return "an unnamed distribution" if entry.dist is None else str(entry.dist.name)


def provider(rule: type[Rule]) -> str | None:
    """Return the distribution that registers a rule, None for one that is built in."""
    if RULES.get(rule.name) is rule:
        return None
    return next(distribution(entry) for entry in entry_points(group=GROUP, name=rule.name))


def _load(entry: EntryPoint) -> type[Rule]:
    try:
        rule = entry.load()
    except Exception as error:
        found = f"importing it failed: {type(error).__name__}: {error}"
        raise BadEntryPoint(distribution(entry), entry.name, found) from error
    for fault in _faults(entry.name, rule):
        raise BadEntryPoint(distribution(entry), entry.name, fault)
    loaded: type[Rule] = rule
    return loaded


def _faults(name: str, rule: Any) -> Iterator[str]:
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        yield f"{rule!r} is none"
        return
    if rule.__abstractmethods__:
        yield f"it lacks {', '.join(sorted(rule.__abstractmethods__))}"
    if getattr(rule, "name", None) != name:
        yield f"its name is {getattr(rule, 'name', None)!r}"
    if not hasattr(rule, "__dataclass_fields__"):
        yield "it is no dataclass"
        return
    taken = {item.name for item in parameters(Shape)}
    for item in parameters(rule):
        if item.name in taken or item.name.startswith("control"):
            yield f"its parameter {item.name!r} is one of every policy"
        if "type" not in item.metadata:
            yield f"its parameter {item.name!r} is not made by dflash.policy.parameter.parameter"
