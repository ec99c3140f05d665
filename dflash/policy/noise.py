"""Which random number is used where: keys, path hashes, acceptance coins and exponential races.

Counter words: position, purpose + 256 x depth, path hash, vocabulary index // 4.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from string import hexdigits

import numpy as np
import numpy.typing as npt

from dflash.policy.philox import U64, philox_lanes

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_FNV_BASIS = 0x811C9DC5
_FNV_PRIME = 0x01000193
_MASK = 0xFFFFFFFF
_UNIT = 2.0**-32
# rounds whose counters stay in the processor's cache
_CHUNK = 2048


class Purpose(IntEnum):
    """What a random number decides; the low byte of the second counter word."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BLOCK = 4


def request_key(seed: int, prompt_tokens: Sequence[int], ordinal: int) -> tuple[int, int]:
    """Return the Philox key of a request.

    Args:
        seed: the run's or the request's seed, an unsigned 64-bit integer.
        prompt_tokens: token ids of the prompt.
        ordinal: how many identical prompts came before this one in the whole prompt list.
    """
    prompt = hashlib.sha256(np.asarray(prompt_tokens, dtype="<i4").tobytes()).digest()
    digest = hashlib.sha256(struct.pack("<Q", seed) + prompt + struct.pack("<I", ordinal)).digest()
    k0, k1 = struct.unpack_from("<II", digest)
    return int(k0), int(k1)


def rng_key_hex(key: tuple[int, int]) -> str:
    """Write a key as 16 hexadecimal digits, k0 first."""
    return f"{key[0]:08x}{key[1]:08x}"


def parse_rng_key(text: str) -> tuple[int, int]:
    """Read a key back from `rng_key_hex`; ValueError if it is not 16 hexadecimal digits."""
    if len(text) != 16 or not set(text) <= set(hexdigits):
        raise ValueError(f"expected 16 hexadecimal digits, found {text!r}")
    return int(text[:8], 16), int(text[8:], 16)


def rng_key_words(texts: Sequence[str]) -> U32:
    """Do as `parse_rng_key` does for many keys at once; `[keys, 2]`."""
    try:
        raw = bytes.fromhex("".join(texts))
    except ValueError:
        raw = b""
    if len(raw) != 8 * len(texts) or not set(map(len, texts)) <= {16}:
        # some key is odd, which one by one says
        return np.array([parse_rng_key(text) for text in texts], dtype=np.uint32).reshape(-1, 2)
    return np.frombuffer(raw, dtype=">u4").astype(np.uint32).reshape(-1, 2)


def path_hash(ranks: Sequence[int]) -> int:
    """Hash the sibling ranks down to a node: FNV-1a-32, trailing zeros dropped, 0 if none is left."""
    kept = list(ranks)
    while kept and kept[-1] == 0:
        kept.pop()
    if not kept:
        return 0
    state = _FNV_BASIS
    for byte in struct.pack(f"<{len(kept)}H", *kept):
        state = ((state ^ byte) * _FNV_PRIME) & _MASK
    return state


def path_hashes(parent_node: I64, sibling_rank: I64, depth: I64) -> U32:
    """Return `path_hash` of every node of a batch of trees.

    Args:
        parent_node: `[N]` flat index of the parent, -1 at the anchor; parents before children.
        sibling_rank: `[N]` 0-based place among the siblings.
        depth: `[N]` 1-based.
    """
    hashes = np.zeros(len(depth), dtype=np.uint64)
    if not sibling_rank.any():
        return hashes.astype(np.uint32)
    # one more element, so that the parent -1 reads the state of the anchor
    states = np.full(len(depth) + 1, _FNV_BASIS, dtype=np.uint64)
    hashes = np.append(hashes, np.uint64(0))
    for level in range(1, int(depth.max()) + 1):
        nodes = np.flatnonzero(depth == level)
        rank = sibling_rank[nodes].astype(np.uint64)
        state = states[parent_node[nodes]]
        for byte in (rank & 0xFF, rank >> 8):
            state ^= byte
            state *= _FNV_PRIME
            state &= _MASK
        states[nodes] = state
        hashes[nodes] = np.where(rank > 0, state, hashes[parent_node[nodes]])
    return hashes[:-1].astype(np.uint32)


def _words(key: tuple[int, int], position: int, second: int, third: int, blocks: int) -> F64:
    shape = blocks
    lanes = philox_lanes(
        np.full(shape, position, dtype=np.uint64),
        np.full(shape, second, dtype=np.uint64),
        np.full(shape, third, dtype=np.uint64),
        np.arange(shape, dtype=np.uint64),
        np.array(key[0], dtype=np.uint64),
        np.array(key[1], dtype=np.uint64),
    )
    words = np.empty((blocks, 4), dtype=np.float64)
    for column, lane in enumerate(lanes):
        words[:, column] = lane
    return words.reshape(-1)


