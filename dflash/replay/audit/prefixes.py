"""Probe: equal prefixes have equal laws, wherever in the file they are scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash.policy.noise import I64
from dflash.replay.audit.emission import trunks
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe

_U64 = npt.NDArray[np.uint64]
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Prefixes(ExactProbe):
    """Compares the raw law of slots that stand behind the same tokens: a shifted slot has another's.

    In a dense file every position is scored again and again, by live rounds and from all anchors before it.
    """

    name = "prefixes"
    question = "equal prefixes have equal laws: no slot is shifted"
    nothing = "no prefix was scored twice: record with --dense"
    power = "every slot whose logits differ from those of an equal prefix by more than the tie tolerance"

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield every slot against the one before it with the same prefix."""
        rounds = evidence.rounds
        prefix, length = _hashes(evidence)
        order = np.lexsort((length, prefix))
        same = np.flatnonzero((np.diff(length[order]) == 0) & (prefix[order][1:] == prefix[order][:-1]))
        one, two = order[same], order[same + 1]
        lse, top = rounds["slot_lse"], rounds["slot_topk_logit"]
        apart = np.abs(lse[one] - lse[two])
        if top.shape[1]:
            apart = np.maximum(apart, np.abs(top[one] - top[two]).max(axis=1))
        tolerance = evidence.file.header.tie_tolerance
        there = ~np.isnan(apart)
        one, two, apart = one[there], two[there], apart[there]
        row, index = evidence.slot_round[two], evidence.slot_index[two]
        wrong = apart > tolerance
        expected, found = rounds["slot_lse"][one], rounds["slot_lse"][two]
        yield Compared(
            "law of an equal prefix (slot_lse)", "slot", row, index, wrong, ~wrong, expected, found
        )


def _hashes(evidence: Evidence) -> tuple[_U64, I64]:
    """A hash of the tokens before each slot, and how many they are: a polynomial in the position.

    Sums of 64 bits may wrap; two prefixes of one length share a hash by chance once in 2^64.
    """
    rounds = evidence.rounds
    trunk = trunks(evidence)
    depth, rows = evidence.slot_depth, evidence.slot_round
    length = rounds.anchor_position[rows] + 1 + depth
    longest = int(length.max(initial=0))
    power: _U64 = np.cumprod(np.full(longest + 1, _BASE, dtype=np.uint64), dtype=np.uint64)
    prefix = np.zeros(len(rows), dtype=np.uint64)
    prefix[rounds.root_slot] = _anchor_hashes(evidence, trunk, power)
    term = _mixed(rounds["node_token"]) * power[rounds.anchor_position[rounds.node_round] + rounds.node_depth]
    for level in range(1, int(depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(rounds.node_depth == level)
        prefix[rounds.node_slot[nodes]] = prefix[rounds.parent_slot[nodes]] + term[nodes]
    return prefix, length


def _anchor_hashes(evidence: Evidence, trunk: dict[int, I64], power: _U64) -> _U64:
    found = np.zeros(len(evidence.rounds), dtype=np.uint64)
    for who, tokens in trunk.items():
        rows = np.flatnonzero(evidence.owner == who)
        tokens = tokens[: len(power)]
        sums = np.cumsum(_mixed(tokens) * power[: len(tokens)])
        found[rows] = sums[np.minimum(evidence.rounds.anchor_position[rows], len(sums) - 1)]
    return found


def _mixed(tokens: npt.NDArray[np.integer]) -> _U64:
    """Scatter token ids over 64 bits (splitmix64)."""
    word = (tokens.astype(np.uint64) + np.uint64(1)) * _BASE
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
