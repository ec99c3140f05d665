"""Shared memory made ready to be written to, while something else happens.

The first write to each page takes longer than that of all its bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from threading import Thread

# of Linux 5.14 and later; others refuse it, and pages are made one by one as ever
_POPULATE_WRITE = 23
# bytes made at once; meanwhile, no other thread is given memory
STEP = 4 << 20


class Making:
    """A thread that makes all pages, the first ones first; it must end before the memory is closed."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory, self._over = memory, False
        self._thread = Thread(target=self._make, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all are made, as far as the system makes them."""
        self._thread.join()

    def end(self) -> None:
        """Leave those that are not made yet."""
        self._over = True
        self.wait()

    def _make(self) -> None:
        size = len(self._memory)
        bytes_ = (ctypes.c_char * size).from_buffer(self._memory)
        # unlike `mmap.madvise`, this lets other threads go on
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start in range(0, size, STEP):
            length = min(STEP, size - start)
            if self._over or advise(ctypes.addressof(bytes_) + start, length, _POPULATE_WRITE):
                return


def make_ready(memory: mmap.mmap) -> Making | None:
    """Have all pages made, where the system can."""
    return Making(memory) if sys.platform.startswith("linux") else None
