"""The plain formulas of speculative decoding, each with the assumptions that it stands on."""

from __future__ import annotations

from typing import NamedTuple

IID = "every drafted token is accepted with the same probability alpha, independently of all others"
INDEPENDENT = "branches are accepted independently of each other"
ONE_STEP = "verifying 1 + length x branches rows takes as long as one row (the target is bound by memory)"
BATCHED = "branches are drafted side by side, so that a position costs one draft step whatever their number"


class Quantity(NamedTuple):
    """One number of a plan.

    Attributes:
        formula: how it is computed, in the names of the options.
        assumptions: what must hold for it to be true.
    """

    name: str
    value: float
    unit: str
    formula: str
    assumptions: tuple[str, ...]


class KvShape(NamedTuple):
    """What one token's keys and values are made of; `width` is bytes a value."""

    layers: int
    kv_heads: int
    head_dim: int
    width: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.width


class Cell(NamedTuple):
    """One shape of the grid; the speed-up is None without a draft cost."""

    length: int
    branches: int
    tau: float
    speed_up: float | None


def chain_tau(alpha: float, length: int) -> float:
    """Return the expected tau of chains, (1 - alpha^(length + 1)) / (1 - alpha).

    Leviathan et al., arXiv 2211.17192, equation 1.
    """
    return float(sum(alpha**position for position in range(length + 1)))


def any_branch(alpha: float, branches: int) -> float:
    """Return the chance that at least one of several first tokens is accepted, 1 - (1 - alpha)^branches."""
    return float(1.0 - (1.0 - alpha) ** branches)


def tree_tau(alpha: float, length: int, branches: int) -> float:
    """Return the expected tau of the longest of several branches, 1 + sum over i of 1 - (1 - alpha^i)^B."""
    return 1.0 + sum(any_branch(alpha**position, branches) for position in range(1, length + 1))


def speed_up(tau: float, length: int, draft_cost: float) -> float:
    """Return tau / (1 + length x draft_cost); Leviathan et al., theorem 3.8.

    Args:
        draft_cost: time of one draft step over that of one target step.
    """
    return tau / (1.0 + length * draft_cost)


def grid(alpha: float, lengths: range, branches: range, draft_cost: float | None) -> tuple[Cell, ...]:
    """Return tau, and the speed-up if a draft cost is given, of every shape."""
    cells = []
    for length in lengths:
        for count in branches:
            tau = tree_tau(alpha, length, count)
            gain = None if draft_cost is None else speed_up(tau, length, draft_cost)
            cells.append(Cell(length, count, tau, gain))
    return tuple(cells)


def acceptance(alpha: float, length: int, branches: int, draft_cost: float | None) -> tuple[Quantity, ...]:
    """Return what one shape gains, if tokens and branches are independent."""
    found = [
        Quantity(
            "tau of a chain",
            chain_tau(alpha, length),
            "tokens a round",
            "(1 - alpha^(length + 1)) / (1 - alpha)",
            (IID,),
        ),
        Quantity(
            "a first token is accepted",
            any_branch(alpha, branches),
            "probability",
            "1 - (1 - alpha)^branches",
            (INDEPENDENT,),
        ),
        Quantity(
            "tau of the branches",
            tree_tau(alpha, length, branches),
            "tokens a round",
            "1 + sum of 1 - (1 - alpha^i)^branches over i = 1 .. length",
            (IID, INDEPENDENT),
        ),
    ]
    if draft_cost is not None:
        gain = speed_up(tree_tau(alpha, length, branches), length, draft_cost)
        formula = "tau of the branches / (1 + length x draft cost)"
        found.append(Quantity("speed-up", gain, "x", formula, (IID, INDEPENDENT, ONE_STEP, BATCHED)))
    return tuple(found)


def memory(kv: KvShape, length: int, branches: int, concurrency: int) -> tuple[Quantity, ...]:
    """Return how many bytes of keys and values a token, a branch and all further branches hold."""
    branch = kv.token_bytes * length
    more = branch * (branches - 1)
    shared = ("the trunk is stored once and shared by all branches",)
    token = "2 x layers x kv heads x head dim x bytes a value"
    return (
        Quantity("K/V of a token", kv.token_bytes, "bytes", token, ()),
        Quantity("K/V of a branch", branch, "bytes", "length x K/V of a token", ()),
        Quantity("K/V beyond one branch", more, "bytes", "(branches - 1) x length x K/V of a token", shared),
        Quantity(
            "the same for all requests",
            more * concurrency,
            "bytes",
            "concurrency x K/V beyond one branch",
            shared,
        ),
    )
