"""SGLang's target-only test of a tree: siblings share one coin and add up their p, and q plays no part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, sibling_order

TARGET_ONLY_COLUMNS = ("node_token", "node_logp", "slot_choice", "node_residual_token")
_FLOOR = 1e-9


class Siblings(NamedTuple):
    """Whether each node passes, and by how much its coin lies over the sum; both `[N]`."""

    ok: Bool
    excess: F64


def add_up(rounds: Rounds, coin: F64, single: float, acc: float) -> Siblings:
    """Test every node against the sum of p over itself and its earlier siblings.

    A node passes if p > 0 and either coin < sum / acc or p >= single; with both at 1 the first passing
    sibling is a draw from p, so that the rule is lossless on distinct siblings, however they were drawn.

    Args:
        rounds: R rounds with N nodes.
        coin: `[N]`; siblings use that of the first of them.
        single: `threshold_single`.
        acc: `threshold_acc`, floored at 1e-9.
    """
    p = np.exp(rounds.present("node_logp"))
    order, start = sibling_order(rounds.parent_slot)
    gathered = np.cumsum(p[order])
    total, shared = np.empty_like(p), np.empty_like(coin)
    total[order] = gathered - (gathered - p[order])[start]
    shared[order] = coin[order[start]]
    excess = shared - total / max(acc, _FLOOR)
    ok = (p > 0) & (rounds["node_token"] >= 0) & ((excess < 0) | (p >= single))
    return Siblings(ok, np.where(p >= single, np.inf, excess))


def pass_chances(rounds: Rounds, single: float, acc: float) -> F64:
    """Return the chance that each node is the first of its siblings to pass; `[N]`.

    Args:
        rounds: N nodes.
        single: as for `add_up`; `acc` likewise.
    """
    p = np.exp(rounds.present("node_logp"))
    order, start = sibling_order(rounds.parent_slot)
    own = p[order]
    gathered = np.cumsum(own)
    before = gathered - own - (gathered - own)[start]
    certain = (own >= single) & (own > 0)
    decided: I64 = np.cumsum(certain) - certain
    undecided: Bool = decided == decided[start]
    low, high = (np.minimum(1.0, mass / max(acc, _FLOOR)) for mass in (before, before + own))
    chance = np.empty_like(p)
    chance[order] = np.where(undecided, np.where(certain, 1.0, high) - low, 0.0)
    return chance
