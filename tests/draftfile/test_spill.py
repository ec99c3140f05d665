"""What a journal says to the system of bytes that nobody reads again, and that it is read all the same."""

from __future__ import annotations

import os
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_drafts import header, tables

from dflash.draftfile import spill
from dflash.draftfile.journal import Journal
from dflash.draftfile.journal_reader import read_journal
from dflash.draftfile.spill import Spill

pytestmark = pytest.mark.skipif(not spill.TAKEN, reason="the system takes no such advice")


class Kept(Executor):
    """A thread that does nothing until it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.going: Future[None] = Future()

    def submit(self, work: Any, *given: Any, **more: Any) -> Future[Any]:
        """Keep what is asked for."""
        _, start, size = given
        self.asked.append((start, start + size))
        self.going = Future()
        return self.going


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60))
def test_every_byte_is_asked_for_in_its_turn_and_nothing_is_waited_for(grown: list[tuple[int, bool]]) -> None:
    """Each twice: to be brought to the disk, and to be let go once it is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "STEP", 10)
        patch.setattr(spill, "MOST", 40)
        thread, size, going = Kept(), 0, False
        file = Spill(0, thread)
        for more, over in grown:
            size += more
            before = thread.asked[-1][1] if thread.asked else 0
            asked = len(thread.asked)
            file.grown(size)
            assert len(thread.asked) - asked == (not going and size - before >= 10)
            going = going or len(thread.asked) > asked
            if going and over:
                thread.going.set_result(None)
                going = False
        ends = [0, 0, *(end for _, end in thread.asked)]
        assert [start for start, _ in thread.asked] == ends[: len(thread.asked)]
        assert all(0 < later - end <= 40 for end, later in zip(ends[1:], ends[2:], strict=False))
        assert ends[-1] <= size


def test_a_journal_whose_bytes_were_let_go_is_read_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, advise = [], os.posix_fadvise

    def noted(descriptor: int, start: int, size: int, advice: int) -> None:
        asked.append(start + size)
        advise(descriptor, start, size, advice)

    monkeypatch.setattr(spill, "STEP", 1)
    monkeypatch.setattr(os, "posix_fadvise", noted)
    parts = tables(5, 3, dense=1)
    path = tmp_path / "run.journal"
    with Journal(path, header(), run_id="run", apart=True) as journal:
        for number, table in enumerate(parts):
            journal.append(f"request-{number}", table)
            journal.flush()
    assert 0 < asked[0] <= asked[-1] <= path.stat().st_size
    assert list(read_journal(path).open.values()) == parts


def test_advice_that_is_not_taken_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    with ThreadPoolExecutor(1) as thread:
        file = Spill(0, thread)
        file.grown(spill.STEP)
        assert file._going is not None
        assert file._going.exception() is None
