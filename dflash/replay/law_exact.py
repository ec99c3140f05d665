"""Law-exact walks: the law of the accepted lengths along a trunk, with every coin integrated out.

From anchor a, with rho_m = q/p of the m-th committed token after it, P(accepted >= i) is the product of
min(1, rho_m) for `speculative` and the running minimum of the product of rho_m for `block`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dflash.policy.block import Block
from dflash.policy.noise import F64, I64
from dflash.policy.rule import Rule
from dflash.replay.dense import DenseBatch
from dflash.replay.errors import TrunkLawMissing

LAW_COLUMNS = ("trunk_logp", "trunk_logq")


class Lengths(NamedTuple):
    """Rounds that a live run needs for each request, given its text.

    Attributes:
        tokens: `[requests]` tokens after the first one.
        rounds: `[requests]` expected rounds.
        variance: `[requests]` of the rounds, over the coins.
        emitted: `[longest]` expected rounds that keep 1, 2, ... tokens.
    """

    tokens: I64
    rounds: F64
    variance: F64
    emitted: F64


def reach(dense: DenseBatch, length: int, rule: Rule) -> F64:
    """Return P(accepted >= i) at every row for i = 0 .. length; `[rows, length + 1]`.

    Past the trunk's end nothing is known; the chance is 0 there, and the tokens left are kept whatever it is.

    Raises:
        TrunkLawMissing: the dense rows do not hold the drafter's law along the trunk.
    """
    table, trunk = dense.batch.table, dense.trunk
    log_p = table["trunk_logp"].combine_chunks().fill_null(np.nan).to_numpy(zero_copy_only=False)
    lists = table["trunk_logq"].combine_chunks()
    if lists.null_count or np.isnan(log_p).any():
        raise TrunkLawMissing(rule.name)
    log_rho = _log_ratios(lists, log_p.astype(np.float64), trunk.left, length)
    if rule.name == Block.name:
        bound = np.minimum.accumulate(np.minimum(0.0, np.cumsum(log_rho, axis=1)), axis=1)
    else:
        bound = np.cumsum(np.minimum(0.0, log_rho), axis=1)
    return np.concatenate((np.ones((len(log_p), 1)), np.exp(bound)), axis=1)


def lengths(dense: DenseBatch, chance: F64) -> Lengths:
    """Follow the law of the rounds from the first anchor of every request to its end.

    Args:
        chance: of `reach`.
    """
    trunk = dense.trunk
    step = _steps(chance, trunk.left)
    expected, second = _remaining(step, trunk.first, trunk.rows)
    first = trunk.first[trunk.rows > 0]
    rounds, variance = np.zeros(len(trunk.rows)), np.zeros(len(trunk.rows))
    rounds[trunk.rows > 0] = expected[first]
    variance[trunk.rows > 0] = second[first] - expected[first] ** 2
    visits = _visits(step, trunk.first, trunk.rows)
    return Lengths(trunk.rows, rounds, variance, (visits[:, None] * step).sum(axis=0))


def _log_ratios(lists: pa.Array, log_p: F64, left: I64, length: int) -> F64:
    """log rho_1 .. rho_length at every row, -inf from the last known token on; `[rows, length]`."""
    counts = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    begin = np.cumsum(counts) - counts
    ratio = np.full((len(log_p), length), -np.inf)
    rows = np.arange(len(log_p))
    for step in range(length):
        known = rows[(step < counts) & (step < left)]
        with np.errstate(invalid="ignore"):
            ratio[known, step] = flat[begin[known] + step] - log_p[known + step]
    return ratio


def _steps(chance: F64, left: I64) -> F64:
    """P(a round keeps k tokens) for k = 1 .. length + 1; the last tokens of an answer are kept whole."""
    step = chance.copy()
    step[:, :-1] -= chance[:, 1:]
    ends = np.flatnonzero(left < chance.shape[1])
    for row in ends:
        step[row, left[row] - 1] = chance[row, left[row] - 1]
        step[row, left[row] :] = 0.0
    return step


def _remaining(step: F64, first: I64, rows: I64) -> tuple[F64, F64]:
    """First and second moment of the rounds from every row on, backwards along all requests at once."""
    total = len(step)
    mean, square = np.zeros(total + step.shape[1] + 1), np.zeros(total + step.shape[1] + 1)
    for back in range(1, int(rows.max(initial=0)) + 1):
        row = (first + rows - back)[rows >= back]
        after, again = np.zeros(len(row)), np.zeros(len(row))
        for kept in range(1, min(step.shape[1], back - 1) + 1):
            after += step[row, kept - 1] * mean[row + kept]
            again += step[row, kept - 1] * square[row + kept]
        mean[row] = 1.0 + after
        square[row] = 1.0 + 2.0 * after + again
    return mean[:total], square[:total]


def _visits(step: F64, first: I64, rows: I64) -> F64:
    """Probability that a round begins at every row."""
    visits = np.zeros(len(step) + step.shape[1] + 1)
    visits[first[rows > 0]] = 1.0
    for forth in range(int(rows.max(initial=0))):
        row, left = (first + forth)[rows > forth], (rows - forth)[rows > forth]
        for kept in range(1, step.shape[1] + 1):
            inside = kept < left
            visits[row[inside] + kept] += visits[row[inside]] * step[row[inside], kept - 1]
    return visits[: len(step)]


def joined(parts: Sequence[Lengths]) -> Lengths:
    """Put the requests of several row groups together."""
    width = max((len(part.emitted) for part in parts), default=1)
    emitted = np.zeros(width)
    for part in parts:
        emitted[: len(part.emitted)] += part.emitted
    return Lengths(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.rounds for part in parts]),
        np.concatenate([part.variance for part in parts]),
        emitted,
    )