def exponentials(
    key: tuple[int, int], purpose: Purpose, position: int, depth: int, path: int, vocab: int
) -> F64:
    """Return the standard exponential of every token at one place of one request.

    Args:
        key: the request's key.
        position: of the token being drawn for `TARGET`, of the anchor otherwise; 0-based.
        depth: 1-based depth of the node that is drawn; 0 for `TARGET`.
        path: hash of the parent's path.
        vocab: how many tokens.

    Returns:
        `[vocab]`, E = -log1p(-u) with u = float32((w + 1/2) * 2**-32); infinite where u is 1.
    """
    uniform = _words(key, position, int(purpose) + 256 * depth, path, -(-vocab // 4))[:vocab]
    uniform += 0.5
    uniform *= _UNIT
    uniform[...] = uniform.astype(np.float32)
    np.negative(uniform, out=uniform)
    with np.errstate(divide="ignore"):
        np.log1p(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


def target_exponentials(key: tuple[int, int], position: int, vocab: int) -> F64:
    """Noise of the target's choice (and of `shared` drafts) at an absolute position; `[vocab]`."""
    return exponentials(key, Purpose.TARGET, position, 0, 0, vocab)


def draft_exponentials(
    key: tuple[int, int], anchor_position: int, depth: int, parent_ranks: Sequence[int], vocab: int
) -> F64:
    """Noise of an `independent` draft of the given depth under the parent with these ranks; `[vocab]`."""
    return exponentials(key, Purpose.DRAFT, anchor_position, depth, path_hash(parent_ranks), vocab)


def residual_exponentials(
    key: tuple[int, int], anchor_position: int, depth: int, parent_ranks: Sequence[int], vocab: int
) -> F64:
    """Noise of the residual draw that replaces rejected children of the given depth; `[vocab]`."""
    return exponentials(key, Purpose.RESIDUAL, anchor_position, depth, path_hash(parent_ranks), vocab)


def race(exponential: F64, weight: F64) -> int:
    """Return argmin E/p, a draw from `weight` (unnormalised): lowest id on ties, -1 if nothing has mass."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = exponential / weight
    ratio[~(weight > 0)] = np.inf
    winner = int(np.argmin(ratio))
    if np.isfinite(ratio[winner]):
        return winner
    alive = np.flatnonzero(weight > 0)
    return int(alive[0]) if len(alive) else -1


def coins(
    key: U32, anchor_position: I64, node_round: I64, depth: I64, path: U32, purpose: Purpose = Purpose.ACCEPT
) -> F64:
    """Return one acceptance coin a node, in (0, 1).

    Args:
        key: `[R, 2]` keys of the rounds.
        anchor_position: `[R]` 0-based.
        node_round: `[N]` round of each node, ascending.
        depth: `[N]` 1-based.
        path: `[N]` hash of the node's own path.
        purpose: `ACCEPT` or `BLOCK`.

    Returns:
        `[N]`, (w + 1/2) * 2**-32 in float64; four depths of one path share a Philox call.
    """
    block = (depth - 1) >> 2
    # neighbours on one chain share a call; elsewhere a repeated call costs time, not correctness
    fresh = np.ones(len(depth), dtype=bool)
    fresh[1:] = (node_round[1:] != node_round[:-1]) | (block[1:] != block[:-1]) | (path[1:] != path[:-1])
    first = np.flatnonzero(fresh)
    rounds = node_round[first]
    lanes = philox_lanes(
        anchor_position[rounds].astype(np.uint64),
        np.full(len(first), int(purpose), dtype=np.uint64),
        path[first].astype(np.uint64),
        block[first].astype(np.uint64),
        _column(key, 0)[rounds],
        _column(key, 1)[rounds],
    )
    words = np.empty((len(first), 4), dtype=np.float64)
    for column, lane in enumerate(lanes):
        words[:, column] = lane
    words += 0.5
    words *= _UNIT
    shared = np.diff(first, append=len(depth))
    place = np.repeat(4 * np.arange(len(first)), shared)
    place += (depth - 1) & 3
    return words.reshape(-1)[place]


def chain_coins(key: U32, anchor_position: I64, length: int, purpose: Purpose = Purpose.ACCEPT) -> F64:
    """Return the coins of chains, each of `length` nodes, as `coins` does of any trees.

    Args:
        key: `[R, 2]` keys of the rounds.
        anchor_position: `[R]` 0-based.

    Returns:
        `[R * length]`.
    """
    blocks = -(-length // 4)
    words = np.empty((len(key), blocks, 4), dtype=np.float64)
    for begin in range(0, len(key), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        anchors = anchor_position[part].astype(np.uint64)
        shape = (blocks, len(anchors))
        lanes = philox_lanes(
            np.broadcast_to(anchors, shape).copy(),
            np.full(shape, int(purpose), dtype=np.uint64),
            np.zeros(shape, dtype=np.uint64),
            np.broadcast_to(np.arange(blocks, dtype=np.uint64)[:, None], shape).copy(),
            _column(key[part], 0),
            _column(key[part], 1),
        )
        for column, lane in enumerate(lanes):
            words[part, :, column] = lane.T
    words += 0.5
    words *= _UNIT
    return np.ascontiguousarray(words.reshape(len(key), -1)[:, :length]).reshape(-1)


def _column(key: U32, index: int) -> U64:
    return key[:, index].astype(np.uint64)
