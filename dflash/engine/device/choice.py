"""Whether an engine's rounds run on the device or through the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from dflash.engine.settings import RecordSettings
from dflash.errors import UsageError
from dflash.target.native import NativeTrunk


class Chosen(NamedTuple):
    """An engine, and what its user should know about where its rounds run."""

    engine: Engine
    remark: str | None


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
        return Chosen(AdaptiveEngine(*parts, ladder=ladder), None)
    plan = replace(plan, chain=settings.chain or plan.chain)
    if settings.overlap == "groups" and not plan.shape.length:
        raise UsageError("Expected drafts with --overlap groups: plain rounds have nothing to overlap.")
    eos = sorted(parts[0].eos)
    windows = _windows(settings, plan, trunk.cache.lanes)
    rounds = [DeviceRound(trunk, drafts, plan, eos, window=window) for window in windows]
    return Chosen(DeviceEngine(*parts, rounds=rounds), None)


def _windows(settings: RecordSettings, plan: RoundPlan, lanes: int) -> list[range]:
    """Lanes that share rounds: all, or two halves, one of which drafts while the other is verified."""
    groups = settings.overlap == "groups"
    if settings.overlap == "auto" and settings.step_time is not None:
        groups = plan.shape.length > 0 and halves_pay(settings.step_time, plan.shape, lanes)
    # memory may have left room for one only
    return halves(lanes) if groups and lanes > 1 else [range(lanes)]


def largest_live(settings: RecordSettings) -> DraftShape:
    """The largest tree that a live round of the policy may draft."""
    shape, varies = settings.live_shape, settings.policy.control.varies
    return DraftShape(
        settings.length if "length" in varies else shape.length,
        settings.branches * len(settings.parts) if "branches" in varies else shape.branches,
    )
