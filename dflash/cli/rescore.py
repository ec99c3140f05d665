"""`dflash replay --rescore`: the one question of replay that loads a model, and so lives on its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dflash.cli.outcome import Exit
from dflash.cli.output import bar, emit
from dflash.cli.policy_cell import counted
from dflash.cli.record_options import load
from dflash.draftfile.run import Run, open_run, refuse_as_output
from dflash.engine.output import check_output
from dflash.engine.rescore import Rescored, rescore
from dflash.errors import UsageError
from dflash.replay.rescored import model_name


def rescore_files(
    files: Sequence[Path], model: str, quantisation: str, output: Path | None, overwrite: bool, as_json: bool
) -> int:
    """Score one run's stored drafts by another target and write them to a new file.

    Raises:
        UsageError: no output was named.
        IdentityMismatch: the target has another tokenizer or vocabulary.
    """
    if output is None:
        raise UsageError("Expected -o PATH with --rescore: the rescored drafts are a new draft file.")
    run = open_run(files)
    refuse_as_output([output], [file.path for file in run.files])
    check_output(output, overwrite=overwrite)
    target = load({"target": model, "target_quant": quantisation, "device": None, "dtype": None})
    with bar("rescore", total=run.requests) as (progress, task):
        found = rescore(run, target, output, overwrite=overwrite, progress=lambda: progress.advance(task))
    document = _document(found, run, model_name(target.identity))
    emit(document, as_json, lambda console: _render(document, console))
    return Exit.DONE


def _document(found: Rescored, run: Run, target: str) -> dict[str, Any]:
    return {
        "schema": "dflash.replay_rescore/1",
        "file": str(found.published.path),
        "content_digest": found.published.content_digest,
        "parents": [file.content_digest for file in run.files],
        "target": target,
        "contexts_of": model_name(run.header.contexts or run.header.target),
        "requests": found.published.requests,
        "rows": found.published.rows,
        "slots": found.slots,
        "differences": [str(difference) for difference in found.differences],
    }


def _render(facts: dict[str, Any], console: Console) -> None:
    lines = (
        f"{facts['file']}: {counted(facts['requests'], 'request')}, {counted(facts['rows'], 'row')}, "
        f"{counted(facts['slots'], 'slot')} scored "
        f"by {facts['target']}",
        f"drafts, contexts, decisions and features are those of the recording under {facts['contexts_of']}: "
        "re-judge it, it cannot be walked",
        *(f"differs: {difference}" for difference in facts["differences"]),
        f"content digest {facts['content_digest'][:12]}",
    )
    for line in lines:
        console.print(line, soft_wrap=True)
