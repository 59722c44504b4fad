"""The corruptions: each grows with its level, none depends on the batch, and each is what its name says."""

from __future__ import annotations

import itertools
from io import BytesIO

import numpy as np
import pytest
import scipy
import torch
from PIL import Image

from vitrail.errors import ConfigError
from vitrail.evaluation import corruptions
from vitrail.evaluation.corruptions import CORRUPTIONS, LEVELS, corrupt


@pytest.fixture(scope="module")
def photographs() -> torch.Tensor:
    """(2, 3, 96, 96): the middles of the two photographs that scikit-learn carries, half their size."""
    from sklearn.datasets import load_sample_images

    middles = [
        Image.fromarray(image).crop((224, 117, 416, 309)).resize((96, 96)) for image in load_sample_images().images
    ]
    return torch.from_numpy(np.stack([np.asarray(each).transpose(2, 0, 1) for each in middles]))


@pytest.fixture(scope="module")
def grey() -> torch.Tensor:
    return torch.full((1, 200, 200), 100, dtype=torch.uint8)


def error(damaged: torch.Tensor, clean: torch.Tensor) -> float:
    return float((damaged.double() - clean).square().mean())


def test_every_level_is_further_from_the_clean_picture_than_the_last(photographs):
    for kind, (place, picture) in itertools.product(CORRUPTIONS, enumerate(photographs)):
        errors = [error(corrupt(picture, kind, level, samples=place), picture) for level in LEVELS]
        assert errors[0] > 5, kind
        assert all(later > 1.15 * earlier for earlier, later in itertools.pairwise(errors)), (kind, errors)


def test_a_picture_is_damaged_alike_alone_and_in_a_batch(photographs):
    for kind in CORRUPTIONS:
        together = corrupt(photographs, kind, 3, samples=[7, 8])
        alone = corrupt(photographs[1], kind, 3, samples=8)
        assert (together.dtype, together.shape) == (torch.uint8, photographs.shape), kind
        assert torch.equal(together[1], alone), kind
        assert torch.equal(corrupt(photographs[1:], kind, 3, samples=np.array([8]))[0], alone), kind


def test_random_kinds_differ_by_image_and_by_seed(photographs):
    for kind in ("gaussian_noise", "shot_noise", "motion_blur"):
        one, other, seeded = (
            corrupt(photographs[0], kind, 3, samples=sample, seed=seed) for sample, seed in ((0, 0), (1, 0), (0, 1))
        )
        assert not torch.equal(one, other), kind
        assert not torch.equal(one, seeded), kind


def test_pictures_of_any_size_and_number_of_channels_are_taken():
    for shape, kind in itertools.product([(1, 8, 8), (3, 1, 1), (5, 9, 30), (4, 40, 7)], CORRUPTIONS):
        picture = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
        for level in (1, 5):
            damaged = corrupt(picture, kind, level)
            assert (damaged.shape, damaged.dtype) == (shape, torch.uint8), (kind, shape)


def test_the_clean_picture_is_left_as_it_was(photographs):
    before = photographs.clone()
    for kind in CORRUPTIONS:
        corrupt(photographs, kind, 5)
    assert torch.equal(photographs, before)


def test_gaussian_noise_has_the_deviation_it_states(grey):
    damaged = corrupt(grey, "gaussian_noise", 2).double()
    assert float(damaged.mean()) == pytest.approx(100, abs=0.6)
    assert float(damaged.std()) == pytest.approx(24, rel=0.02)
    assert scipy.stats.kstest((damaged.ravel()[:2000] - 100) / 24, "norm").pvalue > 0.001


@pytest.mark.parametrize("photons", [120, 6])
def test_shot_noise_counts_photons(grey, photons):
    expected = 100 / 255 * photons
    counts = corruptions.shot_noise(grey.numpy(), photons, (0, "test", 0, 0, 0)) / 255 * photons  # not clipped yet
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
    seen = np.bincount(counts.round().astype(int).ravel(), minlength=200)[:200] / counts.size
    np.testing.assert_allclose(seen, scipy.stats.poisson(expected).pmf(range(200)), atol=0.01)
    assert counts.var() == pytest.approx(expected, rel=0.05)


