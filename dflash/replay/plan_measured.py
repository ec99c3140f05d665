"""What a recording says to the plain formulas: alpha as measured, and how far they are from its tau."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dflash.draftfile.reader import DraftFile
from dflash.policy.shape import Shape
from dflash.replay.errors import NothingDrafted
from dflash.replay.plan import chain_tau, tree_tau
from dflash.replay.result import PolicyRow
from dflash.replay.run import recorded_policy
from dflash.replay.run import replay as replay_run
from dflash.replay.statistics import Interval


class Position(NamedTuple):
    """Acceptance at one position of the first branch: of the rounds that get there, and what was accepted."""

    position: int
    tried: int
    accepted: int
    conditional: float | None


class Held(NamedTuple):
    """One measured tau beside the formula's."""

    name: str
    measured: float | None
    interval: Interval | None
    formula: float


class Measured(NamedTuple):
    """One run as the formulas see it.

    Attributes:
        policy: as recorded.
        alpha: accepted nodes of all nodes tried along the first branch.
        positions: where alpha is not the same, tokens are not alike.
        tau: measured and by formula, for the first branch and for all of them.
    """

    policy: str
    alpha: float
    length: int
    branches: int
    positions: tuple[Position, ...]
    tau: tuple[Held, ...]


def measure(files: Sequence[DraftFile]) -> Measured:
    """Re-judge the live rounds of a run under its own policy, whole and cut to the first branch.

    Raises:
        NothingDrafted: no round drafted a node.
    """
    policy = recorded_policy(files[0])
    length, branches = policy.shape.length or 0, policy.shape.branches or 1
    first = replace(policy, shape=Shape(length=length, branches=1))
    chain, tree = replay_run(files, [first, policy], dense=False).rows
    tried = sum(item.reached for item in chain.acceptance)
    if not tried:
        raise NothingDrafted(str(files[0].path))
    alpha = sum(item.accepted for item in chain.acceptance) / tried
    held = [_held("first branch", chain, chain_tau(alpha, length))]
    if branches > 1:
        held.append(_held(f"{branches} branches", tree, tree_tau(alpha, length, branches)))
    positions = tuple(
        Position(item.position, int(item.reached), int(item.accepted), item.conditional)
        for item in chain.acceptance
    )
    return Measured(str(policy), alpha, length, branches, positions, tuple(held))


def _held(name: str, row: PolicyRow, formula: float) -> Held:
    return Held(name, row.tau, row.interval, formula)
