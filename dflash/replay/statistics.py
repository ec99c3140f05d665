"""Acceptance numbers from counts, and 95 % bootstrap intervals over requests, paired between policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool
from dflash.replay.tally import Tally

RESAMPLES = 2000
_MOST_DRAWS = 10_000_000
_FEWEST_RESAMPLES = 200
_SEED = 0
_CHUNK = 2**18
# a product of this many terms or fewer is left to one core: others would wait for each other longer
_TERMS = 2**18
_DEEP = 256
# policies drawn at once: their sums by request are held in memory
_TOGETHER = 8


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Resampled(NamedTuple):
    """What the resamples say about one policy; None where there are fewer than two requests with rounds.

    Attributes:
        tau: interval of tau.
        difference: interval of tau minus the first policy's tau, on the same resamples.
        marginal: interval of the marginal acceptance at each position, from 1.
        marginal_difference: interval of it minus the first policy's, on the same resamples.
        knee: interval of `bend`.
        conditional: interval of the conditional acceptance at each position that was tried, from 1.
    """

    tau: Interval | None
    difference: Interval | None
    marginal: tuple[Interval | None, ...]
    marginal_difference: tuple[Interval | None, ...]
    knee: Interval | None = None
    conditional: tuple[Interval | None, ...] = ()


def tau(lengths: I64) -> float | None:
    """Return accepted nodes + 1 per live round from a histogram of accepted lengths; None without rounds."""
    rounds = int(lengths.sum())
    return 1.0 + float(lengths @ np.arange(len(lengths))) / rounds if rounds else None


def at_least(histogram: I64) -> I64:
    """Return how many values are at least 1, 2, ... from their histogram over the last axis."""
    return np.asarray(np.flip(np.cumsum(np.flip(histogram, -1), axis=-1), -1)[..., 1:])


def bend(marginal: F64, longest: int) -> I64:
    """Return the last position that gains more than the mean one, 0 if none stands out; `[...]`.

    Args:
        marginal: `[..., positions]` acceptance at each position, from 1; further ones accept nothing.
        longest: how many positions there are.
    """
    if longest < 2:
        return np.zeros(marginal.shape[:-1], dtype=np.int64)
    mean = marginal.sum(axis=-1, keepdims=True) / longest
    # the sum of equal gains may miss their mean by rounding
    return np.asarray((marginal > mean * (1 + 1e-9)).sum(axis=-1), dtype=np.int64)


def resampled(tallies: Sequence[Tally]) -> list[Resampled]:
    """Draw requests with replacement, the same ones for every policy.

    Returns:
        One result a policy; the draws are a fixed function of the number of requests.
    """
    used = tallies[0].lengths().sum(axis=1) > 0 if tallies else np.zeros(0, dtype=bool)
    # every policy judges the same rounds, so the same requests have some
    requests = int(used.sum())
    if requests < 2:
        none = [(None,) * (tally.lengths().shape[1] - 1) for tally in tallies]
        return [Resampled(None, None, positions, positions) for positions in none]
    results: list[Resampled] = []
    first: tuple[F64, F64] | None = None
    for begin in range(0, len(tallies), _TOGETHER):
        some = tallies[begin : begin + _TOGETHER]
        parts = [_sums(tally.lengths()[used], _depths(tally, used)) for tally in some]
        ends = np.cumsum([part.shape[1] for part in parts])[:-1]
        draws = np.split(draws_of(np.concatenate(parts, axis=1), requests), ends, axis=1)
        for tally, own in zip(some, draws, strict=True):
            rounds, accepted, reach, tried = np.split(own, [1, 2, 1 + tally.lengths().shape[1]], axis=1)
            ratio, share = 1.0 + accepted / rounds, reach / rounds
            first = (ratio, share) if first is None else first
            results.append(_resampled(ratio, share, first, reach, tried))
    return results


def _resampled(ratio: F64, share: F64, first: tuple[F64, F64], reach: F64, tried: F64) -> Resampled:
    base = _padded(first[1], share.shape[1])
    marginal, difference = intervals_of(share), intervals_of(share - base)
    return Resampled(
        interval_of(ratio),
        interval_of(ratio - first[0]),
        marginal,
        difference,
        interval_of(bend(share, tried.shape[1]).astype(np.float64)),
        _conditional(reach, tried),
    )


def per_round(tokens: I64, rounds: F64, variance: F64) -> Interval | None:
    """Return the interval of tokens per round over requests; None for fewer than two with rounds.

    Args:
        tokens: `[requests]`.
        rounds: `[requests]` rounds, or how many are expected.
        variance: `[requests]` of the rounds, from what was left to chance in each request.
    """
    used = rounds > 0
    requests = int(used.sum())
    if requests < 2:
        return None
    columns = np.column_stack((tokens[used], rounds[used], variance[used])).astype(np.float64)
    kept, expected, spread = draws_of(columns, requests).T
    chance = np.random.default_rng(_SEED + 1).standard_normal(len(kept))
    return interval_of(kept / (expected + np.sqrt(np.maximum(0.0, spread)) * chance))


def _padded(share: F64, width: int) -> F64:
    """No round accepts more than the longest."""
    return np.pad(share, ((0, 0), (0, max(0, width - share.shape[1]))))[:, :width]


def _depths(tally: Tally, used: Bool) -> I64:
    """Depths tried by the requests in use; none where only lengths were counted."""
    reached = tally.reached()
    return reached[used] if len(reached) else np.zeros((int(used.sum()), 1), dtype=np.int64)


def _conditional(reach: F64, tried: F64) -> tuple[Interval | None, ...]:
    """A position that some resample never tried has no interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = _padded(reach, tried.shape[1]) / tried
    known = [bool(np.isfinite(column).all()) for column in share.T]
    found = intervals_of(np.where(known, share, 0.0))
    return tuple(interval if sure else None for interval, sure in zip(found, known, strict=True))


