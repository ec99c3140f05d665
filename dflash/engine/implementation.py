"""Native or generic: what `auto` comes to for a target and for a drafter, and why it is not native."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dflash.drafters.base import Drafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.drafters.union import UnionDrafter
from dflash.engine.settings import RecordSettings
from dflash.errors import UsageError
from dflash.target.errors import NativeUnsupported
from dflash.target.load import Target
from dflash.target.native import proven
from dflash.target.native_layers import Way
from dflash.target.native_support import misfits


class Settled(NamedTuple):
    """A target and settings that leave no implementation open, and why transformers computes the target."""

    target: Target
    settings: RecordSettings
    remark: str | None


def settle_target(target: Target, settings: RecordSettings) -> Settled:
    """Choose the native step on a CUDA device where it computes the model, after its start-up self-test.

    Raises:
        UsageError: `replay-exact` was asked for, and the model does not run on the native kernels.
        SelfTestFailed: it does, but trees come out wrong.
    """
    if settings.target_impl != "auto":
        return Settled(target, settings, None)
    if target.device.type != "cuda":
        return Settled(target, replace(settings, target_impl="generic"), None)
    if reasons := misfits(target.model):
        remark = f"the target is computed by transformers, more slowly than it could: {'; '.join(reasons)}"
        return Settled(target, replace(settings, target_impl="generic"), remark)
    native = replace(settings, target_impl="native")
    return Settled(proven(target, Way(settings.numerics)), native, None)


def settle_drafter(drafter: Drafter, settings: RecordSettings, way: Way) -> RecordSettings:
    """Let block drafters run on the native kernels if that was asked for, or if they and the target can.

    Raises:
        UsageError: it was asked for, and there is no block drafter.
        NativeUnsupported: it was asked for, and the drafter does not fit.
    """
    blocks = _blocks(drafter)
    if settings.draft_impl == "native":
        if not blocks:
            raise UsageError(
                f"Expected a dflash or dspark drafter with --draft-impl native, found {settings.drafter}."
            )
        for block in blocks:
            block.use_native(way)
    if settings.draft_impl != "auto":
        return settings
    native = [block for block in blocks if settings.target_impl == "native" and _runs_natively(block, way)]
    return replace(settings, draft_impl="native" if blocks and native == blocks else "generic")


def _blocks(drafter: Drafter) -> list[BlockFamily]:
    """The block drafters of a union, or the drafter if it is one."""
    parts = drafter.drafters if isinstance(drafter, UnionDrafter) else (drafter,)
    return [part for part in parts if isinstance(part, BlockFamily)]


def _runs_natively(drafter: BlockFamily, way: Way) -> bool:
    try:
        drafter.use_native(way)
    except NativeUnsupported:
        return False
    return True
