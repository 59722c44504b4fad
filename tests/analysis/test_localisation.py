"""The share of maps inside masks, by hand: constant maps, maps inside alone, cells beyond the image, and prepared masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.looked_at import shaken
from tests.models.tiny import TINY
from vitrail.analysis.attention import attention_map, compute_layer_maps
from vitrail.analysis.localisation import compute_overlap, compute_share_inside, find_mask, measure_shares, read_mask
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, DataError

LEFT = torch.zeros(1, 4, 8).index_fill_(2, torch.arange(4), 1.0)  # the left half of 4 x 8 pixels


def share(heat, mask=LEFT, cell=(2, 2)):
    return compute_share_inside(torch.tensor(heat, dtype=torch.float32)[None], mask, cell).item()


def test_a_constant_map_has_the_share_of_the_area_exactly():
    assert share(np.full((2, 4), 0.3)) == 0.5
    mask = torch.zeros(1, 4, 8)
    mask[0, 1, 5] = mask[0, 3, 7] = mask[0, 0, 0] = 1
    assert share(np.ones((2, 4)), mask) == pytest.approx(3 / 32, abs=1e-15)
    whole, nothing = torch.ones(1, 4, 8), torch.zeros(1, 4, 8)
    assert (share(np.ones((2, 4)), whole), share(np.ones((2, 4)), nothing)) == (1, 0)


def test_a_map_inside_alone_has_one_and_one_outside_has_none():
    assert share([[1, 2, 0, 0], [0, 3, 0, 0]]) == 1
    assert share([[0, 0, 1, 0], [0, 0, 0, 5]]) == 0


def test_shares_by_hand():
    # 3 of 10 inside
    assert share([[1, 2, 0, 4], [0, 0, 3, 0]]) == pytest.approx(0.3, abs=1e-12)
    # a mask that covers a quarter of the first cell and half of the second: 4 / 4 + 6 / 2 of 10
    mask = torch.zeros(1, 4, 8)
    mask[0, 0, 1] = mask[0, 0, 2] = mask[0, 1, 2] = 1
    assert share([[4, 6, 0, 0], [0, 0, 0, 0]], mask) == pytest.approx(0.4, abs=1e-12)


def test_rows_are_rows():
    top = torch.zeros(1, 4, 8)
    top[:, :2] = 1
    assert share([[1, 1, 1, 1], [0, 0, 0, 0]], top) == 1
    assert share([[1, 0, 0, 0], [1, 0, 0, 0]], top) == 0.5


def test_a_cell_that_reaches_beyond_the_image_counts_by_its_pixels_in_it():
    # 3 x 5 pixels in cells of 2 x 2: the last cell has one pixel, which is inside
    mask = torch.zeros(1, 3, 5)
    mask[0, 2, 4] = 1
    assert share([[1, 1, 1], [1, 1, 1]], mask) == pytest.approx(1 / 6, abs=1e-12)
    assert share([[0, 0, 0], [0, 0, 7]], mask) == 1
    # cells of 1 x 2
    assert share(np.ones((3, 3)), mask, (1, 2)) == pytest.approx(1 / 9, abs=1e-12)
    # a row of cells of padding alone is not part of the image
    assert share([[1, 1, 1], [1, 1, 1], [9, 9, 9]], mask) == pytest.approx(1 / 6, abs=1e-12)


def test_a_map_of_zeros_has_no_share():
    assert np.isnan(share(np.zeros((2, 4))))


def overlap(heat, mask=LEFT, cell=(2, 2)):
    return compute_overlap(torch.tensor(heat, dtype=torch.float32)[None], mask, cell).item()


def test_overlaps_by_hand():
    # of 10 the cells 4 and 3 hold 60 %: one of them lies in the left half, which has four cells
    assert overlap([[0, 4, 3, 1], [1, 0, 0, 1]]) == pytest.approx(1 / 5)
    assert overlap([[3, 3, 0, 0], [3, 3, 0, 0]]) == pytest.approx(3 / 4)  # three of four equal cells hold 60 %
    assert overlap([[0, 0, 0, 6], [0, 0, 0, 4]]) == 0
    # 3 x 5 pixels: the last cell has one pixel in the image
    mask = torch.zeros(1, 3, 5)
    mask[0, 2, 4] = 1
    assert overlap([[0, 0, 0], [0, 0, 7]], mask) == 1
    assert np.isnan(overlap(np.zeros((2, 4))))


@pytest.mark.parametrize("name", ["vit", "swin, odd map", "axial resnet, odd map"])
def test_every_layer_and_method_is_measured(name):
    model = shaken(TINY[name])
    height, width = size = model.preprocessing.size
    images = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(1, height, width)
    mask[:, : height // 2, width // 3 :] = 1
    shares = measure_shares(model, images, mask)
    layers = len(model.attention_grids(size))
    assert [*shares] == [*(f"layer {layer}" for layer in range(layers)), "best head", "rollout", "gradient"]
    assert all(0 <= value <= 1 for pair in shares.values() for value in pair)
    cell = model.attention_grids(size)[1].cell
    heat = attention_map(model, images, 1)
    expected = compute_share_inside(heat, mask, cell).item(), compute_overlap(heat, mask, cell).item()
    assert shares["layer 1"] == pytest.approx(expected, abs=1e-6)
    last, cell = layers - 1, model.attention_grids(size)[-1].cell
    (heads,) = compute_layer_maps(model, images, [last])[last]
    assert shares["best head"][1] == max(overlap(head.tolist(), mask, cell) for head in heads)
    # all of a mask is everything that a model sees, without attention to padding
    assert measure_shares(model, images, torch.ones_like(mask))["rollout"][0] == pytest.approx(1, abs=1e-9)


def test_a_model_without_attention_is_refused():
    with pytest.raises(ConfigError, match="no attention"):
        measure_shares(shaken(TINY["bit"]), torch.zeros(1, 3, 32, 32), torch.ones(1, 32, 32))


@pytest.fixture
def saved(tmp_path):
    def save(pixels, mode="L", name="cat.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.asarray(pixels, np.uint8))
        if mode == "P":
            image = Image.fromarray(np.asarray(pixels, np.uint8)).convert("L")
            image.putpalette([255, 255, 255] * 256)
        elif mode != "L":
            image = image.convert(mode)
        image.save(path)
        return path

    return save


def test_a_mask_is_resized_and_cropped_as_its_image(saved):
    """Of 8 x 16 pixels to 4 x 8, of which the middle 4 x 4 are seen: columns 4 to 11 of the image."""
    preprocessing = Preprocessing(size=(4, 4), resize="short", resize_to=4)
    pixels = np.zeros((8, 16), np.uint8)
    pixels[:, 6:9] = 7  # columns 2 to 4 of the crop's pixels in the image: of its four columns 0, 1, 0.5 and 0
    mask = read_mask(saved(pixels), (8, 16), preprocessing)
    expected = torch.tensor([0, 1, 0.5, 0]).expand(1, 4, 4)
    torch.testing.assert_close(mask, expected)
    assert read_mask(saved(np.ones((8, 16))), (8, 16), preprocessing).mean() == 1
    squashed = read_mask(saved(pixels), (8, 16), Preprocessing(size=(4, 4)))
    torch.testing.assert_close(squashed, torch.tensor([0, 0.5, 0.25, 0]).expand(1, 4, 4))


def test_a_black_border_is_outside():
    mask = Preprocessing(size=(4, 6), resize="none").mask(np.ones((2, 2), bool))
    assert mask.sum() == 4
    assert mask[1:3, 2:4].all()


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGB"])
def test_any_value_but_zero_is_inside_whatever_its_colour(saved, mode):
    pixels = np.zeros((4, 4), np.uint8)
    pixels[1, 2] = 255 if mode == "1" else 3
    mask = read_mask(saved(pixels, mode), (4, 4), Preprocessing(size=(4, 4)))
    assert (mask[0, 1, 2], mask.sum()) == (1, 1)


def test_a_mask_that_does_not_fit_is_refused_with_its_name(saved, tmp_path):
    preprocessing = Preprocessing(size=(4, 4))
    with pytest.raises(DataError, match=r"cat\.png has 4 x 4 pixels, its image 4 x 5"):
        read_mask(saved(np.ones((4, 4))), (4, 5), preprocessing)
    broken = tmp_path / "broken.png"
    broken.write_bytes(saved(np.ones((4, 4))).read_bytes()[:40])
    with pytest.raises(DataError, match=r"broken\.png cannot be read"):
        read_mask(broken, (4, 4), preprocessing)


def test_masks_are_found_by_name_and_the_most_specific_folder_counts(saved, tmp_path):
    plain = saved(np.ones((2, 2)), name="1.png")
    assert find_mask(tmp_path, "photos/ant/1.jpg") == plain
    assert find_mask(tmp_path, "/data/photos/ant/1.jpg") == plain
    assert find_mask(tmp_path, "photos/ant/2.jpg") is None
    own = saved(np.ones((2, 2)), name="ant/1.png")
    assert find_mask(tmp_path, "photos/ant/1.jpg") == own
    assert find_mask(tmp_path, "photos/bee/1.jpg") == plain
