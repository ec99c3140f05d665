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


def make_ready(memory: mmap.mmap) -> Thread | None:
    """Have all pages made in a thread of their own, which must end before the memory is closed."""
    if not sys.platform.startswith("linux"):
        return None
    thread = Thread(target=_make, args=(memory,), daemon=True)
    thread.start()
    return thread


def _make(memory: mmap.mmap) -> None:
    bytes_ = (ctypes.c_char * len(memory)).from_buffer(memory)
    # unlike `mmap.madvise`, this lets other threads go on
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise(ctypes.addressof(bytes_), len(memory), _POPULATE_WRITE)
