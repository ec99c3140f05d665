"""Random drafted trees, and a walk in plain Python that says what is accepted."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tests.kernels.tree_cases import ancestors_of, random_parents, word_of

VOCABULARY = 3
MASK = 0xFFFFFFFF


class Drafted(NamedTuple):
    """A batch of drafted trees with everything that any rule reads."""

    tokens: Tensor
    parents: Tensor
    words: Tensor
    choices: Tensor
    logp: Tensor
    logq: Tensor
    residual: Tensor
    keys: Tensor
    positions: Tensor
    paths: Tensor

    def to(self, device: str) -> Drafted:
        return Drafted(*(t.to(device) for t in self))


def signed(word: int) -> int:
    """The int32 with the bits of a word."""
    return word - (1 << 32) if word >= 1 << 31 else word


def draw(lanes: int, nodes: int, seed: int, pads: int = 0, parents: list[int] | None = None) -> Drafted:
    """Draw trees over a tiny vocabulary, so that matches, duplicates and ties abound."""
    g = torch.Generator().manual_seed(seed)
    trees = [parents or random_parents(nodes, g, pads) for _ in range(lanes)]
    tokens = torch.randint(0, VOCABULARY, (lanes, nodes), generator=g, dtype=torch.int32)
    for lane, tree in enumerate(trees):
        tokens[lane, [j for j in range(nodes) if tree[j] == -2]] = -1
    logp = -torch.rand((lanes, nodes), generator=g)
    logp[torch.rand((lanes, nodes), generator=g) < 0.05] = -torch.inf
    words = torch.tensor([[0] + [word_of(j, tree) for j in range(nodes)] for tree in trees])
    full = (-(2**31), 2**31 - 1)
    return Drafted(
        tokens, torch.tensor(trees, dtype=torch.int32), words,
        torch.randint(0, VOCABULARY, (lanes, nodes + 1), generator=g, dtype=torch.int32),
        logp, -2 * torch.rand((lanes, nodes), generator=g),
        torch.randint(100, 200, (lanes, nodes), generator=g, dtype=torch.int32),
        torch.randint(*full, (lanes, 2), generator=g, dtype=torch.int32),
        torch.randint(0, 10**6, (lanes,), generator=g, dtype=torch.int32),
        torch.randint(*full, (lanes, nodes), generator=g, dtype=torch.int32),
    )  # fmt: skip


def philox_scalar(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The ten rounds on Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def coin(case: Drafted, lane: int, node: int, depth: int) -> float:
    key = tuple(int(k) & MASK for k in case.keys[lane])
    path = int(case.paths[lane, node]) & MASK
    words = philox_scalar((int(case.positions[lane]) & MASK, 2, path, (depth - 1) // 4), key)
    return (words[(depth - 1) % 4] + 0.5) * 2.0**-32


def children_of(node: int, parents: list[int], tokens: list[int]) -> list[int]:
    return [j for j, p in enumerate(parents) if p == node and tokens[j] >= 0]


def longest_match(case: Drafted, lane: int, ties: bool) -> tuple[list[int], int, int]:
    """Walk every matching path: the longest, then the likeliest, then the lowest node."""
    parents, tokens = case.parents[lane].tolist(), case.tokens[lane].tolist()
    choices = case.choices[lane].tolist()
    best: tuple[tuple[float, ...], list[int]] = ((0.0, 0.0, 0.0), [])

    def visit(node: int, path: list[int], total: float) -> None:
        nonlocal best
        rank = (len(path), total if ties else 0.0, -node)
        if path and (not best[1] or rank > best[0]):
            best = (rank, path)
        for child in children_of(node, parents, tokens):
            if tokens[child] == choices[node + 1]:
                visit(child, [*path, child], total + float(case.logp[lane, child]))

    visit(-1, [], 0.0)
    last = best[1][-1] if best[1] else -1
    return best[1], choices[last + 1], last + 1


def sibling_walk(case: Drafted, lane: int) -> tuple[list[int], int, int]:
    """Try the children of each slot in order; the first that passes its coin is taken."""
    parents, tokens = case.parents[lane].tolist(), case.tokens[lane].tolist()
    node, path = -1, []
    while True:
        tried = children_of(node, parents, tokens)
        for child in tried:
            depth = len(ancestors_of(child, parents))
            p, q = float(case.logp[lane, child]), float(case.logq[lane, child])
            if math.log(coin(case, lane, child, depth)) <= p - q:
                path.append(child)
                node = child
                break
        else:
            last = int(case.residual[lane, tried[-1]]) if tried else int(case.choices[lane, node + 1])
            return path, last, node + 1
