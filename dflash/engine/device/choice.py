"""Whether an engine's rounds run on the device or through the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from dflash.drafters.base import DraftShape
from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.adaptive import AdaptiveEngine
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.groups import halves, halves_pay
from dflash.engine.device.ladder import RoundLadder
from dflash.engine.device.plan import RoundPlan, reasons_for_the_host, round_plan
from dflash.engine.device.round import DeviceRound
from dflash.engine.loop import Engine
from dflash.engine.settings import RecordSettings, control_takes_all
from dflash.errors import UsageError
from dflash.target.native import NativeTrunk


class Chosen(NamedTuple):
    """An engine, what its user should know about where its rounds run, and what a header says of that."""

    engine: Engine
    remark: str | None
    facts: Mapping[str, str] = MappingProxyType({})


ON_DEVICE = MappingProxyType({"rounds": "device"})


def choose_engine(parts: Sequence[Any], settings: RecordSettings) -> Chosen:
    """Make the engine of a recording.

    Args:
        parts: what `Engine` takes, in order.
        settings: of the recording.

    Raises:
        UsageError: rounds on the device were asked for and cannot be.
    """
    on_device = settings.rounds == "device" or settings.overlap == "groups"
    if settings.rounds == "host" or (not on_device and settings.target_impl == "generic"):
        return Chosen(Engine(*parts), None)
    _, trunk, drafter, _, context, _, features, _ = parts
    shape, policy = largest_live(settings), settings.policy
    reasons = reasons_for_the_host(
        trunk, drafter, policy, context, settings.defaults.sampling, shape, settings.store_topk
    )
    if reasons and on_device:
        raise UsageError(f"Rounds cannot run on the device: {'; '.join(reasons)}.")
    if reasons or not isinstance(trunk, NativeTrunk):
        return Chosen(Engine(*parts), f"rounds go through the host: {'; '.join(reasons)}")
    plan = round_plan(policy, drafter, shape, settings.store_topk, features)
    drafts = drafter if isinstance(drafter, BlockFamily) and plan.shape.length else None
    if policy.control.adaptive:
        ladder = RoundLadder(trunk, drafts, plan, sorted(parts[0].eos))
        remark = None if settings.overlap == "none" else f"lanes decode together: {control_takes_all(policy)}"
        return Chosen(AdaptiveEngine(*parts, ladder=ladder), remark, ON_DEVICE)
    plan = replace(plan, chain=settings.chain or plan.chain)
    eos, lanes = sorted(parts[0].eos), trunk.cache.lanes
    together = None if settings.overlap == "none" else _why_together(settings, plan, lanes)
    if together is not None or settings.overlap == "none":
        remark = None if together is None else f"lanes decode together: {together}"
        rounds = [DeviceRound(trunk, drafts, plan, eos)]
        return Chosen(DeviceEngine(*parts, rounds=rounds), remark, ON_DEVICE)
    rounds = [DeviceRound(trunk, drafts, plan, eos, window=window) for window in halves(lanes)]
    return Chosen(DeviceEngine(*parts, rounds=rounds), None, ON_DEVICE | {"overlap": "groups"})


def _why_together(settings: RecordSettings, plan: RoundPlan, lanes: int) -> str | None:
    """Why lanes do not decode in two groups although that was asked for; None if they do.

    Raises:
        UsageError: groups were asked for by name where they cannot be.
    """
    if not plan.shape.length:
        found = "plain rounds have nothing to overlap"
    elif settings.target_impl != "native":
        found = "rounds beside each other need --target-impl native"
    else:
        if lanes == 1:
            return "there is one, which makes no groups"
        if settings.overlap == "groups":
            return None
        if settings.step_time is None:
            return "no --cost profile tells what two groups would take"
        pays = halves_pay(settings.step_time, plan.shape, lanes)
        return None if pays else "two groups may take over 3 % longer by the --cost profile"
    if settings.overlap == "groups":
        raise UsageError(f"--overlap groups cannot be: {found}.")
    return found


def largest_live(settings: RecordSettings) -> DraftShape:
    """The largest tree that a live round of the policy may draft."""
    shape, varies = settings.live_shape, settings.policy.control.varies
    return DraftShape(
        settings.length if "length" in varies else shape.length,
        settings.branches * len(settings.parts) if "branches" in varies else shape.branches,
    )
