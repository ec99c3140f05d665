"""Compile the launches of a call for sm_90 without a GPU, and read what the assembler says about them."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_LIMIT = 232448


class Built(NamedTuple):
    """What a compiled kernel uses."""

    name: str
    shared: int
    registers: int
    stack: int
    spills: int
    wgmma: bool
    mma: bool
    async_copy: bool
    pdl: bool
    serialized: bool
    """Whether a wait follows every wgmma, as ptxas does when it cannot keep several in flight."""


class _Driver:
    """As much of a driver as compilation asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Recorder:
    """Stands in for a kernel: its launches compile instead of running."""

    def __init__(self, kernel: Any, built: list[Any]) -> None:
        self.kernel, self.built = kernel, built

    def __getitem__(self, grid: Any) -> Any:
        def compile_launch(*args: Any, **kwargs: Any) -> None:
            self.built.append(self.kernel.warmup(*args, grid=grid, **kwargs))

        return compile_launch


def fake_driver() -> None:
    """Make Triton compile for an H200 that is not there; call once in a process of its own."""
    triton.runtime.driver.set_active(_Driver())


def _tool(name: str, *args: str) -> str:
    return subprocess.run([str(BIN / name), *args], check=True, capture_output=True, text=True).stdout


@functools.cache
def _listing(cubin: bytes) -> tuple[str, str]:
    """What a kernel uses, and its instructions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return _tool("cuobjdump", "-res-usage", str(path)), _tool("nvdisasm", "-c", "-ndf", str(path))


def read(kernel: Any) -> Built:
    """Read registers, stack, shared memory and instructions off a compiled kernel."""
    usage, code = _listing(kernel.asm["cubin"])
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage).group(1)) for key in ("REG", "STACK"))
    order = "".join(h or "W" for h in re.findall(r"(H)GMMA|WARPGROUP\.DEPBAR", code))
    return Built(
        kernel.metadata.name, kernel.metadata.shared, registers, stack,
        len(re.findall(r"\b(?:STL|LDL)\b", code)), "HGMMA" in code, bool(re.search(r"\bHMMA", code)),
        "LDGSTS" in code or "UTMALDG" in code, "ACQBULK" in code, "HWHWHW" in order,
    )  # fmt: skip


def print_compiled(configurations: Callable[[], Mapping[str, Sequence[Any]]]) -> None:
    """Print what each kernel of each configuration uses, as JSON lines.

    Args:
        configurations: compiles them, by name.
    """
    fake_driver()
    for name, kernels in configurations().items():
        for kernel in kernels:
            print(json.dumps({"configuration": name, **read(kernel)._asdict()}), flush=True)
