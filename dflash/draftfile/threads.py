"""Work shared by a few threads: its results come in its own order, and only so many bytes are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Made = TypeVar("Made")
# how names of threads begin that a writer or a journal has of its own
NAMED = "dflash-"


class Work(NamedTuple, Generic[Made]):
    """Something to make, and how many bytes it holds from its begin until it is handed over."""

    size: int
    make: Callable[[], Made]


def own_threads(name: str, count: int = 1) -> ThreadPoolExecutor:
    """Threads for one kind of work, which are named so."""
    return ThreadPoolExecutor(count, f"{NAMED}{name}")


@dataclass(frozen=True, slots=True)
class Threads:
    """A few threads that several kinds of work may share."""

    count: int
    executor: ThreadPoolExecutor

    def made(self, works: Iterable[Work[Made]], most: int) -> Iterator[Made]:
        """Make things in threads and hand them over in the order of the works.

        Args:
            works: are asked for in this thread.
            most: bytes under way at once; a single work may hold more.
        """
        flying: deque[Future[Made]] = deque()
        sizes: deque[int] = deque()
        try:
            for size, make in works:
                while flying and (len(flying) > self.count or sum(sizes) + size > most):
                    sizes.popleft()
                    yield flying.popleft().result()
                flying.append(self.executor.submit(make))
                sizes.append(size)
                # what it holds is let go when it is done, not when the next one comes
                del make
            while flying:
                yield flying.popleft().result()
        finally:
            for future in flying:
                future.cancel()
            wait(flying)


@contextmanager
def threads(count: int) -> Iterator[Threads | None]:
    """Start some threads; None in their place if there is but one."""
    if count == 1:
        yield None
        return
    with ThreadPoolExecutor(count, "dflash") as executor:
        yield Threads(count, executor)


def made(works: Iterable[Work[Made]], most: int, threads: Threads | None) -> Iterator[Made]:
    """Do as `Threads.made` does, one after the other if there are no threads."""
    if threads is not None:
        yield from threads.made(works, most)
        return
    for _, make in works:
        held = [make]
        del make
        yield held.pop()()
