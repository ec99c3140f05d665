"""`dflash replay --expect`: what policies accept on average, with coins and drafts integrated out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash.cli.outcome import Exit
from dflash.cli.output import bar, emit
from dflash.cli.replay_text import render
from dflash.draftfile.run import open_runs
from dflash.policy.registry import Policy
from dflash.replay.expect import Expect
from dflash.replay.expectation import expectation
from dflash.replay.result import document


def expect_files(
    files: Sequence[Path],
    policies: Sequence[Policy],
    kind: Expect,
    temperature: float | None,
    as_json: bool,
) -> int:
    """Print the expectation of every run of the files given."""
    runs = open_runs(files)
    groups = sum(file.row_groups for run in runs for file in run.files)
    with bar("expect", total=groups) as (progress, task):
        results = [
            expectation(
                run.files,
                policies,
                kind,
                temperature=temperature,
                progress=lambda: progress.advance(task),
            )
            for run in runs
        ]
    emit(document(results), as_json, lambda console: render(results, console))
    return Exit.DONE
