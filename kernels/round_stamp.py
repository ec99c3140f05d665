"""The device's clock, written where a round's record has its times."""

from __future__ import annotations

from time import perf_counter_ns

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.tensor_checks import check_dense


def stamp(
    times: Tensor, place: int, *, unless: Tensor | None = None, impl: Impl = "triton", pdl: bool = True
) -> None:
    """Write nanoseconds on a clock that never goes back.

    The reference knows a CPU's clock alone: it leaves a GPU's times at 0. So does the interpreter.

    Args:
        times: int64 `[any number]`.
        place: which of them.
        unless: int32 `[1]`: other than 0 to leave the time that was there; None never to leave it.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail, and wait for its end.

    Raises:
        ShapeRefused, DtypeRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    if unless is not None:
        check_dense("unless", unless, torch.int32, (1,), times)
    if impl == "reference":
        if times.device.type == "cpu" and not (unless is not None and unless.item()):
            times[place] = perf_counter_ns()
        return
    require_device("times", times)
    if not interpreted():
        from dflash.kernels.round_stamp_triton import write_time

        given = times if unless is None else unless
        write_time[(1,)](times, place, given, ASKS=unless is not None, PDL=pdl, num_warps=1, launch_pdl=pdl)
