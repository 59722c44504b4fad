"""Attention by offset and its content-free kernel, against sums over pairs and attention among equal patches."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail.analysis.equivariance import measure_permutation_response
from vitrail.analysis.offsets import compute_wavelengths, measure_offsets, pair_offsets
from vitrail.models import ViT, ViTConfig

HEIGHT, WIDTH = 4, 6
SIZES = {"image_size": (32, 48), "patch_size": (8, 8), "width": 32, "heads": 2, "mlp_width": 48, "classes": 3}
ROPES = ("dinov3", "eva02", "pe", "axial", "mixed")


def rotary(rope: str, **changes: object) -> ViT:
    model = ViT(ViTConfig(**{**SIZES, "depth": 2, "rope": rope, "positions": "none", **changes})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(10, 3, 32, 48, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rope", ROPES)
def test_attention_by_offset_is_the_mean_over_pairs_of_patches(rope, images):
    model = rotary(rope, registers=2, pool="gap")
    found = measure_offsets(model, images)
    _, matrices = model.forward_with_attention(images)
    for figures, weights in zip(found, matrices, strict=True):
        among = weights[:, :, 3:, 3:].mean(0).unflatten(2, (HEIGHT, WIDTH)).unflatten(1, (HEIGHT, WIDTH))
        for down, right in ((0, 0), (1, 0), (0, -2), (-3, 5), (2, -4)):
            pairs = [
                among[:, y, x, y + down, x + right]
                for y in range(HEIGHT)
                for x in range(WIDTH)
                if 0 <= y + down < HEIGHT and 0 <= x + right < WIDTH
            ]
            mean = figures.attention[:, HEIGHT - 1 + down, WIDTH - 1 + right]
            assert torch.allclose(mean, torch.stack(pairs).mean(0), atol=1e-6)


@pytest.mark.parametrize("rope", ROPES)
def test_the_kernel_is_the_attention_among_equal_patches(rope):
    model = rotary(rope, depth=1)
    image = torch.full((1, 3, 32, 48), 0.7)
    (figures,) = measure_offsets(model, image)
    _, (weights,) = model.forward_with_attention(image)
    logits = weights[0, :, 1:, 1:].log()  # (H, N, N), up to a constant of each query
    differences = (logits - logits.diagonal(dim1=1, dim2=2)[..., None]).reshape(-1, HEIGHT, WIDTH, HEIGHT, WIDTH)
    for head, kernel in enumerate(figures.kernel):
        expected = pair_offsets(kernel) - kernel[HEIGHT - 1, WIDTH - 1]
        assert torch.allclose(differences[head], expected, atol=1e-4)
    assert figures.kernel.std() > 0.05


def test_values_of_offsets_are_laid_out_by_pairs():
    values = torch.arange(7 * 11).reshape(7, 11)
    pairs = pair_offsets(values)
    assert pairs.shape == (HEIGHT, WIDTH, HEIGHT, WIDTH)
    assert all(pairs[y, x, y, x] == values[3, 5] for y in range(HEIGHT) for x in range(WIDTH))
    assert pairs[0, 0, 3, 5] == values[6, 10]
    assert pairs[3, 1, 1, 4] == values[1, 8]


def test_wavelengths_are_those_of_the_rules():
    found = compute_wavelengths(rotary("axial"), (32, 48))  # 4 frequencies for each axis
    expected = sorted(2 * math.pi * 100 ** (k / 4) for k in range(4) for _ in range(2))
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    # from one edge to the other a coordinate of DINOv3 moves by 4 pi
    found = compute_wavelengths(rotary("dinov3"), (32, 48))
    expected = sorted(side / 2 * 100 ** (k / 4) for k in range(4) for side in (HEIGHT, WIDTH))
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    model = rotary("mixed")
    lengths = model.rope.freqs.norm(dim=0).flatten()
    assert compute_wavelengths(model, (32, 48)).tolist() == pytest.approx(
        (2 * math.pi / lengths).sort().values.tolist(), rel=1e-3
    )


@pytest.mark.parametrize("rope", ROPES)
def test_without_rotation_a_permutation_of_patches_changes_nothing(rope, images):
    model = rotary(rope, pool="gap", prefix=())
    config = model.config
    response = measure_permutation_response(model, images)
    assert response.unplaced.moved > 1e-5
    assert response.unrotated.moved < 1e-6
    assert model.config is config


def test_a_single_row_of_patches_has_no_offsets_down(images):
    model = rotary("dinov3", image_size=(8, 48))
    found = measure_offsets(model, images[..., :8, :])
    assert found[0].attention.shape == (2, 1, 11)
    assert all(torch.isfinite(part).all() for figures in found for part in (figures.attention, figures.kernel))
    assert torch.isfinite(compute_wavelengths(model, (8, 48))).all()
