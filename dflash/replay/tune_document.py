"""The JSON document of a search, of schema `dflash.tune/1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash.draftfile.run import Run
from dflash.policy.registry import Policy
from dflash.replay.cost import COST_DEFINITIONS
from dflash.replay.definitions import DEFINITIONS
from dflash.replay.tuned import TUNE_DEFINITIONS, Candidate, Tuned
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
        "best": str(found.candidates[found.best].policy),
        "frugal": str(found.candidates[found.frugal].policy),
        "at_the_edge": list(found.edges()),
        "speculates": found.speculates(),
        "not_told_from_best": found.untold(),
        "extrapolated": found.extrapolated(),
        "plain_decoding_timed": found.model.plain_timed,
        "contest": None if found.contest is None else found.contest._asdict(),
        "policies": [_candidate(item) for item in found.candidates],
        "dropped": [item._asdict() | {"policy": str(item.policy)} for item in found.dropped],
        "surface": [cell._asdict() for cell in found.surface],
        "definitions": dict(TUNE_WORDS),
    }


def _candidate(item: Candidate) -> dict[str, Any]:
    row, speed = item.row, item.speed
    return {
        "policy": str(item.policy),
        "definition": item.policy.to_dict(),
        "adaptive": item.policy.control.adaptive,
        "exactness": row.exactness,
        "lossless": row.lossless,
        "admissible": item.admissible,
        "front": item.front,
        "speed_up": speed.speed_up,
        "speed_up_interval": speed.interval,
        "covered": item.covered,
        "censored": item.censored,
        "difference_to_best": speed.difference if item.comparable else None,
        "difference_interval": speed.difference_interval,
        "best_share": speed.best_share,
        "tau": row.tau,
        "tau_interval": row.interval,
        "emitted_per_round": row.emitted_per_round,
        "emitted_interval": row.emitted_interval,
        "divergence": item.divergence,
        "divergence_interval": item.divergence_interval,
        "tokens_per_second": speed.tokens_per_second,
        "round_us": speed.round_us,
        "verified_per_token": speed.verified_per_token,
        "rounds": row.rounds,
        "clipped": None if row.walked is None else row.walked.clipped,
        "remarks": list(row.remarks),
    }
