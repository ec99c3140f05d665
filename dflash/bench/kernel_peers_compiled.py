"""Peers that torch.compile builds: FlexAttention with tuned options, and a compiled masked softmax."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dflash.bench.kernel_inputs import Inputs
from dflash.bench.kernel_peers import Calls, Later, Peer, seen_mask
from dflash.bench.kernel_shapes import Shape


def _block_mask(shape: Shape, inputs: Inputs) -> BlockMask:
    """The tree's mask; a full one for `block`, without which FlexAttention does not split the context."""
    full = torch.full((shape.nodes,), -1, device="cuda")
    words, context = full if inputs.words is None else inputs.words[0].clone(), shape.context

    def seen(lane: Tensor, head: Tensor, query: Tensor, row: Tensor) -> Tensor:
        bit = (row - context).clamp_min(0)
        return (row < context) | (((words[query] >> bit) & 1) == 1)

    return create_block_mask(seen, None, None, shape.nodes, shape.context + shape.tail, device="cuda")


def _flex(options: dict[str, int]) -> Peer:
    def build(shape: Shape, sets: list[Inputs]) -> Calls:
        torch._dynamo.reset()
        mask = _block_mask(shape, sets[0])
        given = dict(options)
        if shape.nodes * shape.heads // shape.kv_heads > 128:
            given["BLOCK_M"] = 128
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return compiled(q, k, v, block_mask=mask, enable_gqa=True, kernel_options=given)

        prepared = [(s.q.transpose(1, 2).contiguous(), s.k, s.v) for s in sets]
        return [lambda p=p: Later(call(*p), lambda out: out.transpose(1, 2)) for p in prepared]

    return Peer("flex_attention tuned", True, build)


def _compiled_softmax(shape: Shape, sets: list[Inputs]) -> Calls:
    torch._dynamo.reset()
    mask = seen_mask(shape, sets[0])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        split = q.unflatten(2, (shape.kv_heads, -1))
        scores = torch.einsum("bnhgd,bhrd->bhgnr", split, k).float() * shape.head**-0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype)
        return torch.einsum("bhgnr,bhrd->bnhgd", weights, v).flatten(2, 3)

    compiled = torch.compile(attend, dynamic=False, fullgraph=True)
    return [lambda s=s: compiled(s.q, s.k, s.v) for s in sets]


COMPILED_PEERS = [
    _flex({"num_stages": 3, "num_warps": 4}),
    Peer("torch.compile", True, _compiled_softmax),
]
