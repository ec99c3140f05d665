"""The races that a request's key sets up, for tokens whose probability is stored."""

from __future__ import annotations

import numpy as np

from dflash.policy.noise import F64, I64, Purpose
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.noise import SCHEME, log_exponentials

NO_KEY = "its noise cannot be recomputed: its header names another generator than philox4x32-10"


def has_noise(evidence: Evidence) -> bool:
    """Return whether the file's random numbers follow from its keys."""
    rng = evidence.file.header.rng
    return {name: rng.get(name) for name in SCHEME} == SCHEME


def target_race(evidence: Evidence, slots: I64, tokens: I64) -> F64:
    """Return the log E of tokens `[m, k]` in the target's races at slots `[m]`."""
    rows = evidence.slot_round[slots]
    position = evidence.rounds.anchor_position[rows] + 1 + evidence.slot_depth[slots]
    nothing = np.zeros(len(slots), dtype=np.int64)
    return log_exponentials(evidence.rounds.key[rows], Purpose.TARGET, position, nothing, nothing, tokens)


def anchor_race(evidence: Evidence, purpose: Purpose, slots: I64, tokens: I64) -> F64:
    """Return the log E of tokens `[m, k]` in races below slots `[m]` that are keyed by the anchor."""
    rows, depth = evidence.slot_round[slots], evidence.slot_depth[slots] + 1
    anchor = evidence.rounds.anchor_position[rows]
    return log_exponentials(
        evidence.rounds.key[rows], purpose, anchor, depth, evidence.slot_path[slots], tokens
    )
