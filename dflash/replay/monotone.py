"""Fits of times that only grow: sums of non-negative terms, by least absolute residuals."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dflash.policy.noise import F64

_ROUNDS = 20
_MOST = 50_000
_RANK = 1e-10


def non_negative(terms: F64, target: F64) -> F64:
    """Return the non-negative weights whose sum of terms comes nearest to a target, outliers ignored.

    Least absolute residuals by reweighted least squares; each of those by trying every set of terms, which
    is exact for the few there are. Of terms that explain the same, the first ones win.

    Args:
        terms: `[observations, k]`, k of a handful.
        target: `[observations]`.
    """
    stride = -(-len(target) // _MOST)
    terms, target = terms[::stride], target[::stride]
    scale = np.where(terms.max(axis=0) > 0, terms.max(axis=0), 1.0)
    unit = terms / scale
    least = 1e-3 * float(np.median(target)) + 1e-9
    weight = np.ones(len(target))
    found = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        before, found = found, _least_squares(unit, target, weight)
        if np.allclose(before, found, rtol=1e-6, atol=1e-9):
            break
        weight = 1.0 / np.maximum(np.abs(target - unit @ found), least)
    return found / scale


def _least_squares(terms: F64, target: F64, weight: F64) -> F64:
    square = terms.T @ (weight[:, None] * terms)
    product = terms.T @ (weight * target)
    best, lowest = np.zeros(len(square)), 0.0
    for size in range(1, len(square) + 1):
        for chosen in combinations(range(len(square)), size):
            part = list(chosen)
            inner = square[np.ix_(part, part)]
            if np.linalg.matrix_rank(inner, hermitian=True, tol=_RANK * np.trace(inner)) < size:
                continue
            values = np.linalg.solve(inner, product[part])
            # the residual, but for what is the same for every choice
            error = float(values @ inner @ values - 2 * values @ product[part])
            if (values >= 0).all() and error < lowest * (1 + 1e-9):
                best = np.zeros(len(square))
                best[part] = values
                lowest = error
    return best
