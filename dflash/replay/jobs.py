"""Counting over the files of a run: row groups share threads, and files may share processes.

A request crosses neither, so counts of requests follow each other, and all other counts add up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.threads import Work, made, threads
from dflash.replay.group import Counter, Group, columns_read
from dflash.replay.memory import keep_freed
from dflash.replay.tally import Counts
from dflash.replay.verdicts import VerdictPieces, Verdicts, VerdictWriter

Progress = Callable[[], None]
# more would wait for each other, since Python runs one of them at a time
MOST_THREADS = 4
UNDER_WAY = 96 << 20


class Pass(NamedTuple):
    """What goes along with a pass over the files of a run.

    Attributes:
        verdicts: takes every decision.
        progress: called after each row group.
        jobs: processes to share the files; 1 stays in this one.
    """

    verdicts: VerdictWriter | None = None
    progress: Progress = lambda: None
    jobs: int = 1

    @contextmanager
    def sink(self, files: Sequence[DraftFile]) -> Iterator[Verdicts | None]:
        """Give what takes decisions: the writer, or pieces that it takes over in order at the end."""
        if self.verdicts is None or self.jobs == 1 or len(files) == 1:
            yield self.verdicts
            return
        with TemporaryDirectory() as folder:
            pieces = VerdictPieces(Path(folder))
            yield pieces
            self.verdicts.take(pieces, files)


def count_over(
    files: Sequence[DraftFile], counters: Sequence[Counter], jobs: int, progress: Progress
) -> None:
    """Let counters count the files of one run, each of which is read once.

    Args:
        counters: fresh dataclasses of counts; they can be pickled if there are several jobs.
        jobs: processes to share the files; 1 stays in this one.
        progress: called once a row group.
    """
    if jobs == 1 or len(files) == 1:
        _count(files, counters, progress, core_count())
        return
    # a forked process would inherit locks that Arrow's threads hold
    with ProcessPoolExecutor(min(jobs, len(files)), mp_context=get_context("spawn")) as pool:
        each = max(1, core_count() // min(jobs, len(files)))
        found = [pool.submit(_apart, file, deepcopy(counters), each) for file in files]
        for file, future in zip(files, found, strict=True):
            for total, more in zip(counters, future.result(), strict=True):
                merge(total, more)
            for _ in range(file.row_groups):
                progress()


def merge(total: Any, more: Any) -> None:
    """Add the counts of further files to a dataclass of counts, in place."""
    for item in fields(total):
        setattr(total, item.name, _joined(getattr(total, item.name), getattr(more, item.name)))


def _joined(one: Any, other: Any) -> Any:
    match one:
        case bool():
            return one or other
        case int():
            return one + other
        case list():
            return one + other
        case set():
            return one | other
        case dict():
            return {key: _joined(value, other[key]) for key, value in one.items()}
        case tuple():
            for total, more in zip(one, other, strict=True):
                _joined(total, more)
        case Counts():
            merge(one, other)
    # all else is a setting that both share
    return one


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _count(files: Sequence[DraftFile], counters: Sequence[Counter], progress: Progress, cores: int) -> None:
    """Count row groups apart, in threads, and merge their counts in file order."""
    keep_freed()
    apart = [counter for counter in counters if not counter.in_order]
    following = [counter for counter in counters if counter.in_order]
    blank = deepcopy(apart)
    with threads(min(cores, MOST_THREADS)) as pool:
        for file in files:
            tables = file.tables(columns_read(file, counters), pool)
            for group, found in made(_works(file, tables, blank), UNDER_WAY, pool):
                for total, more in zip(apart, found, strict=True):
                    merge(total, more)
                for counter in following:
                    counter.add(group)
                progress()


def _works(
    file: DraftFile, tables: Iterator[pa.Table], blank: Sequence[Counter]
) -> Iterator[Work[tuple[Group, Sequence[Counter]]]]:
    for table in tables:
        held = [Work(table.nbytes, partial(_counted, Group(file, table), blank))]
        # a suspended generator would keep the row group
        del table
        yield held.pop()


def _counted(group: Group, blank: Sequence[Counter]) -> tuple[Group, Sequence[Counter]]:
    if not group.file.header.dense:
        # every counter of such a file needs them
        _ = group.live
    found = deepcopy(blank)
    for counter in found:
        counter.add(group)
    return group, found


def _apart(file: DraftFile, counters: Sequence[Counter], cores: int) -> Sequence[Counter]:
    _count([file], counters, lambda: None, cores)
    for counter in counters:
        counter.forget()
    return counters
