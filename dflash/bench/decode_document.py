"""The `dflash.bench_decode/1` document: rates, speed-ups, and what recording adds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from dflash.bench.decode import PLAIN, Comparison, DecodeSettings, FirstToken, Side, SideResult
from dflash.bench.decode_models import Subject
from dflash.bench.decode_peers import Peer


def document(
    subject: Subject, given: DecodeSettings, measured: Comparison, first: FirstToken | None,
    peers: Sequence[Peer] = (),
) -> dict[str, Any]:  # fmt: skip
    """All that was measured; no first tokens where it was interrupted before them."""
    results = measured.results
    return {
        "schema": "dflash.bench_decode/1",
        "target": subject.name,
        "drafter": subject.drafter_name,
        "device": subject.device_name,
        "length": given.length,
        "branches": given.branches,
        "policies": list(given.policies),
        "temperature": given.temperature,
        "prompts": [len(each) for each in given.lists],
        "prompt_tokens": given.prompt_tokens,
        "new_tokens": given.new_tokens,
        "rows": [_row(found, results, given) for found in results],
        "step_time": {str(lanes): profile.to_dict() for lanes, profile in measured.step_times.items()},
        "interrupted": measured.interrupted,
        "first_token_ms": None if first is None else first._asdict(),
        "peers": [peer._asdict() | {"tokens_per_second": peer.tokens_per_second} for peer in peers],
    }


def _row(found: SideResult, results: Sequence[SideResult], given: DecodeSettings) -> dict[str, Any]:
    by_side = {other.side: other for other in results if other.lanes == found.lanes}
    plain, own = by_side[Side(PLAIN)], by_side[found.side.bare]
    kept, requests = found.side.kept, len(given.prompts) or found.lanes
    return {
        "lanes": found.lanes,
        "side": found.side.name,
        "policy": found.side.policy,
        "kept": None if kept is None else kept.facts(),
        "tokens_per_second": found.tokens_per_second,
        "part_rates": found.part_rates,
        "emitted_per_round": found.emitted_per_round,
        "round_us": found.round_us,
        "speed_up": found.tokens_per_second / plain.tokens_per_second,
        "start_ms": 1e3 * median(run.start for run in found.runs),
        "prefill_ms": 1e3 * median(run.prefill for run in found.runs) / requests,
        "overhead": None if kept is None else _overhead(found, own, "decode"),
        "overhead_written": None if kept is None else _overhead(found, own, "finish"),
        "once_ms": None if kept is None else _once(found, own),
        "runs": [_run(run._asdict()) for run in found.runs],
    }


def _run(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {"parts": [part._asdict() for part in facts["parts"]]}


def _once(on: SideResult, off: SideResult) -> dict[str, float]:
    """Median over pairs of the milliseconds that recording adds to a run, however long it is."""
    pairs = list(zip(on.runs, off.runs, strict=False))
    before = median(mine.start - theirs.start for mine, theirs in pairs)
    after = median((mine.finish - mine.decode) - (theirs.finish - theirs.decode) for mine, theirs in pairs)
    return {"before": 1e3 * before, "after": 1e3 * after}


def _overhead(on: SideResult, off: SideResult, span: str) -> float:
    """Median over pairs of what recording adds to a round's time."""
    # an interruption may have left out the last of either
    pairs = zip(on.runs, off.runs, strict=False)
    found: list[float] = [
        (getattr(mine, span) / mine.rounds) / (getattr(theirs, span) / theirs.rounds) - 1.0
        for mine, theirs in pairs
    ]
    return median(found)
