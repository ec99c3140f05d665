"""Counting over the files of a run: here, or each file in a process of its own, its counts then merged.

A request never crosses a file, so counts of requests follow each other, and all other counts add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dflash.draftfile.reader import DraftFile
from dflash.replay.group import Counter, groups
from dflash.replay.memory import keep_freed
from dflash.replay.tally import Counts
from dflash.replay.verdicts import VerdictPieces, Verdicts, VerdictWriter

Progress = Callable[[], None]


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
        for file in files:
            _count(file, counters, progress)
        return
    # a forked process would inherit locks that Arrow's threads hold
    with ProcessPoolExecutor(min(jobs, len(files)), mp_context=get_context("spawn")) as pool:
        found = [pool.submit(_apart, file, deepcopy(counters)) for file in files]
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


def _count(file: DraftFile, counters: Sequence[Counter], progress: Progress) -> None:
    keep_freed()
    for group in groups(file, counters):
        for counter in counters:
            counter.add(group)
        progress()


def _apart(file: DraftFile, counters: Sequence[Counter]) -> Sequence[Counter]:
    _count(file, counters, lambda: None)
    for counter in counters:
        counter.forget()
    return counters
