"""How long a round takes on this machine: short runs in several shapes and lanes, and their cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dflash.draftfile.reader import open_draft_file
from dflash.engine.prompts.prompt import Prompt
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.replay.cost import CostModel, fit_cost
from dflash.target.load import Target


class Setting(NamedTuple):
    """One run: what is drafted in every round, and how many requests share a forward."""

    length: int
    branches: int
    lanes: int


def settings_of(length: int, branches: int, lanes: int) -> Iterator[Setting]:
    """Go through the corners of what may be asked for, and the middle of the lengths.

    Length 0 is one-token decoding, the base of every speed-up.
    """
    for count in sorted({1, lanes}):
        yield Setting(0, 1, count)
        for depth in sorted({1, (length + 1) // 2, length} - {0}):
            for width in sorted({1, branches}):
                yield Setting(depth, width, count)


def measure(
    target: Target,
    settings: RecordSettings,
    prompts: Sequence[Prompt],
    runs: Sequence[Setting],
    progress: Callable[[], None] = lambda: None,
) -> CostModel:
    """Decode one prompt a lane in every setting, and fit a cost model to all of them at the most lanes.

    Args:
        settings: of every run but for its shape and lanes.
        prompts: taken in turn.
        progress: called after each run.
    """
    files = []
    with TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            given = replace(
                settings,
                output=Path(folder) / f"{number}.parquet",
                drafter=settings.drafter if run.length else "none",
                length=run.length,
                branches=run.branches,
                lanes=run.lanes,
            )
            asked = [replace(prompts[lane % len(prompts)], id=str(lane)) for lane in range(run.lanes)]
            session = Session(target, given)
            session.record(session.conversations(asked, check=True))
            files.append(open_draft_file(given.output))
            progress()
        return fit_cost(files, float(max(run.lanes for run in runs)))
