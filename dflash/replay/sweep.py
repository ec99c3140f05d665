"""Sweeps: policies in short form in which a value may be several, and the ones that a recording suggests."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from itertools import product

from dflash.policy.control import CONTROLS
from dflash.policy.control.base import Learning, Scope
from dflash.policy.registry import Policy, parse_policy
from dflash.policy.shape import Shape
from dflash.replay.errors import BadSweep, SweepTooLarge

MOST_POLICIES = 10_000
_RANGE = ".."


def expand(text: str) -> list[Policy]:
    """Read a sweep: a policy in short form with ranges `low..high`, `low..high..step` and lists `a|b|c`.

    The rule may be a list, too: `match|block:length=1..4,branches=1|2`.

    Raises:
        BadSweep: a range that is none.
        SweepTooLarge: more policies than anybody would wait for.
        DflashError: as `parse_policy`, of any of the policies.
    """
    names, colon, rest = text.strip().partition(":")
    axes = [[name.strip() for name in names.split("|")]]
    for pair in rest.split(",") if colon else ():
        key, equals, values = pair.partition("=")
        axes.append([f"{key}{equals}{value}" for part in values.split("|") for value in _values(part, text)])
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MOST_POLICIES:
        raise SweepTooLarge(count, MOST_POLICIES)
    policies = []
    for name, *pairs in product(*axes):
        policies.append(parse_policy(f"{name}:{','.join(pairs)}" if colon else name))
    return policies


def unique(policies: Iterable[Policy]) -> list[Policy]:
    """Return the policies without repetitions, in order."""
    return list(dict.fromkeys(policies))


def suggested(recorded: Policy, largest: Shape, *, lossy: bool, lanes: int | None) -> list[Policy]:
    """Return the recorded rule in every shape, no drafts at all among them.

    Args:
        recorded: the policy of the live rounds, whose rule is swept.
        largest: the shape that may be asked for.
        lossy: add the rule `threshold`, at five thresholds.
        lanes: add, at the largest shape, every control that the engine runs in these lanes as a walk does;
            None adds none.
    """
    length, branches = int(largest.length or 0), int(largest.branches or 1)
    rules = [str(Policy(recorded.rule))]
    if lossy:
        rules += [f"threshold:t={t}" for t in (0.5, 0.6, 0.7, 0.8, 0.9)]
    found = [parse_policy(_shaped(rules[0], 0, 1))]
    for rule in rules:
        for width in range(1, branches + 1):
            found += [parse_policy(_shaped(rule, depth, width)) for depth in range(1, length + 1)]
        if lanes is not None:
            full = _shaped(rule, length, branches)
            found += [parse_policy(f"{full},{control}") for control in _adaptive(lanes)]
    return unique(found)


def _shaped(rule: str, length: int, branches: int) -> str:
    return f"{rule}{',' if ':' in rule else ':'}length={length},branches={branches}"


def _adaptive(lanes: int) -> list[str]:
    """Return the controls that need no confidence and no settings; batch mates do not matter in one lane."""
    found = []
    for kind in CONTROLS:
        if kind.varies and not kind.columns and (not kind.batch or (kind.timed and lanes == 1)):
            found.append(f"control={kind.name}")
            if issubclass(kind, Learning) and lanes == 1:
                found.append(f"control={kind.name},control.scope={Scope.STREAM.value}")
    return found


def _values(text: str, sweep: str) -> list[str]:
    if _RANGE not in text:
        return [text.strip()]
    parts = text.split(_RANGE)
    try:
        numbers = [Decimal(part.strip()) for part in parts]
    except InvalidOperation:
        raise BadSweep(text, sweep) from None
    if len(numbers) not in (2, 3) or not all(number.is_finite() for number in numbers):
        raise BadSweep(text, sweep)
    low, high, step = (*numbers, Decimal(1))[:3]
    if step <= 0 or high < low:
        raise BadSweep(text, sweep)
    count = int((high - low) / step) + 1
    if count > MOST_POLICIES:
        raise SweepTooLarge(count, MOST_POLICIES)
    return [str(low + index * step) for index in range(count)]
