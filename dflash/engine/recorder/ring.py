"""A ring of shared memory from one process to another: bounded, ordered, and readable after the writer died.

Pieces lie in the memory; a pipe says where each one is, and another one how far the reader has come.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from dflash.engine.recorder.pages import Making, make_ready

CAPACITY = 64 << 20
# of whole hidden states a GPU makes as much while a reader starts, and twice that in bursts of prompts
WIDE_CAPACITY = 256 << 20
# of the memory that is free, what a ring wider than usual may take
SHARE = 1 / 16
# where a piece begins, its bytes, whether its message goes on, and the writer's count of bytes after it
PIECE = struct.Struct("<QQ?Q")
COUNT = struct.Struct("<Q")
# of each pipe, where the system can: forty thousand pieces may lie there while a reader starts
PIPE = 1 << 20
MOST_ACKNOWLEDGED = COUNT.size * 8192
# messages after which the writer learns how far the reader is, though there is room
LEARN_EVERY = 256
# parts that come to less take less time in one piece
SMALL = 1 << 16


class ReaderGone(Exception):
    """Nobody reads any more."""


def capacity_for(whole: bool, free: int | None = None) -> int:
    """Bytes of a ring for rows with hidden states, whole or not.

    Args:
        free: bytes of main memory that are free; None where nothing tells.
    """
    if not whole:
        return CAPACITY
    return WIDE_CAPACITY if free is None else max(CAPACITY, min(WIDE_CAPACITY, int(free * SHARE)))


def shared_file(size: int) -> int:
    """A descriptor of memory without a name, or of a nameless file where the system has none."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("dflash-recorder")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def widen(pipe: int) -> bool:
    """Let a pipe hold `PIPE` bytes; tells whether the system has done so."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return False
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
        return True
    return False


class RingWriter:
    """The end that puts messages in.

    Attributes:
        memory, pieces, acknowledged: Descriptors for the other end.
        blocked_seconds: For how long `put` has waited for room.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.blocked_seconds = 0.0
        self.memory = shared_file(capacity)
        self._map = mmap.mmap(self.memory, capacity)
        self.pieces, self._pieces = os.pipe()
        self._acknowledged, self.acknowledged = os.pipe()
        # a reader must have room for what it says, which is shorter
        if widen(self._acknowledged):
            widen(self._pieces)
        os.set_blocking(self._acknowledged, False)
        os.set_blocking(self._pieces, False)
        self._head = self._tail = 0
        self._ends: deque[tuple[int, int]] = deque()
        self._rows = 0
        self._making: Making | None = None

    def make_ready(self) -> None:
        """Have the memory's pages made meanwhile."""
        self._making = make_ready(self._map)

    def await_pages(self) -> None:
        """Wait until they are made."""
        if self._making is not None:
            self._making.wait()

    def handed_over(self) -> None:
        """Close what the other process has by now."""
        for descriptor in (self.memory, self.pieces, self.acknowledged):
            os.close(descriptor)

    @property
    def queued(self) -> tuple[int, int]:
        """Rows and bytes that were not taken yet."""
        self._learn()
        return self._rows, self._head - self._tail

    def put(self, *message: bytes | memoryview, rows: int = 1) -> None:
        """Append a message, given in parts, which is of so many rows; waits while there is no room.

        Raises:
            ReaderGone: The other process has ended.
        """
        # not afterwards, when a reader may have ended because of this very message
        if len(self._ends) % LEARN_EVERY == LEARN_EVERY - 1:
            self._learn()
        largest, size = self.capacity // 4, sum(map(len, message))
        if size <= largest:
            self._put(message, size, False)
        else:
            whole = memoryview(b"".join(message))
            for start in range(0, size, largest):
                piece = whole[start : start + largest]
                self._put((piece,), len(piece), start + largest < size)
        self._ends.append((self._head, rows))
        self._rows += rows

    def close(self) -> None:
        """Tell the other end that no more will come."""
        if self._making is not None:
            self._making.end()
        self._map.close()
        for descriptor in (self._pieces, self._acknowledged):
            os.close(descriptor)

    def _put(self, piece: Sequence[bytes | memoryview], size: int, more: bool) -> None:
        start = self._head % self.capacity
        # a piece lies in one stretch; what is left at the end is skipped
        skipped = self.capacity - start if start + size > self.capacity else 0
        self._await(skipped + size)
        start = end = (self._head + skipped) % self.capacity
        for part in [b"".join(piece)] if size <= SMALL else piece:
            self._map[end : end + len(part)] = part
            end += len(part)
        self._head += skipped + size
        self._tell(PIECE.pack(start, size, more, self._head))

    def _tell(self, place: bytes) -> None:
        """Say where a piece is."""
        while True:
            try:
                os.write(self._pieces, place)
            except BlockingIOError:
                with self._blocked():
                    select.select([], [self._pieces], [], 1.0)
            except BrokenPipeError as error:
                raise ReaderGone from error
            else:
                return

    def _await(self, size: int) -> None:
        if self.capacity - (self._head - self._tail) >= size:
            return
        self._learn()
        if self.capacity - (self._head - self._tail) >= size:
            return
        with self._blocked():
            while self.capacity - (self._head - self._tail) < size:
                select.select([self._acknowledged], [], [], 1.0)
                self._learn()

    @contextmanager
    def _blocked(self) -> Iterator[None]:
        """Count the time of waiting."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.blocked_seconds += time.perf_counter() - started

    def _learn(self) -> None:
        """How far the reader has come."""
        more = True
        while more:
            try:
                told = os.read(self._acknowledged, MOST_ACKNOWLEDGED)
            except BlockingIOError:
                break
            if not told:
                raise ReaderGone
            self._tail = COUNT.unpack(told[-COUNT.size :])[0]
            more = len(told) == MOST_ACKNOWLEDGED
        while self._ends and self._ends[0][0] <= self._tail:
            self._rows -= self._ends.popleft()[1]


class RingReader:
    """The end that takes messages out, given the writer's descriptors."""

    def __init__(self, memory: int, pieces: int, acknowledged: int) -> None:
        memory_map = mmap.mmap(memory, os.fstat(memory).st_size, prot=mmap.PROT_READ)
        self._memory = np.frombuffer(memory_map, np.uint8)
        self._pieces, self._acknowledged = pieces, acknowledged

    def messages(self, idle: Callable[[], float | None]) -> Iterator[memoryview]:
        """Every message, in order, until the writer has closed its end or is no more.

        Args:
            idle: Called when nothing is there yet; says after how many seconds to call it again.
        """
        begun: list[NDArray[np.uint8]] = []
        while True:
            if not select.select([self._pieces], [], [], 0)[0]:
                select.select([self._pieces], [], [], idle())
                continue
            told = os.read(self._pieces, PIECE.size)
            if len(told) < PIECE.size:
                return
            start, size, more, count = PIECE.unpack(told)
            # unlike one of a slice of the map, this copy lets other threads go on
            begun.append(self._memory[start : start + size].copy())
            self._acknowledge(count)
            if not more:
                yield (begun[0] if len(begun) == 1 else np.concatenate(begun)).data.toreadonly()
                begun = []

    def _acknowledge(self, count: int) -> None:
        try:
            os.write(self._acknowledged, COUNT.pack(count))
        except BrokenPipeError:
            # the writer is gone; what it left is still read
            return
