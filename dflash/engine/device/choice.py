"""Whether an engine's rounds run on the device or through the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dflash.drafters.base import DraftShape
from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.device.adaptive import AdaptiveEngine
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.ladder import RoundLadder
from dflash.engine.device.plan import reasons_for_the_host, round_plan
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
    if settings.rounds == "host" or (settings.rounds == "auto" and settings.target_impl == "generic"):
        return Chosen(Engine(*parts), None)
    _, trunk, drafter, _, context, _, features, _ = parts
    shape, policy = largest_live(settings), settings.policy
    reasons = reasons_for_the_host(
        trunk, drafter, policy, context, settings.defaults.sampling, shape, settings.store_topk
    )
    if reasons and settings.rounds == "device":
        raise UsageError(f"Rounds cannot run on the device: {'; '.join(reasons)}.")
    if reasons or not isinstance(trunk, NativeTrunk):
        return Chosen(Engine(*parts), f"rounds go through the host: {'; '.join(reasons)}")
    plan = round_plan(policy, drafter, shape, settings.store_topk, features)
    drafts = drafter if isinstance(drafter, BlockFamily) and plan.shape.length else None
    if policy.control.adaptive:
        ladder = RoundLadder(trunk, drafts, plan, sorted(parts[0].eos))
        return Chosen(AdaptiveEngine(*parts, ladder=ladder), None)
    plan = replace(plan, chain=settings.chain or plan.chain)
    rounds = DeviceRound(trunk, drafts, plan, sorted(parts[0].eos))
    return Chosen(DeviceEngine(*parts, rounds=rounds), None)


def largest_live(settings: RecordSettings) -> DraftShape:
    """The largest tree that a live round of the policy may draft."""
    shape, varies = settings.live_shape, settings.policy.control.varies
    return DraftShape(
        settings.length if "length" in varies else shape.length,
        settings.branches * len(settings.parts) if "branches" in varies else shape.branches,
    )
