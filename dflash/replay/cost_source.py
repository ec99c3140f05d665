"""Where a cost model comes from: the recording itself, other recordings, or a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.run import SUFFIX, open_runs
from dflash.replay.cost import CostModel, fit_cost, load_cost
from dflash.replay.errors import SeveralCosts


def cost_of(files: Sequence[DraftFile], places: Sequence[Path], batch: float | None) -> CostModel:
    """Return the cost model.

    Args:
        files: whose times are fitted if no place is given.
        places: one profile, or draft files and folders of them.
        batch: requests a forward, at which policies are compared; unless given, with a profile as many as the
            run of `files` decodes at once, else what the fitted times were recorded with most.

    Raises:
        SeveralCosts: a profile stands beside others.
        CostUnreadable: as `load_cost`.
        NoTimings: as `fit_cost`.
    """
    if not places:
        return fit_cost(files, batch)
    profiles = [place for place in places if place.suffix != SUFFIX and not place.is_dir()]
    if not profiles:
        return fit_cost([file for run in open_runs(places) for file in run.files], batch)
    if len(places) > 1:
        raise SeveralCosts([str(place) for place in places])
    return load_cost(profiles[0], _at_once(files) if batch is None else batch)


def _at_once(files: Sequence[DraftFile]) -> float:
    """Requests that a part of a run decodes at once at most: its lanes, unless it has fewer."""
    return float(max(1, *(min(file.header.lanes, file.requests) for file in files)))
