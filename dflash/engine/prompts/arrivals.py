"""Prompts that arrive while others are decoded: nobody waits for the next one while a lane has work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from dflash.engine.loop import Conversation

Entry = TypeVar("Entry")
# prompts read ahead of the lanes
AHEAD = 16


class Arrivals(Iterator[Conversation], Generic[Entry]):
    """Reads entries in a thread, a few ahead, and makes conversations of them when a lane asks.

    Args:
        entries: Prompts as they come; the thread waits for each as long as it takes.
        make: The conversation of an entry, or None if it gives none.
        waiting: Surrounds the time in which no lane has work and nothing has come yet.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        make: Callable[[Entry], Conversation | None],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._make, self._waiting = make, waiting
        self._queue: queue.Queue[tuple[Entry] | BaseException | None] = queue.Queue(AHEAD)
        self._ready: Conversation | None = None
        self._over: BaseException | bool = False
        threading.Thread(target=self._read, args=(iter(entries),), daemon=True).start()

    def arrived(self) -> bool:
        """Whether `next` has an answer at once, if only that there is no more."""
        while self._ready is None and not self._over:
            try:
                self._take(self._queue.get_nowait())
            except queue.Empty:
                return False
        return True

    def through(self, change: Callable[[Conversation], Conversation]) -> None:
        """Change every conversation before it is handed out."""
        make = self._make

        def changed(entry: Entry) -> Conversation | None:
            found = make(entry)
            return None if found is None else change(found)

        self._make = changed

    def __next__(self) -> Conversation:
        """The next conversation, however long it takes to come."""
        while not self.arrived():
            with self._waiting():
                arrived = self._queue.get()
            self._take(arrived)
        found, self._ready = self._ready, None
        if found is not None:
            return found
        if isinstance(self._over, BaseException):
            raise self._over
        raise StopIteration

    def _take(self, arrived: tuple[Entry] | BaseException | None) -> None:
        if isinstance(arrived, tuple):
            self._ready = self._make(arrived[0])
        else:
            self._over = arrived or True

    def _read(self, entries: Iterator[Entry]) -> None:
        end: BaseException | None = None
        try:
            for entry in entries:
                self._queue.put((entry,))
        except BaseException as error:
            # told where conversations are asked for
            end = error
        self._queue.put(end)
