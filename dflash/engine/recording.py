"""What a recording session left behind, and its facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dflash.draftfile.writer import Published
from dflash.engine.pace import Verdict
from dflash.engine.prompts.errors import PromptError
from dflash.engine.recorder.totals import Totals


@dataclass(slots=True)
class Recording:
    """What a session left behind; `unwritten` says why the last metrics are not in their file."""

    published: Published
    totals: Totals
    seconds: float
    interrupted: bool
    lost: list[PromptError] = field(default_factory=list)
    pace: Verdict | None = None
    unwritten: str | None = None
    memory: dict[str, Any] | None = None
    blocked_seconds: float = 0.0


def speed(recording: Recording) -> float:
    """Committed tokens a second over the whole session, prefill included."""
    totals = recording.totals
    return (totals.emitted - totals.kept_tokens) / recording.seconds if recording.seconds else 0.0


def summary(recording: Recording) -> dict[str, Any]:
    """The facts of the closing line, as the `dflash.record/1` document has them."""
    totals, published = recording.totals, recording.published
    return {
        "schema": "dflash.record/1",
        "file": str(published.path),
        "content_digest": published.content_digest,
        "run_status": "interrupted" if recording.interrupted else "finished",
        "requests": totals.requests,
        "kept": totals.kept,
        "unasked": totals.unasked,
        "changed": totals.changed,
        "rounds": totals.rounds,
        "tokens": totals.emitted,
        "tau": totals.tau,
        "seconds": recording.seconds,
        "tokens_per_second": speed(recording),
        "finish": totals.finish,
        "lost": [str(error) for error in recording.lost],
        "bytes": published.bytes,
        "blocked_seconds": recording.blocked_seconds,
        "memory": recording.memory,
    }
