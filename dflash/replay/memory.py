"""Memory that one row group frees and the next one needs again."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

# glibc keeps twice the largest block that it saw freed, up to blocks of 32 MiB
_BLOCK = (32 << 20) - (64 << 10)


@lru_cache(maxsize=1)
def keep_freed() -> None:
    """Let the allocator keep up to 64 MiB of freed memory, so that the kernel need not clear it anew."""
    np.empty(_BLOCK, dtype=np.uint8)
