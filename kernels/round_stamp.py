"""The device's clock, written where a round's record has its times."""

from __future__ import annotations

from time import perf_counter_ns

from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device


def stamp(times: Tensor, place: int, *, impl: Impl = "triton", pdl: bool = True) -> None:
    """Write nanoseconds on a clock that never goes back.

    The reference knows a CPU's clock alone: it leaves a GPU's times at 0. So does the interpreter.

    Args:
        times: int64 `[any number]`.
        place: which of them.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail, and wait for its end.

    Raises:
        DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    if impl == "reference":
        if times.device.type == "cpu":
            times[place] = perf_counter_ns()
        return
    require_device("times", times)
    if not interpreted():
        from dflash.kernels.round_stamp_triton import write_time

        write_time[(1,)](times, place, PDL=pdl, num_warps=1, launch_pdl=pdl)
