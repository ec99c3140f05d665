"""A file that is written by a thread of its own, while whoever makes its bytes goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import BinaryIO

# what goes to the system at once, and how many such pieces may be under way
PIECE = 1 << 20
MOST = 16

Take = Callable[[Sequence[bytes]], None]


class Aside:
    """What is written to a file: its bytes arrive in order, all of them after `flush`.

    Args:
        file: Nobody else writes it meanwhile.
        thread: A single one, which is ended by whoever made it.
        others: Each takes the same pieces in a single thread of its own, ended likewise.
    """

    def __init__(self, file: BinaryIO, thread: Executor, *others: tuple[Executor, Take]) -> None:
        self._file = file
        self._takers: tuple[tuple[Executor, Take], ...] = ((thread, self._write), *others)
        self._parts: list[bytes] = []
        self._size = 0
        self._flying: deque[Future[None]] = deque()

    def write(self, data: bytes) -> int:
        """Take some bytes.

        Raises:
            OSError: The system refused earlier ones.
        """
        # of what is not Python's own, the memory may be written over
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size >= PIECE:
            self._send()
        return len(data)

    def flush(self) -> None:
        """Wait until the file has all, and whoever else takes it.

        Raises:
            OSError: The system refused some.
        """
        self._send()
        while self._flying:
            self._flying.popleft().result()

    def _send(self) -> None:
        while len(self._flying) >= MOST * len(self._takers):
            self._flying.popleft().result()
        parts, self._parts, self._size = self._parts, [], 0
        self._flying.extend(thread.submit(take, parts) for thread, take in self._takers)

    def _write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._file.write(part)
