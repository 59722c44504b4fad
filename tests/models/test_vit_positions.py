"""Position tables: their formula, how they follow the size of an image, against scipy, Pillow and arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
import torch
from PIL import Image

from vitrail.models import create_backbone
from vitrail.models.config import RESIZES, changed
from vitrail.models.positions import relative_index, resize, resize_tables, sincos2d

TABLE = torch.randn(1, 5 * 7, 3, generator=torch.Generator().manual_seed(0))


def test_the_papers_rule_is_scipys_zoom_of_order_1():
    image = TABLE[0].reshape(5, 7, 3).numpy()
    for new in ((10, 14), (3, 4), (5, 9), (12, 7)):
        expected = scipy.ndimage.zoom(image, (new[0] / 5, new[1] / 7, 1), order=1).reshape(-1, 3)
        np.testing.assert_allclose(resize(TABLE, (5, 7), new, "paper")[0].numpy(), expected, atol=2e-6)


# Pillow always antialiases where it shrinks
@pytest.mark.parametrize(
    ("rule", "new"), [("bicubic-antialias", (10, 14)), ("bicubic-antialias", (3, 4)), ("bilinear", (9, 8))]
)
def test_other_rules_are_pillows(rule, new):
    resample = Image.Resampling.BICUBIC if rule.startswith("bicubic") else Image.Resampling.BILINEAR
    ours = resize(TABLE, (5, 7), new, rule)[0].reshape(*new, 3)
    for channel in range(3):
        image = Image.fromarray(TABLE[0, :, channel].reshape(5, 7).numpy())
        expected = np.asarray(image.resize(new[::-1], resample))
        np.testing.assert_allclose(ours[..., channel].numpy(), expected, atol=1e-5)


def test_bicubic_is_the_cubic_convolution_with_minus_three_quarters():
    line = TABLE[:, :7, :1]

    def kernel(t, a=-0.75):
        t = abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0

    resized = resize(line, (1, 7), (1, 12), "bicubic")[0, :, 0]
    for place in range(12):
        centre = (place + 0.5) * 7 / 12 - 0.5
        near = range(math.floor(centre) - 1, math.floor(centre) + 3)
        expected = sum(kernel(centre - at) * float(line[0, min(max(at, 0), 6), 0]) for at in near)
        assert float(resized[place]) == pytest.approx(expected, abs=1e-5)


def test_an_unchanged_grid_is_untouched_and_a_type_is_kept():
    for rule in RESIZES:
        assert resize(TABLE, (5, 7), (5, 7), rule) is TABLE
        assert resize(TABLE.bfloat16(), (5, 7), (6, 6), rule).dtype == torch.bfloat16


def test_sines_and_cosines_follow_big_visions_formula():
    table = sincos2d((3, 5), 16)
    for row in range(3):
        for column in range(5):
            waves = [1 / 10000 ** (i / 3) for i in range(4)]
            expected = [f(at * w) for at in (column, row) for f in (math.sin, math.cos) for w in waves]
            assert table[row * 5 + column].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_offset_of_a_pair_is_its_row_and_registers_have_none(make):
    config = make(positions="relative", image_size=(8, 24), registers=1).config  # slots: cls 0, patches 1 2 3
    index = relative_index(config, (1, 3), None, torch.device("cpu"))
    assert index.tolist() == [[3, 7, 2, 1, 0], [7] * 5, [4, 7, 3, 2, 1], [5, 7, 4, 3, 2], [6, 7, 5, 4, 3]]
    kept = relative_index(config, (1, 3), torch.tensor([[2, 0]]), torch.device("cpu"))
    assert kept.tolist() == [[[3, 7, 0, 2], [7] * 4, [6, 7, 3, 5], [4, 7, 1, 3]]]


SOME = [
    *(("learned", ("stem", "every", "shared")[place % 3], rule) for place, rule in enumerate(RESIZES)),
    ("learned2d", "every", "bilinear"),
    ("sincos2d", "stem", "paper"),
    ("relative", "shared", "paper"),
    ("relative", "every", "bicubic"),
]


@pytest.mark.parametrize(("kind", "at", "rule"), SOME)
def test_resizing_when_run_is_resizing_when_loaded(make, pictures, kind, at, rule):
    model = make(torch.float32, positions=kind, positions_at=at, position_resize=rule, prefix=("cls", "dist"))
    other = create_backbone(changed(model.config, image_size=(48, 24))).eval()
    state = resize_tables(model.state_dict(), model.config.grid, other.config.grid, prefix=2, rule=rule)
    other.load_state_dict(state)
    images = pictures(1, 3, 48, 24, torch.float32)
    torch.testing.assert_close(model(images), other(images))
    if kind == "learned":
        torch.testing.assert_close(state["pos_embed"][:, :2], model.pos_embed[:, :2].detach())
    if kind in ("learned", "learned2d", "relative"):
        assert torch.equal(state["norm.weight"], model.norm.weight)
        with pytest.raises(RuntimeError, match="size mismatch"):
            other.load_state_dict(model.state_dict())


def test_no_size_is_kept_after_an_image_of_another(make, pictures):
    for kind in ("learned", "learned2d", "sincos2d", "relative", "none"):
        model, images = make(torch.float32, positions=kind), pictures(dtype=torch.float32)
        names, before = [*vars(model)], model(images)
        model(pictures(1, 3, 16, 64, torch.float32))
        assert torch.equal(model(images), before), kind
        assert [*vars(model)] == names


def test_gradients_reach_a_table_that_is_resized(make, pictures):
    model = make(positions="learned")
    model(pictures(1, 3, 48, 48)).sum().backward()
    assert (model.pos_embed.grad.abs().sum(-1) > 0).all()
