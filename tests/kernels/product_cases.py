"""Random rows and weights for the small products, and float64 oracles that share no code with the kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Rows, a weight, and what may belong to them."""

    x: Tensor
    weight: Tensor
    norm: Tensor
    bias: Tensor
    residual: Tensor

    def to(self, device: str) -> Rows:
        """The same on a device, rows as far apart as before."""
        return Rows(
            *(apart(t.to(device)) if t.dim() == 2 and t is not self.weight else t.to(device) for t in self)
        )


def apart(rows: Tensor) -> Tensor:
    """The same rows with NaN between them, as columns of a wider tensor."""
    step = 16 // rows.element_size()
    wide = -(-rows.shape[1] // step) * step + step
    held = torch.full((len(rows), wide), torch.nan, dtype=rows.dtype, device=rows.device)
    held[:, : rows.shape[1]] = rows
    return held[:, : rows.shape[1]]


def draw(rows: int, columns: int, depth: int, dtype: torch.dtype, seed: int = 0) -> Rows:
    """Random rows, NaN between them; the weight keeps products near 1."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g).to(dtype)

    return Rows(
        apart(normal(rows, depth)), normal(columns, depth) / depth**0.5, normal(depth).abs() + 0.1,
        normal(columns), apart(normal(rows, columns)),
    )  # fmt: skip


def poisoned(rows: int, columns: int, like: Tensor) -> Tensor:
    """Where a result may go: not a number before it is written."""
    return apart(torch.full((rows, columns), torch.nan, dtype=like.dtype, device=like.device))


def norm_oracle(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Each row by itself over its root mean square."""
    return torch.stack([row / ((row @ row) / len(row) + eps) ** 0.5 * gain for row in x])


def product_oracle(case: Rows, eps: float, *, norm: bool, bias: bool, residual: bool) -> Tensor:
    """Float64, term by term."""
    x, weight, gain, offset, rest = (t.double().cpu() for t in case)
    rows = norm_oracle(x, gain, eps) if norm else x
    result = torch.stack([weight @ row for row in rows])
    return result + (offset if bias else 0) + (rest if residual else 0)


def gate_up_oracle(case: Rows, eps: float) -> Tensor:
    """Gate and up projection by themselves; x * sigmoid(x) is written out."""
    x, weight, gain = (t.double().cpu() for t in case[:3])
    rows = norm_oracle(x, gain, eps)
    half = len(weight) // 2
    gate, up = rows @ weight[:half].T, rows @ weight[half:].T
    return gate / (1 + torch.exp(-gate)) * up


class Heads(NamedTuple):
    """One call of `qkv_rope`, poisoned caches among it."""

    rows: Rows
    cos: Tensor
    sin: Tensor
    positions: Tensor
    places: Tensor
    k: Tensor
    v: Tensor
    q_gain: Tensor
    k_gain: Tensor
    heads: int

    def to(self, device: str) -> Heads:
        """The same on a device."""
        return Heads(self.rows.to(device), *(t.to(device) for t in self[1:-1]), self.heads)


def draw_heads(
    rows: int, heads: int, kv_heads: int, head: int, depth: int, dtype: torch.dtype, *, pads: int = 0,
    lanes: int = 3, seed: int = 0,
) -> Heads:  # fmt: skip
    """Rows of several lanes at scattered places; the last `pads` rows have none."""
    g = torch.Generator().manual_seed(seed + 1)
    case = draw(rows, (heads + 2 * kv_heads) * head, depth, dtype, seed)
    capacity = rows + 3
    angles = torch.rand(400, head // 2, generator=g) * 7
    positions = torch.randint(0, 400, (rows,), generator=g).int()
    places = torch.stack(
        [torch.randint(0, lanes, (rows,), generator=g), torch.randperm(capacity, generator=g)[:rows]], 1
    ).int()
    if pads:
        places[-pads:] = torch.tensor([-1, 10**6])
    cache = torch.full((2, lanes, kv_heads, capacity, head), torch.nan, dtype=dtype)
    gains = torch.rand(2, head, generator=g).to(dtype) + 0.5
    return Heads(case, angles.cos(), angles.sin(), positions, places, *cache, *gains, heads)


def heads_oracle(
    case: Heads, eps: float, head_eps: float, *, norm: bool, bias: bool, head_norms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries `[rows, heads, head]` and caches, one head of one row after the other, in float64."""
    flat = product_oracle(case.rows, eps, norm=norm, bias=bias, residual=False)
    k, v = case.k.double().cpu(), case.v.double().cpu()
    head, kv_heads, half = k.shape[3], k.shape[1], k.shape[3] // 2
    q = torch.zeros(len(flat), case.heads, head, dtype=torch.float64)
    for row, values in enumerate(flat.view(len(flat), -1, head)):
        lane, place = case.places[row].tolist()
        at = int(case.positions[row])
        turn = torch.complex(case.cos[at].double().cpu(), case.sin[at].double().cpu())
        for index, value in enumerate(values):
            if index >= case.heads + kv_heads:
                if lane >= 0:
                    v[lane, index - case.heads - kv_heads, place] = value
                continue
            if head_norms:
                gain = (case.q_gain if index < case.heads else case.k_gain).double().cpu()
                value = norm_oracle(value[None], gain, head_eps)[0]
            turned = torch.complex(value[:half], value[half:]) * turn
            value = torch.cat([turned.real, turned.imag])
            if index < case.heads:
                q[row, index] = value
            elif lane >= 0:
                k[lane, index - case.heads, place] = value
    return q, k, v
