"""How many bytes the device and the host have left, as far as the system tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from dflash.engine.memory import Free

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
# limit and use of a container, in both versions of control groups
LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def free_memory(device: torch.device) -> Free:
    """What is left; on a CPU the device is the host."""
    host = host_free()
    if device.type != "cuda":
        return Free(host, host)
    free = torch.cuda.mem_get_info(device)[0]
    # what torch holds and does not use, it can use
    return Free(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), host)


def host_free() -> int | None:
    """Bytes of main memory that a process can still get; None where nothing tells."""
    return min(_hints(), default=None)


def _hints() -> Iterator[int]:
    """What the kernel calls available, and what the container's limit leaves."""
    if (available := _available()) is not None:
        yield available
    for limit, used, statistics in LIMITS:
        found = [_number(CGROUP / name) for name in (limit, used)]
        if found[0] is not None and found[1] is not None:
            # files that were read lately count as used, and go when somebody needs the room
            yield max(0, found[0] - found[1] + _inactive(CGROUP / statistics))


def _available() -> int | None:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return _pages()
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return next(found, None) or _pages()


def _pages() -> int | None:
    """Free pages, where there is no /proc."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or it says `max`."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _inactive(path: Path) -> int:
    try:
        pairs = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return 0
    return int(pairs.get("total_inactive_file") or pairs.get("inactive_file") or 0)
