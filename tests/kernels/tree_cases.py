"""Random trees and caches, and slow float64 oracles that share no code with the kernels they judge."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Case(NamedTuple):
    """One attention call: a poisoned cache, its trees, and how to see it."""

    q: Tensor
    k: Tensor
    v: Tensor
    lengths: Tensor
    words: Tensor
    parents: list[list[int]]
    pages: Tensor | None


def random_parents(nodes: int, generator: torch.Generator, pads: int = 0) -> list[int]:
    """A random tree, parents before children, the last `pads` nodes unused."""
    tree = [int(torch.randint(-1, i, (), generator=generator)) if i else -1 for i in range(nodes - pads)]
    return tree + [-2] * pads


def ancestors_of(node: int, parents: list[int]) -> set[int]:
    """The node and all nodes above it."""
    found = set()
    while node >= 0 and parents[node] != -2:
        found.add(node)
        node = parents[node]
    return found


def word_of(node: int, parents: list[int]) -> int:
    """The signed 64-bit word of a node, bit by bit."""
    bits = sum(1 << j for j in ancestors_of(node, parents))
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def make_case(
    parents: list[list[int]],
    lengths: list[int],
    group: int,
    head: int,
    *,
    kv_heads: int = 2,
    dtype: torch.dtype = torch.float32,
    page: int = 0,
    spare: int = 5,
    seed: int = 0,
    device: str = "cpu",
) -> Case:
    """Build a case whose queries are the anchor and all nodes; rows that nobody may read are NaN."""
    g = torch.Generator().manual_seed(seed)
    lanes, nodes = len(parents), len(parents[0])
    capacity = max(lengths) + nodes + spare
    if page:
        capacity = -(-capacity // page) * page
    shape = (lanes, kv_heads, capacity, head)
    k = torch.randn(shape, generator=g).to(dtype)
    v = torch.randn(shape, generator=g).to(dtype)
    for lane, (length, tree) in enumerate(zip(lengths, parents, strict=True)):
        rows = [length + j for j in range(nodes) if tree[j] == -2] + list(range(length + nodes, capacity))
        k[lane, :, rows] = torch.nan
        v[lane, :, rows] = torch.nan
    q = torch.randn((lanes, nodes + 1, kv_heads * group, head), generator=g).to(dtype)
    words = torch.tensor([[0] + [word_of(j, tree) for j in range(nodes)] for tree in parents])
    pages = None
    if page:
        k, v, pages = _to_pages(k, v, page, g)
    moved = [
        None if t is None else t.to(device)
        for t in (q, k, v, torch.tensor(lengths, dtype=torch.int32), words)
    ]
    return Case(*moved, parents, None if pages is None else pages.to(device))


def _to_pages(k: Tensor, v: Tensor, page: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    lanes, heads, capacity, head = k.shape
    each = capacity // page
    order = torch.randperm(lanes * each + 3, generator=g)[: lanes * each]
    pools = []
    for cache in (k, v):
        pool = torch.full((lanes * each + 3, heads, page, head), torch.nan, dtype=k.dtype)
        pool[order] = (
            cache.view(lanes, heads, each, page, head).transpose(1, 2).reshape(-1, heads, page, head)
        )
        pools.append(pool)
    return pools[0], pools[1], order.to(torch.int32).view(lanes, each)


def rows_of(case: Case, cache: Tensor, lane: int, count: int) -> Tensor:
    """The first rows of a lane `[KV heads, count, head]` in float64, one by one through the page table."""
    if case.pages is None:
        return cache[lane, :, :count].double().cpu()
    page, table, pool = cache.shape[2], case.pages[lane].tolist(), cache.double().cpu()
    return (
        torch.stack([pool[table[row // page], :, row % page] for row in range(count)], 1)
        if count
        else pool[0, :, :0]
    )


def dense_oracle(case: Case, scale: float | None = None) -> Tensor:
    """Each slot on its own: gather exactly the rows it may see, softmax in float64."""
    lanes, queries, heads, head = case.q.shape
    group = heads // case.k.shape[1]
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    scale = scale or 1 / math.sqrt(head)
    for lane in range(lanes):
        length = int(case.lengths[lane])
        tree = case.parents[lane]
        keys, values = (rows_of(case, cache, lane, length + len(tree)) for cache in (case.k, case.v))
        query = case.q[lane].double().cpu().view(queries, -1, group, head)
        for slot in range(queries):
            own = sorted(ancestors_of(slot - 1, tree)) if slot else []
            rows = [*range(length), *(length + j for j in own)]
            if rows:
                weights = (torch.einsum("hgd,hrd->hgr", query[slot], keys[:, rows]) * scale).softmax(-1)
                out[lane, slot] = torch.einsum("hgr,hrd->hgd", weights, values[:, rows]).reshape(heads, head)
    return out


def assert_close(name: str, found: Tensor, expected: Tensor, limit: float) -> None:
    """Compare by ‖found - expected‖ / ‖expected‖ and say where the worst element is."""
    found, expected = found.double().cpu(), expected.double().cpu()
    difference = (found - expected).abs()
    worst = torch.unravel_index(difference.nan_to_num(torch.inf).argmax(), difference.shape)
    error = float(difference.norm() / expected.norm().clamp_min(1e-30))
    at = tuple(int(i) for i in worst)
    assert error <= limit, (
        f"{name}: relative error {error:.2e} > {limit:.0e}; worst at {at}: {found[at]} != {expected[at]}"
    )