def _sums(lengths: I64, reached: I64) -> F64:
    """Columns to add up: rounds, accepted nodes, rounds that accepted and that tried at least 1, 2, ..."""
    columns = (lengths.sum(axis=1), lengths @ np.arange(lengths.shape[1]))
    return np.column_stack([*columns, at_least(lengths), at_least(reached)]).astype(np.float64)


def draws_of(sums: F64, requests: int) -> F64:
    """Return the sums over requests drawn with replacement, the same ones whatever the columns are.

    Args:
        sums: `[requests, columns]` of each request.

    Returns:
        `[resamples, columns]`.
    """
    # whole numbers that float32 adds up exactly take half the time, and equal columns may share it
    if requests * np.abs(sums).max(initial=0.0) < 2**24 and (sums == np.rint(sums)).all():
        columns = np.ascontiguousarray(sums.T, dtype=np.float32)
        known: dict[bytes, int] = {}
        own = [known.setdefault(column.tobytes(), len(known)) for column in columns]
        distinct = columns[[own.index(place) for place in range(len(known))]]
        return _drawn(np.ascontiguousarray(distinct.T), requests).take(own, axis=1)
    return _drawn(sums, requests)


def _drawn(sums: npt.NDArray[np.floating[Any]], requests: int) -> F64:
    """Add up the requests that each resample draws, in the precision of the sums."""
    weight = _weights(requests)
    total = np.zeros((len(weight), sums.shape[1]), dtype=sums.dtype)
    for first in range(0, requests, _DEEP):
        some = sums[first : first + _DEEP]
        rows = max(1, _TERMS // max(1, some.size))
        for begin in range(0, len(weight), rows):
            drawn = weight[begin : begin + rows, first : first + _DEEP].astype(sums.dtype, copy=False)
            total[begin : begin + rows] += drawn @ some
    return total.astype(np.float64)


@lru_cache(maxsize=2)
def _weights(requests: int) -> npt.NDArray[np.float32 | np.uint8]:
    """How often each request is drawn in each resample; `[resamples, requests]`."""
    random = np.random.default_rng(_SEED)
    resamples = max(_FEWEST_RESAMPLES, min(RESAMPLES, _MOST_DRAWS // requests))
    # ready to be multiplied, unless that takes too much memory
    dtype = np.float32 if resamples * requests <= _MOST_DRAWS else np.uint8
    weight = np.empty((resamples, requests), dtype=dtype)
    chunk = max(1, _CHUNK // requests)
    for begin in range(0, resamples, chunk):
        drawn = random.integers(requests, size=(min(chunk, resamples - begin), requests))
        for row, places in enumerate(drawn):
            weight[begin + row] = np.bincount(places, minlength=requests)
    return weight


def interval_of(values: F64) -> Interval:
    """Return the middle 95 % of the resampled values."""
    return intervals_of(values.reshape(-1, 1))[0]


def intervals_of(values: F64) -> tuple[Interval, ...]:
    """Do as `interval_of` does for every column."""
    ends = np.percentile(values, [2.5, 97.5], axis=0)
    return tuple(Interval(*column) for column in ends.T.tolist())
