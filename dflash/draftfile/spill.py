"""Bytes that are written and not read again: they leave the system's memory as they reach the disk.

What comes next takes their place there, which takes far less time than memory that was not used before.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future
from contextlib import suppress

# bytes from which on it pays, and what is asked for at once: a slow disk is waited for at the end
STEP, MOST = 32 << 20, 256 << 20
# not every system takes such advice
TAKEN = hasattr(os, "posix_fadvise")


class Spill:
    """Advises the system about a file that grows.

    Args:
        descriptor: Of the file, open for as long as the thread runs.
        thread: Waits where the disk is slow.
    """

    def __init__(self, descriptor: int, thread: Executor) -> None:
        self._descriptor, self._thread = descriptor, thread
        self._start = self._end = 0
        self._going: Future[None] | None = None

    def grown(self, size: int) -> None:
        """The file has so many bytes by now; nothing is waited for."""
        going = self._going is not None and not self._going.done()
        if not TAKEN or going or size - self._end < STEP:
            return
        # what was on its way the last time has arrived by now, and can go
        start, self._start, self._end = self._start, self._end, min(size, self._end + MOST)
        self._going = self._thread.submit(_advise, self._descriptor, start, self._end - start)


def _advise(descriptor: int, start: int, size: int) -> None:
    """Have bytes brought to the disk, and let go of those that are there."""
    # where it is not taken, nothing is lost
    with suppress(OSError):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)
