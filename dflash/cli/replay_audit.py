"""`dflash replay --audit`: hold runs against their own evidence, and tell what could not be tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dflash.cli.outcome import Exit
from dflash.cli.output import bar, emit
from dflash.cli.policy_cell import counted
from dflash.draftfile.run import open_runs
from dflash.replay.audit.audit import Audit, audit
from dflash.replay.audit.verdict import Status, Verdict

_STYLE = {Status.PASSED: "green", Status.FAILED: "bold red", Status.UNTESTED: "dim"}


def audit_files(files: Sequence[Path], as_json: bool) -> int:
    """Audit every run of the files given; 1 if any probe of any run failed."""
    runs = open_runs(files)
    groups = sum(file.row_groups for run in runs for file in run.files)
    with bar("audit", total=2 * groups) as (progress, task):
        audits = [audit(run.files, progress=lambda: progress.advance(task)) for run in runs]
    emit(_document(audits), as_json, lambda console: _render(audits, console))
    return Exit.DONE if all(found.passed for found in audits) else Exit.DIFFERENT


def _document(audits: Sequence[Audit]) -> dict[str, Any]:
    return {"schema": "dflash.replay_audit/1", "runs": [found.to_dict() for found in audits]}


def _render(audits: Sequence[Audit], console: Console) -> None:
    for number, found in enumerate(audits):
        if number:
            console.print()
        files = ", ".join(source.path for source in found.sources)
        word = "passed" if found.passed else "FAILED"
        console.print(
            f"{files}: {counted(found.requests, 'request')}, recorded under {found.recorded}: audit {word}",
            soft_wrap=True,
        )
        console.print(_table(found.verdicts))
        for verdict in found.verdicts:
            _tell(verdict, console)
        console.print(found.correction, soft_wrap=True, style="dim")


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("probe", "verdict"):
        table.add_column(name)
    for name in ("places", "faults", "p-value"):
        table.add_column(name, justify="right")
    table.add_column("holds if", overflow="fold")
    for verdict in verdicts:
        table.add_row(
            verdict.probe,
            str(verdict.status),
            str(verdict.places),
            str(verdict.faults) + (f" (+{verdict.near_ties} near-ties)" if verdict.near_ties else ""),
            "-" if verdict.p_value is None else f"{verdict.p_value:.3g}",
            verdict.question,
            style=_STYLE[verdict.status],
        )
    return table


def _tell(verdict: Verdict, console: Console) -> None:
    """Print causes, places, rates, the power, and why some rows could not be looked at."""
    lines = [f"looks like: {cause}" for cause in verdict.causes]
    for fault in verdict.listed:
        where = f"{fault.file}, request {fault.request_id}, {fault.row}, {fault.place}"
        lines.append(f"{where}: {fault.what}: expected {fault.expected}, found {fault.found}")
    for rate in verdict.rates:
        lines.append(
            f"{rate.event}: expected {rate.expected:.3f}, found {rate.found:.3f} of {rate.observations}; "
            f"nine files of ten with an error of {rate.detectable:.3f} would have raised an alarm"
        )
    if verdict.distance is not None:
        lines.append(
            f"total variation {verdict.distance:.3f}, where honest runs of this size have "
            f"{verdict.sampling_error:.3f} on average"
        )
    if verdict.places and not verdict.rates:
        lines.append(f"finds {verdict.power}")
    lines += [f"not tested{' in part' if verdict.places else ''}: {reason}" for reason in verdict.reasons]
    for line in lines:
        console.print(f"{verdict.probe}: {line}", soft_wrap=True)
