"""Where a recording is written: in the decoding process, or in one of its own."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from dflash.engine.output import Part, RecorderPlan, open_here
from dflash.engine.recorder.process import ProcessRecorder, open_process
from dflash.engine.recorder.recorder import Recorder
from dflash.engine.settings import RecordSettings

AnyRecorder = Recorder | ProcessRecorder


def open_recorder(
    settings: RecordSettings,
    header: Mapping[str, Any],
    part: Part | None,
    features: bool,
    device: torch.device,
) -> AbstractContextManager[AnyRecorder]:
    """A recorder of one run; without `part` the run is that file alone.

    Raises:
        DflashError: As `open_here`; from a process of its own, a later call may raise it.
    """
    plan = RecorderPlan(
        settings.output,
        header,
        part or Part(secrets.token_hex(8), 0, 1),
        settings.sync_seconds,
        settings.overwrite,
        settings.resume,
        settings.keep_text,
        features,
    )
    return open_process(plan) if settings.apart(device.type) else open_here(plan)
