"""Requests that are on one side the beginning of what they are on the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.diff.decisions import endings
from dflash.diff.flat import Block
from dflash.diff.pairing import RowPairs
from dflash.diff.trunk import Parting
from dflash.draftfile.summary import Kind
from dflash.policy.noise import I64


@dataclass(slots=True)
class CutShort:
    """Counts over aligned requests.

    Attributes:
        a, b: those that end sooner in A, and in B; as far as they go, every row has a partner.
        marked: of them, those whose last decision says `interrupted`.
        odd: those whose rows lack partners in any other way.
    """

    a: int = 0
    b: int = 0
    marked: int = 0
    odd: int = 0

    def add(self, a: Block, b: Block, pairs: RowPairs, parting: Parting) -> None:
        """Count requests; `pairs` are all pairs of their rows."""
        same = pairs.comparable
        more_a, more_b = _alone(a, pairs.a[same]), _alone(b, pairs.b[same])
        equal = parting.prompts & ~parting.differs
        cut_a, cut_b = equal & (more_a == 0) & (more_b > 0), equal & (more_b == 0) & (more_a > 0)
        self.a += int(cut_a.sum())
        self.b += int(cut_b.sum())
        for block, cut in ((a, cut_a), (b, cut_b)):
            self.marked += int((cut & (endings(block) == "interrupted")).sum())
        self.odd += int(((more_a + more_b > 0) & ~cut_a & ~cut_b).sum())


def _alone(block: Block, compared: I64) -> I64:
    """Live rounds and dense rows of each request that are not compared."""
    kind = block.scalar("kind")
    alone = (kind == Kind.LIVE) | (kind == Kind.DENSE)
    alone[compared] = False
    return np.bincount(block.owner[alone], minlength=len(block.starts))
