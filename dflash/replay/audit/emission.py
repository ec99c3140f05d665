"""Which tokens a recording kept, the law that each should follow, and the trunk that they make."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.noise import I64
from dflash.replay.audit.evidence import Evidence


class Emission(NamedTuple):
    """Tokens `[m]` that were kept, with the row and the flat slot whose law each should follow."""

    row: I64
    slot: I64
    token: I64


def emission(evidence: Evidence) -> Emission:
    """Return every kept token of prefills and live rounds: accepted ones at their parent's slot."""
    rounds, recorded = evidence.rounds, evidence.recorded
    row = np.repeat(np.arange(len(rounds)), recorded.count)
    place = np.arange(len(row)) - recorded.path_offsets[row]
    node = recorded.path_node + rounds.node_offsets[row]
    kept = place < recorded.emitted[row]
    last = rounds.root_slot.copy()
    deepest = recorded.path_offsets[1:] - 1
    some = np.flatnonzero(recorded.count > 0)
    last[some] = rounds.node_slot[node[deepest[some]]]
    whole = np.flatnonzero(recorded.emitted > recorded.count)
    return Emission(
        np.concatenate([row[kept], whole]),
        np.concatenate([rounds.parent_slot[node[kept]], last[whole]]),
        np.concatenate([recorded.path_token[kept], recorded.bonus[whole]]),
    )


def trunks(evidence: Evidence) -> dict[int, I64]:
    """Prompt and kept tokens of each request, by owner."""
    found = emission(evidence)
    order = np.argsort(found.row, kind="stable")
    owner, token = evidence.owner[found.row[order]], found.token[order]
    prompts = evidence.table["prompt_tokens"].to_pylist()
    trunks = {}
    for row in np.flatnonzero(np.append(True, np.diff(evidence.owner) != 0)[: len(evidence.owner)]):
        who = int(evidence.owner[row])
        kept = token[np.searchsorted(owner, who) : np.searchsorted(owner, who, side="right")]
        trunks[who] = np.concatenate([np.array(prompts[row] or [], dtype=np.int64), kept])
    return trunks
