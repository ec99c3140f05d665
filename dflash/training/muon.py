"""Muon: momentum whose matrix is made orthogonal before it is applied; matrices of one shape go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """For matrices only (Jordan et al. 2024); a step of learning rate 1 has unit spectral norm, times the
    square root of rows over columns where there are more rows.

    The learning rate may be a tensor on the device, so that a captured step can be replayed under a schedule.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float | Tensor = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.steps = steps
        for matrix in self._matrices():
            if matrix.dim() != 2:
                raise ValueError(f"Muon turns matrices, found a tensor of shape {tuple(matrix.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    rows, columns = matrix.shape
                    shapes.setdefault((min(rows, columns), max(rows, columns)), []).append(matrix)
            for matrices in shapes.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        momentum = group["momentum"]
        wide = []
        for matrix in matrices:
            state = self.state[matrix]
            if not state:
                state["momentum"] = torch.zeros_like(matrix)
            state["momentum"].lerp_(matrix.grad, 1 - momentum)
            ahead = matrix.grad.lerp(state["momentum"], momentum)
            wide.append(ahead if matrix.shape[0] <= matrix.shape[1] else ahead.T)
        turned = orthogonal(torch.stack(wide), self.steps)
        for matrix, update in zip(matrices, turned, strict=True):
            rows, columns = matrix.shape
            update = update if rows <= columns else update.T
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.sub_(update.to(matrix.dtype) * (group["lr"] * max(1.0, rows / columns) ** 0.5))

    def _matrices(self) -> list[Tensor]:
        return [matrix for group in self.param_groups for matrix in group["params"]]


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """About the nearest matrices `[n, rows, columns]` with orthonormal rows, rows <= columns: singular values
    between 0.7 and 1.2, by a quintic Newton-Schulz iteration (in bfloat16 on CUDA).
    """
    first, second, third = _QUINTIC
    turned = matrices.bfloat16() if matrices.is_cuda else matrices
    turned = turned / (turned.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = turned @ turned.mT
        turned = first * turned + (second * square + third * square @ square) @ turned
    return turned
