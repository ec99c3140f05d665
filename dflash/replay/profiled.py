"""Draft files that a control may plan with: the cost model's step times stand in where none are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash.draftfile.header import Header
from dflash.draftfile.reader import DraftFile
from dflash.policy.step_time import StepTime


def profiled(files: Sequence[DraftFile], profile: StepTime) -> list[DraftFile]:
    """Return the files with the profile in their headers; a profile that a run was recorded with stays."""
    return [_profiled(file, profile) for file in files]


def _profiled(file: DraftFile, profile: StepTime) -> DraftFile:
    engine = file.header.raw["engine"]
    if engine.get("step_time_profile") is not None:
        return file
    engine = {**engine, "step_time_profile": profile.to_dict()}
    return replace(file, header=Header({**file.header.raw, "engine": engine}))
