"""Random heads, and what the CPU's own code says of their logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash.kernels.lm_head_call import Draw, HeadScores
from dflash.policy.noise import exponentials, target_exponentials


class Head(NamedTuple):
    """Hidden rows, a head, what is asked of it and the draws."""

    hidden: Tensor
    weight: Tensor
    asked: Tensor
    draw: Draw

    def to(self, device: str) -> Head:
        draw = Draw(*(None if t is None else t.to(device) for t in self.draw))
        return Head(self.hidden.to(device), self.weight.to(device), self.asked.to(device), draw)


def make_head(
    rows: int,
    vocabulary: int,
    width: int,
    *,
    dtype: torch.dtype = torch.float32,
    whole: bool = False,
    seed: int = 0,
) -> Head:
    """Draw a head; of `whole` numbers the logits are exact in any order of summation, and many tie."""
    g = torch.Generator().manual_seed(seed)

    def numbers(*size: int) -> Tensor:
        if whole:
            return torch.randint(-2, 3, size, generator=g).to(dtype)
        return torch.randn(size, generator=g).to(dtype)

    temperatures = 0.5 + torch.rand(rows, generator=g)
    temperatures[::3] = 0.0
    draw = Draw(
        temperatures,
        torch.randint(-(2**31), 2**31 - 1, (rows, 2), generator=g, dtype=torch.int32),
        torch.randint(0, 10**6, (rows,), generator=g, dtype=torch.int32),
    )
    asked = torch.randint(-1, vocabulary + 1, (rows, 3), generator=g, dtype=torch.int32)
    return Head(numbers(rows, width), numbers(vocabulary, width) / 4, asked, draw)


def logits_of(case: Head) -> Tensor:
    """Logits in float64 on the CPU."""
    return case.hidden.double().cpu() @ case.weight.double().cpu().T


def key_of(draw: Draw, row: int) -> tuple[int, int]:
    first, second = draw.keys.cpu().numpy().view(np.uint32)[row]
    return int(first), int(second)


def noise_of(draw: Draw, row: int, vocabulary: int) -> Tensor:
    """log E of a row as the CPU's recorder has it."""
    position = int(draw.positions[row])
    if draw.purposes is None:
        found = target_exponentials(key_of(draw, row), position, vocabulary)
    else:
        word = int(draw.purposes[row])
        path = 0 if draw.paths is None else int(draw.paths.cpu().numpy().view(np.uint32)[row])
        found = exponentials(key_of(draw, row), word % 256, position, word // 256, path, vocabulary)
    return torch.from_numpy(np.log(found).astype(np.float32))


def poisoned(rows: int, top: int, asked: int, device: str = "cpu") -> HeadScores:
    """Room for scores that is not a number anywhere."""
    from dflash.kernels.lm_head_call import Choices

    def floats(*size: int) -> Tensor:
        return torch.full((rows, *size), torch.nan, device=device)

    def ids(*size: int) -> Tensor:
        return torch.full((rows, *size), -77, dtype=torch.int32, device=device)

    return HeadScores(
        floats(top), ids(top), floats(), floats(asked), Choices(ids(), floats(), floats(), floats())
    )


def same_bits(a: HeadScores, b: HeadScores) -> bool:
    """Whether two results are equal bit for bit."""
    pairs = zip((*a[:4], *(a.choice or ())), (*b[:4], *(b.choice or ())), strict=True)
    return all(
        mine is theirs is None or torch.equal(mine.view(torch.int32), theirs.view(torch.int32))
        for mine, theirs in pairs
    )


def row_of(scores: HeadScores, row: int) -> HeadScores:
    """One row of a result."""
    one = slice(row, row + 1)
    first = [None if t is None else t[one] for t in scores[:4]]
    choice = scores.choice and type(scores.choice)(*(t[one] for t in scores.choice))
    return HeadScores(*first, choice)


def head_of_row(case: Head, row: int) -> Head:
    """The same head with one of its rows."""
    one = slice(row, row + 1)
    draw = Draw(*(None if t is None else t[one] for t in case.draw))
    return Head(case.hidden[one], case.weight, case.asked[one], draw)
