"""Random inputs of a shape: rotating buffers on the device, trees, and the answer to check against."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.bench.kernel_shapes import Shape
from dflash.kernels.ancestors import ancestor_words
from dflash.kernels.attention_reference import reference_attention

MAX_RELATIVE_ERROR = 1e-2


class Inputs(NamedTuple):
    """One buffer set of an attention shape."""

    q: Tensor
    k: Tensor
    v: Tensor
    lengths: Tensor
    words: Tensor | None


def _words(shape: Shape, generator: torch.Generator) -> Tensor | None:
    """A random tree's words for `tree`, a branch's own rows for `step`, none for `block`."""
    if shape.kernel == "block":
        return None
    if shape.kernel == "step":
        own = torch.tensor([0b1111 << (4 * b) for b in range(shape.nodes)])
        return own.expand(shape.batch, -1).contiguous()
    rows = [
        [int(torch.randint(-1, max(i, 1), (), generator=generator)) if i else -1 for i in range(shape.nodes)]
    ]
    return ancestor_words(torch.tensor(rows))[:, 1:].expand(shape.batch, -1).contiguous()


def make_inputs(shape: Shape, count: int) -> list[Inputs]:
    """Draw `count` buffer sets; they share lengths and words."""
    generator = torch.Generator().manual_seed(0)
    words = _words(shape, generator)
    words = None if words is None else words.cuda()
    lengths = torch.full((shape.batch,), shape.context, dtype=torch.int32, device="cuda")
    cache = (shape.batch, shape.kv_heads, shape.context + shape.tail, shape.head)

    def normal(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    query = (shape.batch, shape.nodes, shape.heads, shape.head)
    return [Inputs(normal(query), normal(cache), normal(cache), lengths, words) for _ in range(count)]


def expected_output(shape: Shape, inputs: Inputs, lanes: list[int]) -> Tensor:
    """The float64 answer for a few lanes, `[lanes, nodes, heads, head]`."""
    rows = []
    for lane in lanes:
        one = slice(lane, lane + 1)
        words = None if inputs.words is None else inputs.words[one]
        rows.append(
            reference_attention(
                inputs.q[one].double(), inputs.k[one].double(), inputs.v[one].double(), inputs.lengths[one],
                words, shape.tail, None, shape.head**-0.5,
            )
        )  # fmt: skip
    return torch.cat(rows)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found - expected‖ / ‖expected‖, infinite where something is not a number."""
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    return error if error == error else float("inf")
