"""How long each thread of a recorder has kept a processor busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from dflash.draftfile.threads import NAMED

# the thread that takes rows, and what the same one does when no more will come
ROWS, CLOSING = "rows", "closing"


def thread_seconds() -> Mapping[str, float]:
    """Processor seconds by thread: of this one, `rows`, and of those of journals and writers that still run.

    Empty where the system does not tell.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return {}
    # an executor's threads run until it is shut down; a clock of one that has ended must not be asked for
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(NAMED)]
    return {ROWS: time.thread_time()} | {
        thread.name.removeprefix(NAMED): time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in ours
        if thread.ident is not None
    }


def finished(before: Mapping[str, float], after: Mapping[str, float]) -> Mapping[str, float]:
    """What threads took until a file was finished: `closing` is what `rows` did after it had all rows."""
    if not before:
        return {}
    return {**before, **after, ROWS: before[ROWS], CLOSING: after[ROWS] - before[ROWS]}
