"""What a user could run instead of the attention kernels, on the same inputs and in the same process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dflash.bench.kernel_inputs import Inputs
from dflash.bench.kernel_shapes import Shape

Calls = list[Callable[[], Tensor]]


class Peer(NamedTuple):
    """A way to compute a shape; `build` prepares everything that need not be timed."""

    name: str
    takes_tree_mask: bool
    build: Callable[[Shape, list[Inputs]], Calls]


def seen_mask(shape: Shape, inputs: Inputs) -> Tensor:
    """Bool `[nodes, context + tail]`, the same for every lane."""
    trunk = torch.ones((shape.nodes, shape.context), dtype=torch.bool, device="cuda")
    if inputs.words is None:
        return torch.ones((shape.nodes, shape.context + shape.tail), dtype=torch.bool, device="cuda")
    bits = (inputs.words[0][:, None] >> torch.arange(shape.tail, device="cuda")) & 1
    return torch.cat([trunk, bits.bool()], 1)


def _packed(shape: Shape, q: Tensor) -> Tensor:
    """Queries as rows of their KV head: `[lanes, KV heads, nodes x group, head]`."""
    split = q.view(shape.batch, shape.nodes, shape.kv_heads, -1, shape.head)
    return split.transpose(1, 2).reshape(shape.batch, shape.kv_heads, -1, shape.head)


def _unpacked(shape: Shape, out: Tensor) -> Tensor:
    split = out.view(shape.batch, shape.kv_heads, shape.nodes, -1, shape.head)
    return split.transpose(1, 2).reshape(shape.batch, shape.nodes, shape.heads, shape.head)


def _sdpa(backend: SDPBackend) -> Callable[[Shape, list[Inputs]], Calls]:
    def build(shape: Shape, sets: list[Inputs]) -> Calls:
        bias = None
        if sets[0].words is not None:
            mask = seen_mask(shape, sets[0]).repeat_interleave(shape.heads // shape.kv_heads, 0)
            rows, columns = mask.shape
            room = torch.zeros((rows, -(-columns // 16) * 16), dtype=torch.bfloat16, device="cuda")
            bias = (
                room[:, :columns]
                .masked_fill_(~mask, -torch.inf)[None, None]
                .expand(shape.batch, shape.kv_heads, -1, -1)
            )

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

        packed = [(_packed(shape, s.q), s.k, s.v) for s in sets]
        return [lambda p=p: Later(call(*p), lambda out: _unpacked(shape, out)) for p in packed]

    return build


class Later(NamedTuple):
    """An output in the peer's own layout, and how to bring it into ours outside of the timing."""

    raw: Tensor
    bring: Callable[[Tensor], Tensor]


def output_of(result: Tensor | Later) -> Tensor:
    """The output `[lanes, nodes, heads, head]` of a peer's call."""
    return result.bring(result.raw) if isinstance(result, Later) else result


def _branches_as_sequences(shape: Shape, sets: list[Inputs]) -> Calls:
    """A draft step without prefix sharing: every branch is a sequence with its own copy of the context."""
    if shape.kernel != "step":
        raise ValueError("only draft steps have branches")
    own = shape.context + shape.tail // shape.nodes
    prepared = []
    for s in sets[: max(2, len(sets) // shape.nodes)]:
        caches = []
        for cache in (s.k, s.v):
            tail = cache[:, :, shape.context :].unflatten(2, (shape.nodes, -1)).transpose(1, 2)
            trunk = cache[:, None, :, : shape.context].expand(-1, shape.nodes, -1, -1, -1)
            caches.append(torch.cat([trunk, tail], 3).reshape(-1, shape.kv_heads, own, shape.head))
        prepared.append((s.q.reshape(-1, shape.heads, 1, shape.head), *caches))

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return [lambda p=p: Later(call(*p), lambda out: out.view_as(sets[0].q)) for p in prepared]


def _xformers(shape: Shape, sets: list[Inputs]) -> Calls:
    from xformers.ops.fmha import common, triton_splitk
    from xformers.ops.fmha.attn_bias import BlockDiagonalPaddedKeysMask
    from xformers.ops.tree_attention import tree_attention

    # the wheel's CUDA extension does not load beside newer torch; its Triton kernel needs none of it
    common._built_with_cuda = True
    group = shape.heads // shape.kv_heads
    prefix = BlockDiagonalPaddedKeysMask.from_seqlens(
        [shape.nodes] * shape.batch, shape.context, [shape.context] * shape.batch
    ).to(torch.device("cuda"))
    tree = seen_mask(shape, sets[0])[:, shape.context :]
    room = torch.zeros((shape.nodes, -(-shape.tail // 16) * 16), dtype=torch.bfloat16, device="cuda")
    bias = room[:, : shape.tail].masked_fill_(~tree, -torch.inf)

    def split(cache: Tensor) -> tuple[Tensor, Tensor]:
        rows = cache.transpose(1, 2)
        parts = rows[:, shape.context :].contiguous(), rows[:, : shape.context].contiguous()
        return tuple(p[:, :, :, None].expand(-1, -1, -1, group, -1) for p in parts)

    prepared = []
    for s in sets:
        (spec_k, cache_k), (spec_v, cache_v) = split(s.k), split(s.v)
        q = s.q.view(shape.batch, shape.nodes, shape.kv_heads, group, shape.head)
        prepared.append((q, spec_k, spec_v, cache_k, cache_v))

    def call(*tensors: Tensor) -> Tensor:
        return tree_attention(
            *tensors, bias, prefix, prefix_op=triton_splitk.FwOp, suffix_op=triton_splitk.FwOp
        )

    return [lambda p=p: Later(call(*p), lambda out: out.reshape(sets[0].q.shape)) for p in prepared]


def _flashinfer(shape: Shape, sets: list[Inputs]) -> Calls:
    """One page a lane, so that the very same buffers are read; planning is not timed."""
    import flashinfer

    space = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "HND", backend="fa2")
    count = torch.arange(shape.batch + 1, dtype=torch.int32, device="cuda")
    rows = shape.context + shape.tail
    mask = None
    if sets[0].words is not None:
        mask = seen_mask(shape, sets[0]).expand(shape.batch, -1, -1).reshape(-1)
    wrapper.plan(
        count * shape.nodes, count, count[:-1].clone(), torch.full_like(count[:-1], rows),
        shape.heads, shape.kv_heads, shape.head, rows,
        custom_mask=mask, causal=False, q_data_type=torch.bfloat16,
    )  # fmt: skip
    prepared = [(s.q.view(-1, shape.heads, shape.head), (s.k, s.v)) for s in sets]
    return [lambda p=p: Later(wrapper.run(*p), lambda out: out.view_as(sets[0].q)) for p in prepared]


ATTENTION_PEERS = [
    Peer("sdpa efficient", True, _sdpa(SDPBackend.EFFICIENT_ATTENTION)),
    Peer("sdpa cudnn", True, _sdpa(SDPBackend.CUDNN_ATTENTION)),
    Peer("sdpa math", True, _sdpa(SDPBackend.MATH)),
    Peer("sdpa flash", False, _sdpa(SDPBackend.FLASH_ATTENTION)),
    Peer("branches as sequences", False, _branches_as_sequences),
    Peer("xformers tree_attention", True, _xformers),
    Peer("flashinfer fa2 custom mask", True, _flashinfer),
]
