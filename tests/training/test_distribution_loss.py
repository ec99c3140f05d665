"""The chunked divergence is the plain one, gradients included, whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.training.distribution_loss import Head, divergence, even_slices

ROWS, WIDTH, RANK, VOCABULARY = 11, 6, 3, 17


class Fixed:
    """A teacher whose logits are given."""

    def __init__(self, values):
        self.values = values

    def logits(self, rows):
        return self.values[rows]


def tensors(seed, markov):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden = normal(ROWS, WIDTH).requires_grad_()
    mixed = normal(ROWS, RANK).requires_grad_() if markov else None
    low = normal(VOCABULARY, RANK).requires_grad_() if markov else None
    weights = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    weights[3] = 0.0
    return hidden, mixed, low, normal(VOCABULARY, WIDTH), normal(ROWS, VOCABULARY), weights


@pytest.mark.parametrize("markov", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_loss_and_gradients_are_those_of_the_formula(markov, chunk):
    hidden, mixed, low, head, taught, weights = tensors(5, markov)
    seen = divergence(hidden, mixed, Head(head, None, low), Fixed(taught), weights, chunk)
    wanted = [value for value in (hidden, mixed, low) if value is not None]
    found = torch.autograd.grad(3.0 * seen.loss, wanted)

    drafted = hidden @ head.T + (mixed @ low.T if markov else 0.0)
    p, q = taught.softmax(-1), drafted.softmax(-1)
    plain = ((p * (p.log() - q.log())).sum(-1) * weights).sum() / weights.sum()
    torch.testing.assert_close(seen.loss.double(), plain, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(found, torch.autograd.grad(3.0 * plain, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    total_variation = 0.5 * (p - q).abs().sum(-1)
    torch.testing.assert_close(seen.overlap.double(), 1 - total_variation, atol=1e-5, rtol=1e-5)
    assert torch.equal(seen.agreed, p.argmax(-1) == q.argmax(-1))


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 500), most=st.integers(1, 90))
def test_slices_cover_every_row_once_in_few_equal_parts(rows, most):
    slices = even_slices(rows, most)
    covered = [row for part in slices for row in range(rows)[part]]
    assert covered == list(range(rows))
    sizes = {len(range(rows)[part]) for part in slices[:-1]}
    assert max(len(range(rows)[part]) for part in slices) <= most
    assert len(sizes) <= 1
