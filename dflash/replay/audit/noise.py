"""The noise of single tokens: log E at some tokens of many places instead of at whole vocabularies."""

from __future__ import annotations

import numpy as np

from dflash.policy.noise import F64, I64, U32, Purpose
from dflash.policy.philox import philox_lanes

SCHEME = {"scheme": "philox4x32-10", "version": 1}
_CHUNK = 1 << 19


def log_exponentials(
    key: U32, purpose: Purpose, position: I64, depth: I64, path: I64 | U32, tokens: I64
) -> F64:
    """Return log E of some tokens at each of m places; the words of `policy.noise.exponentials`.

    Args:
        key: `[m, 2]` of the places' requests.
        position: `[m]` of the token for `TARGET`, of the anchor otherwise.
        depth: `[m]` 1-based depth of what is drawn; 0 for `TARGET`.
        path: `[m]` hash of the parent's path; 0 for `TARGET`.
        tokens: `[m, k]`.

    Returns:
        `[m, k]`, inf where E is.
    """
    found = np.empty(tokens.shape, dtype=np.float64)
    step = max(1, _CHUNK // max(1, tokens.shape[1]))
    for begin in range(0, len(tokens), step):
        part = slice(begin, begin + step)
        found[part] = _chunk(key[part], purpose, position[part], depth[part], path[part], tokens[part])
    return found


def _chunk(key: U32, purpose: Purpose, position: I64, depth: I64, path: I64 | U32, tokens: I64) -> F64:
    def spread(values: I64 | U32) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        return np.repeat(values.astype(np.uint64), tokens.shape[1])

    flat = tokens.reshape(-1)
    lanes = philox_lanes(
        spread(position),
        spread(int(purpose) + 256 * depth),
        spread(path),
        (flat >> 2).astype(np.uint64),
        spread(key[:, 0]),
        spread(key[:, 1]),
    )
    word = np.choose(flat & 3, lanes)
    uniform = ((word + 0.5) * 2.0**-32).astype(np.float32).astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(-np.log1p(-uniform)).reshape(tokens.shape))
