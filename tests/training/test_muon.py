"""Muon turns a step into a nearly orthogonal one, tall and wide alike, and treats every matrix on its own."""

from __future__ import annotations

import pytest
import torch

from dflash.training.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (5, 64)])
def test_all_singular_values_come_near_one_and_directions_stay(shape):
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape)
    values = torch.linalg.svdvals(orthogonal(matrices, 10))
    assert values.min() > 0.6
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    # the polar factor keeps the singular vectors
    kept = (left.mT @ orthogonal(matrices, 10) @ right.mT).diagonal(dim1=-2, dim2=-1)
    assert kept.min() > 0.6


def test_a_matrix_steps_as_if_it_were_alone():
    torch.manual_seed(2)
    starts = [torch.randn(6, 9), torch.randn(9, 6), torch.randn(6, 9)]
    gradients = [torch.randn_like(start) for start in starts]

    def stepped(numbers):
        weights = [torch.nn.Parameter(starts[number].clone()) for number in numbers]
        optimiser = Muon(weights, lr=0.1)
        for _ in range(3):
            for weight, number in zip(weights, numbers, strict=True):
                weight.grad = gradients[number].clone()
            optimiser.step()
        return [weight.detach() for weight in weights]

    together = stepped([0, 1, 2])
    for number in range(3):
        torch.testing.assert_close(stepped([number])[0], together[number])


def test_it_goes_down_a_badly_conditioned_valley():
    torch.manual_seed(3)
    scale = torch.logspace(0, -2, 12)
    goal = torch.randn(12, 12)
    weight = torch.nn.Parameter(torch.zeros(12, 12))
    optimiser = Muon([weight], lr=torch.tensor(0.1))
    for step in range(400):
        optimiser.param_groups[0]["lr"].fill_(0.1 * (1 - step / 400))
        loss = ((weight - goal) * scale).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    # the flattest direction has a ten-thousandth of the steepest one's curvature
    assert ((weight - goal).norm() / goal.norm()) < 0.1


def test_only_matrices_are_taken():
    with pytest.raises(ValueError, match="matrices"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
