"""Which part of a recorded tree a policy uses: the first paths, down to a depth."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from dflash.policy.parameter import Whole
from dflash.policy.rounds import Rounds
from dflash.policy.topology import first_leaf


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds on the tree; None leaves it as recorded.

    Attributes:
        length: the largest depth.
        branches: the largest number of root-to-leaf paths, in order of proposal.
    """

    length: int | None = field(default=None, metadata={"type": Whole(0)})
    branches: int | None = field(default=None, metadata={"type": Whole(1)})

    @property
    def whole(self) -> bool:
        """Whether nothing is cut."""
        return all(getattr(self, item.name) is None for item in fields(self))

    def filled(self, other: Shape) -> Shape:
        """Return this shape with its open bounds taken from another."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(other, **{name: bound for name, bound in given.items() if bound is not None})

    def cut(self, rounds: Rounds) -> Rounds:
        """Return the rounds with the nodes outside of the bounds removed; every kept node keeps its noise."""
        if self.length is not None:
            rounds = _keep(rounds, rounds.node_depth <= self.length)
        if self.branches is not None:
            leaf = first_leaf(rounds.parent_node, rounds.parent_slot, rounds.node_depth)
            rounds = _keep(rounds, leaf < self.branches)
        return rounds


def _keep(rounds: Rounds, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rounds:
    if keep.all():
        return rounds
    counts = np.bincount(rounds.node_round[keep], minlength=len(rounds))
    return rounds.select(np.arange(len(rounds)), np.flatnonzero(keep), counts)
