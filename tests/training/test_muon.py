"""Our Muon against torch's, which takes one matrix after the other, and against the singular values it is to give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitrail.training.optimizer import Muon, orthogonalise

SHAPES = [(32, 32), (96, 32), (32, 128), (128, 32), (32, 96), (96, 32)]


def matrices() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw) for shape in SHAPES]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_singular_vectors_stay_and_singular_values_come_near_one(kind):
    for matrix, found in zip(matrices(), orthogonalise(matrices(), kind), strict=True):
        assert found.dtype == kind
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        inside = left.mT @ found.float() @ right.mT  # diagonal, if the vectors are the same
        values = inside.diagonal()
        assert 0.6 < values.min()
        assert values.max() < 1.3
        assert (inside - values.diag()).abs().max() < 0.03


def test_ten_steps_equal_those_of_torch():
    ours, theirs = ([nn.Parameter(matrix) for matrix in matrices()] for _ in range(2))
    groups = {"lr": 0.02, "weight_decay": 0.1}
    mine = Muon([{"params": ours[:4], **groups}, {"params": ours[4:], **groups, "lr": 0.01}])
    peer = torch.optim.Muon(
        [{"params": theirs[:4], **groups}, {"params": theirs[4:], **groups, "lr": 0.01}],
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    draw = torch.Generator().manual_seed(1)
    for _ in range(10):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        mine.step()
        peer.step()
    for one, other, start in zip(ours, theirs, matrices(), strict=True):
        moved = (other - start).norm()
        assert (one - other).norm() < 0.01 * moved  # bf16 rounds stacked products otherwise
        buffers = (mine.state[one]["momentum_buffer"], peer.state[other]["momentum_buffer"])
        torch.testing.assert_close(*buffers)


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (64, 2, 1, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_kernel_moves_as_the_matrix_of_its_outputs(shape, layout):
    draw = torch.Generator().manual_seed(0)
    start, gradient = (torch.randn(shape, generator=draw) for _ in range(2))
    kernel = nn.Parameter(start.clone(memory_format=layout))
    matrix = nn.Parameter(start.flatten(1).clone())
    kernel.grad, matrix.grad = gradient.clone(memory_format=layout), gradient.flatten(1).clone()
    Muon([kernel], lr=0.1, kind=torch.float32).step()
    Muon([matrix], lr=0.1, kind=torch.float32).step()
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach(), rtol=1e-6, atol=1e-6)
    assert not torch.equal(kernel.detach(), start)


def test_a_matrix_without_a_gradient_stays():
    first, second = (nn.Parameter(matrix) for matrix in matrices()[:2])
    first.grad = torch.ones_like(first)
    Muon([first, second], lr=0.1).step()
    assert torch.equal(second, matrices()[1])
    assert not torch.equal(first, matrices()[0])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_length_of_the_gradient_does_not_count(scale):
    wanted = orthogonalise(matrices())
    for found, one in zip(orthogonalise([scale * matrix for matrix in matrices()]), wanted, strict=True):
        assert (found.float() - one.float()).abs().max() < 0.02


def test_a_gradient_of_zeros_moves_nothing():
    assert not orthogonalise([torch.zeros(4, 8)])[0].any()
