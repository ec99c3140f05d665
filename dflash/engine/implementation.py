"""Native, captured or generic: what `auto` comes to for a target and for a drafter, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dflash.drafters.base import Drafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.drafters.union import UnionDrafter
from dflash.engine.settings import RecordSettings
from dflash.errors import DflashError, UsageError
from dflash.target.errors import CaptureRefused, NativeUnsupported
from dflash.target.load import Target
from dflash.target.model_step import ModelStep, step_misfits
from dflash.target.native import proven
from dflash.target.native_layers import Way
from dflash.target.native_support import misfits


class Settled(NamedTuple):
    """A target and settings that leave no implementation open, and what `auto` has to say of it."""

    target: Target
    settings: RecordSettings
    remark: str | None


def settle_target(target: Target, settings: RecordSettings) -> Settled:
    """Choose the fastest step that computes the model on a CUDA device, after its start-up self-test.

    Raises:
        UsageError: `replay-exact` was asked for, and the model does not run on the native kernels.
        CaptureRefused: captured layers were asked for, and cannot be.
        SelfTestFailed: trees come out wrong.
    """
    if settings.target_impl == "captured":
        return Settled(captured(target), settings, None)
    if settings.target_impl != "auto":
        return Settled(target, settings, None)
    if target.device.type != "cuda":
        return Settled(target, replace(settings, target_impl="generic"), None)
    reasons = misfits(target.model)
    if not reasons:
        native = replace(settings, target_impl="native")
        return Settled(proven(target, Way(settings.numerics)), native, None)
    why = f"the target is not computed natively: {'; '.join(reasons)}"
    try:
        return Settled(captured(target), replace(settings, target_impl="captured"), why)
    except CaptureRefused as refused:
        generic = replace(settings, target_impl="generic")
        return Settled(target, generic, f"{why}. Rounds go launch by launch, slowly. {refused}")


def captured(target: Target) -> Target:
    """The target, once transformers' layers around the tree kernel have passed the start-up self-test.

    Raises:
        CaptureRefused: they do not fit the kernel, or their code does not fit a CUDA graph.
        SelfTestFailed: they do, but trees come out wrong.
    """
    if reasons := step_misfits(target.model):
        raise CaptureRefused(target.name, reasons)
    way = Way()
    try:
        return proven(target, way, ModelStep(target.model, way=way))
    except DflashError:
        raise
    # whatever a model's code does that a capture does not allow: PyTorch raises its errors as these
    except (RuntimeError, TypeError, ValueError) as error:
        raise CaptureRefused(target.name, [str(error).splitlines()[0]]) from error


def settle_drafter(drafter: Drafter, settings: RecordSettings, way: Way) -> RecordSettings:
    """Let block drafters run on the native kernels if that was asked for, or if they can beside the target.

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
    graphs = settings.target_impl != "generic"
    native = [block for block in blocks if graphs and _runs_natively(block, way)]
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
