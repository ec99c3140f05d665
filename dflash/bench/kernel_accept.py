"""Acceptance: our kernel, a one-thread walk as serving engines have it, and the PyTorch composition."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash.bench.kernel_shapes import Shape
from dflash.kernels.accept_tree import Accepted, Sampled, accept_tree
from dflash.kernels.ancestors import ancestor_words

Trees = tuple[Tensor, Tensor, Tensor, Tensor]


@triton.jit
def _walk_in_one_thread(Tokens, Parents, Choices, Count, Path, Bonus, nodes):
    lane = tl.program_id(0)
    here = -1
    count = 0
    node = 0
    choice = tl.load(Choices + lane * (nodes + 1))
    while node < nodes:
        hit = (tl.load(Parents + lane * nodes + node) == here) & (
            tl.load(Tokens + lane * nodes + node) == choice
        )
        if hit:
            here = node
            tl.store(Path + lane * nodes + count, node)
            count += 1
            choice = tl.load(Choices + lane * (nodes + 1) + node + 1)
        node += 1
    tl.store(Count + lane, count)
    tl.store(Bonus + lane, choice)


def make_trees(shape: Shape, seed: int) -> Trees:
    """Trees of the shape's depth, a first branch accepted to a random depth; each slot's children differ."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randint(-1, shape.context - 2, (shape.nodes,), generator=generator).tolist()
    parents = [i - 1 if i < shape.context else spread[i] for i in range(shape.nodes)]
    tree = torch.tensor([parents] * shape.batch, dtype=torch.int32)
    tokens = torch.arange(shape.nodes, dtype=torch.int32).expand(shape.batch, -1).contiguous()
    choices = torch.full((shape.batch, shape.nodes + 1), 10**6, dtype=torch.int32)
    for lane in range(shape.batch):
        depth = int(torch.randint(1, shape.context + 1, (), generator=generator))
        choices[lane, :depth] = torch.arange(depth)
    return tokens.cuda(), tree.cuda(), ancestor_words(tree).cuda(), choices.cuda()


def make_sampled(shape: Shape) -> Sampled:
    """Random probabilities and coins."""
    size = (shape.batch, shape.nodes)
    logp, logq = (-torch.rand(size, device="cuda") for _ in range(2))
    ids = torch.zeros(size, dtype=torch.int32, device="cuda")
    return Sampled(logp, logq, ids, ids[:, :2].contiguous(), ids[:, 0].contiguous())


def walk_calls(trees: list[Trees]) -> list[Callable[[], Accepted]]:
    """The one-thread walk."""

    def call(tokens: Tensor, parents: Tensor, words: Tensor, choices: Tensor) -> Accepted:
        lanes, nodes = tokens.shape
        count, bonus = torch.empty((2, lanes), dtype=torch.int32, device="cuda")
        path = torch.empty_like(tokens)
        _walk_in_one_thread[(lanes,)](tokens, parents, choices, count, path, bonus, nodes, num_warps=1)
        return Accepted(count, path, bonus, count)

    return [lambda t=t: call(*t) for t in trees]


def our_calls(trees: list[Trees], sampled: Sampled | None, impl: str) -> list[Callable[[], Accepted]]:
    """`accept_tree`, greedy or speculative."""
    rule = "speculative" if sampled else "greedy"
    return [lambda t=t: accept_tree(*t, rule=rule, sampled=sampled, impl=impl) for t in trees]


def compiled_calls(trees: list[Trees]) -> list[Callable[[], Accepted]]:
    """The PyTorch composition under torch.compile."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: accept_tree(*t, rule="greedy", impl="reference"), dynamic=False)
    return [lambda t=t: compiled(t) for t in trees]
