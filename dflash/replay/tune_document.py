"""The JSON document of a search, of schema `dflash.tune/1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash.draftfile.run import Run
from dflash.policy.registry import Policy
from dflash.replay.cost import COST_DEFINITIONS
from dflash.replay.definitions import DEFINITIONS
from dflash.replay.tuned import TUNE_DEFINITIONS, Candidate, Dropped, Tuned
from dflash.replay.work import SPEED_DEFINITIONS

SCHEMA = "dflash.tune/1"
_SHARED = ("tau", "emitted_per_round", "interval", "exactness", "lossless", "clipped")
TUNE_WORDS: Mapping[str, str] = {
    **SPEED_DEFINITIONS,
    **TUNE_DEFINITIONS,
    **{name: DEFINITIONS[name] for name in _SHARED},
    **COST_DEFINITIONS,
}


def document(run: Run, recorded: Policy, found: Tuned) -> dict[str, Any]:
    """Return what `dflash tune --json` prints."""
    known, told = found.model.plain_timed, found.told()
    return {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "files": [
            {"path": str(file.path), "part": file.part, "content_digest": file.content_digest}
            for file in run.files
        ],
        "requests": found.requests,
        "recorded_policy": str(recorded),
        "search": {"kind": found.search.value, "rungs": [rung._asdict() for rung in found.rungs]},
        "max_divergence": found.max_divergence,
        "cost": found.model.to_dict(),
        "best": str(found.candidates[found.best].policy) if told else None,
        "frugal": str(found.candidates[found.frugal].policy) if told else None,
        "at_the_edge": list(found.edges()) if told else [],
        "speculates": found.speculates(),
        "not_told_from_best": found.untold() if told else None,
        "extrapolated": found.extrapolated(),
        "plain_decoding_timed": found.model.plain_timed,
        "contest": found.contest._asdict() if known and found.contest is not None else None,
        "policies": [_candidate(item, known, told, priced=found.priced(item)) for item in found.candidates],
        "dropped": [_dropped(item, known) for item in found.dropped],
        "surface": [cell._asdict() for cell in found.surface] if known else [],
        "definitions": dict(TUNE_WORDS),
    }


def _dropped(item: Dropped, known: bool) -> dict[str, Any]:
    return item._asdict() | {"policy": str(item.policy), "speed_up": item.speed_up if known else None}


def _candidate(item: Candidate, known: bool, told: bool, priced: bool) -> dict[str, Any]:
    """One policy.

    Args:
        known: whether its speed-up is.
        told: whether the times tell which policy is the fastest.
        priced: whether rounds of its size were timed.
    """
    row, speed = item.row, item.speed
    return {
        "policy": str(item.policy),
        "definition": item.policy.to_dict(),
        "adaptive": item.policy.control.adaptive,
        "exactness": row.exactness,
        "lossless": row.lossless,
        "admissible": item.admissible,
        "front": item.front and told,
        "speed_up": speed.speed_up if known else None,
        "speed_up_interval": speed.interval if known else None,
        "covered": item.covered,
        "censored": item.censored,
        "difference_to_best": speed.difference if item.comparable and known else None,
        "difference_interval": speed.difference_interval if known else None,
        "best_share": speed.best_share if told else None,
        "tau": row.tau,
        "tau_interval": row.interval,
        "emitted_per_round": row.emitted_per_round,
        "emitted_interval": row.emitted_interval,
        "divergence": item.divergence,
        "divergence_interval": item.divergence_interval,
        "tokens_per_second": speed.tokens_per_second if priced else None,
        "round_us": speed.round_us if priced else None,
        "verified_per_token": speed.verified_per_token,
        "rounds": row.rounds,
        "clipped": None if row.walked is None else row.walked.clipped,
        "remarks": list(row.remarks),
    }