def test_black_stays_black_under_shot_noise():
    assert not corrupt(torch.zeros(3, 16, 16, dtype=torch.uint8), "shot_noise", 5).any()


@pytest.mark.parametrize("kind", ["defocus_blur", "motion_blur"])
def test_a_blur_keeps_a_flat_picture_and_the_light_of_a_point(kind, grey):
    assert torch.equal(corrupt(grey, kind, 5), grey)
    point = np.zeros((1, 101, 101))
    point[0, 50, 50] = 1e6
    at = (0, "test", 0, 0, 0)
    apply, strengths = CORRUPTIONS[kind]
    for strength in strengths:
        assert apply(point, strength, at).sum() == pytest.approx(1e6)


def test_defocus_spreads_a_point_over_a_round_disc():
    point = np.zeros((1, 250, 250))
    point[0, 125, 125] = 1
    disc = corruptions.defocus_blur(point, 0.04, (0, "", 0, 0, 0))[0]  # a radius of 10.5 pixels
    np.testing.assert_array_equal(disc, disc.T)
    np.testing.assert_array_equal(
        disc, disc[::-1, ::-1].take(range(-1, 249), 0, mode="wrap").take(range(-1, 249), 1, mode="wrap")
    )
    assert np.count_nonzero(disc[125]) == 21
    assert 1 / disc.max() == pytest.approx(np.pi * 10.5**2, rel=0.02)


def test_motion_spreads_a_point_over_a_line_of_the_stated_length():
    point = np.zeros((1, 300, 300))
    point[0, 150, 150] = 1
    for sample in range(5):
        line = corruptions.motion_blur(point, 0.1, (0, "test", 0, sample, 0))[0]  # 30 pixels
        places = np.argwhere(line) - 150
        spread = np.cov(places.T, fweights=None, aweights=line[line > 0])
        across, along = np.linalg.eigvalsh(spread)
        assert along == pytest.approx(30**2 / 12, rel=0.1)
        assert across < 0.5


def test_blurs_are_those_of_scipy_inside_and_mirror_at_the_border(photographs):
    picture = photographs[0].numpy()
    kernel = np.random.default_rng(0).random((5, 5))
    expected = [
        scipy.ndimage.correlate(plane.astype(float), kernel / kernel.sum(), mode="reflect") for plane in picture
    ]
    np.testing.assert_allclose(corruptions._convolve(picture, kernel), expected, rtol=1e-12)


def test_brightness_adds_and_contrast_scales_about_the_mean(photographs):
    picture = photographs[0]
    assert torch.equal(corrupt(picture, "brightness", 2), (picture.int() + 51).clamp(max=255).byte())
    flatter = corrupt(picture, "contrast", 3).double()
    assert float(flatter.mean()) == pytest.approx(float(picture.double().mean()), abs=0.2)
    assert float(flatter.std()) == pytest.approx(0.3 * float(picture.double().std()), rel=0.01)


def test_jpeg_is_pillows(photographs):
    file = BytesIO()
    Image.fromarray(photographs[0].permute(1, 2, 0).numpy()).save(file, "JPEG", quality=12)
    expected = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)
    assert torch.equal(corrupt(photographs[0], "jpeg", 3), expected)


def test_pixelate_shows_means_of_blocks():
    picture = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)
    expected = picture.double().reshape(1, 4, 2, 4, 2).mean((2, 4)).repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert float((corrupt(picture, "pixelate", 2).double() - expected).abs().max()) <= 0.5


def test_an_unknown_kind_names_the_nearest():
    picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ConfigError, match="did you mean 'pixelate'"):
        corrupt(picture, "pixelated", 1)
    with pytest.raises(ConfigError, match="level 6"):
        corrupt(picture, "jpeg", 6)
    with pytest.raises(ConfigError, match="uint8"):
        corrupt(picture.float(), "jpeg", 1)
