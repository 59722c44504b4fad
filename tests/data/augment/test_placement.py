"""What is handed on of geometry: a picture whose colours are its coordinates tells where every pixel came from."""

from __future__ import annotations

from fractions import Fraction
from io import BytesIO
from math import floor

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augment.apply import augment
from vitrail.data.augment.geometry import resample_maps
from vitrail.data.augment.placement import Frames, Placement, place
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import eval_batches, train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.annotations import LabelMaps
from vitrail.data.sources.contents import Arrays, Files, Strings
from vitrail.data.sources.source import Source
from vitrail.images.pixel_format import PixelFormat, crop_map

HEIGHT, WIDTH, SIZE = 96, 128, (40, 32)
IGNORED = 255
TURNING = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
POLICIES = {
    "crop and flip": Augment(crop="inception", crop_area=(0.3, 1.0), flip=0.5),
    "geometry": Augment(crop="inception", crop_area=(0.5, 1.0), layers=2, magnitude=4, operations=TURNING),
    "shift": Augment(crop="pad", pad=0.1),
}


def coordinates(count: int) -> np.ndarray:
    """(n, H, W, 3) float32: red is x over the width, green is y over the height, of the pixel's centre."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    picture = np.stack([x / WIDTH, y / HEIGHT, np.full_like(x, 0.5)], -1)
    return np.repeat(picture[None], count, 0).astype(np.float32)


def arrays(tmp_path) -> Source:
    return Source(contents=Arrays(coordinates(12), Strings(map(str, range(12)))), targets=np.arange(12))


def files(tmp_path) -> Source:
    names = [f"{number}.png" for number in range(12)]
    for name in names:
        Image.fromarray(np.rint(coordinates(1)[0] * 255).astype(np.uint8)).save(tmp_path / name)
    return Source(contents=Files(str(tmp_path), Strings(names)), targets=np.arange(12))


def off(images: torch.Tensor, placement: Placement) -> np.ndarray:
    """How far, in pixels, the colours of images (B, 3, h, w) lie from where ``placement`` says, inside of what was read."""
    matrices = placement.matrices
    left, top, right, bottom = placement.frames.crops.T[..., None]  # each (B, 1)
    v, u = np.mgrid[: images.shape[2], : images.shape[3]] + 0.5
    made = np.stack([u, v, np.ones_like(u)], -1).reshape(-1, 3)  # (N, 3)
    x, y, _ = (made @ matrices.transpose(0, 2, 1)).transpose(2, 0, 1)  # each (B, N)
    red, green = images[:, :2].flatten(2).numpy().transpose(1, 0, 2)
    inside = (x > left + 4) & (x < right - 4) & (y > top + 4) & (y < bottom - 4)  # beyond, a shift mirrors
    is_filled = np.abs(red - 0.5) + np.abs(green - 0.5) < 0.02  # what geometry uncovers is grey
    distance = np.hypot(red * WIDTH - x, green * HEIGHT - y)
    return distance[inside & ~is_filled]


@pytest.mark.parametrize(
    ("source", "workers", "name"),
    [*((source, 0, name) for source in (arrays, files) for name in POLICIES), (files, 1, "geometry")],
)
def test_every_pixel_comes_from_where_its_placement_says(tmp_path, source, workers, name):
    given, policy = source(tmp_path), POLICIES[name]
    (batch,) = train_batches(given, policy=policy, size=SIZE, batch=12, seed=3, start=0, stop=1, workers=workers)
    images = batch.images if batch.images.is_floating_point() else batch.images.float() / 255
    cropped = given.kind == "files"
    read = tuple(images.shape[2:])
    made, matrices = augment(images, batch.ids, policy, size=SIZE, seed=3, cropped=cropped)
    placement = place(batch.frames, read, matrices, SIZE)
    distances = off(made, placement)
    assert len(distances) > 3000
    assert np.quantile(distances, 0.98) < 1  # of 128 x 96 pixels; 256 levels are half a pixel


def test_points_of_a_picture_follow_their_pixels():
    matrices = np.array([[[-2.0, 0, 60], [0, 3, 12], [0, 0, 1]]])  # mirrored, half as wide, a third as high
    placement = place(Frames.whole(1, (HEIGHT, WIDTH)), (HEIGHT, WIDTH), matrices, SIZE)
    assert placement.move(np.array([[[60.0, 12], [40, 42]]])).tolist() == [[[0, 0], [10, 10]]]


def test_points_follow_a_quarter_turn_by_hand():
    """The image shows the picture turned: its point (x, y) is the picture's (y, 10 - x)."""
    matrices = np.array([[[0.0, 1, 0], [-1, 0, 10], [0, 0, 1]]])
    turned = Placement(matrices, (10, 10), Frames.whole(1, (10, 10)), matrices)
    np.testing.assert_allclose(turned.move(np.array([[[2.0, 7.0], [0.0, 10.0]]])), [[[3, 2], [0, 0]]], atol=1e-12)


def test_maps_are_resampled_to_the_pixel_that_holds_each_centre():
    """Against a loop in exact arithmetic: turned, mirrored, scaled, moved beyond the edges, on the edges of pixels."""
    generator = np.random.default_rng(0)
    maps = torch.from_numpy(generator.integers(0, 20, (9, 7, 11)).astype(np.uint8))
    matrices = np.tile(np.eye(3), (9, 1, 1))
    matrices[1:7, :2] += generator.normal(0, 1, (6, 2, 3)) * [0.5, 0.5, 3]
    matrices[7, :2], matrices[8, :2] = [[-2, 0, 11], [0, 2, 0]], [[0.5, 0, 0], [0, 0.5, 2]]
    made = resample_maps(maps, matrices, size=(6, 8), pixel_format=LabelMaps.pixel_format)
    assert made.dtype == torch.uint8
    for image, row, column in np.ndindex(9, 6, 8):
        exact = [[Fraction(entry) for entry in line] for line in matrices[image, :2].tolist()]
        x, y = (a * (column + Fraction(1, 2)) + b * (row + Fraction(1, 2)) + c for a, b, c in exact)
        inside = 0 <= x < 11 and 0 <= y < 7
        assert made[image, row, column] == (maps[image, floor(y), floor(x)] if inside else 255)
    assert (made == 255).any() and (made[0] == maps[0, :6, :8]).all()


@pytest.mark.parametrize("ignored", [np.nan, 0.0])
def test_measurements_are_interpolated_and_what_is_next_to_an_unknown_one_is_unknown(ignored):
    """A plane stays a plane, cropped by a worker or resampled on the device, up to the edge and to the hole in it."""
    kind = PixelFormat(np.float32, ignored, "bilinear")
    y, x = np.mgrid[:20, :30] + 0.5
    plane = (100 + 3 * x - 2 * y).astype(np.float32)
    plane[8, 12] = ignored
    left, top, wide, tall = -4, 3, 20, 14
    made = crop_map(plane, (left, top, wide, tall), (28, 50), kind)
    matrix = np.array([[[wide / 50, 0, left], [0, tall / 28, top], [0, 0, 1]]])
    (moved,) = resample_maps(torch.from_numpy(plane)[None], matrix, size=(28, 50), pixel_format=kind).numpy()
    np.testing.assert_allclose(moved, made, rtol=1e-6)
    x, y = left + (np.arange(50) + 0.5) * wide / 50, top + (np.arange(28)[:, None] + 0.5) * tall / 28
    unknown = (x < 0) | ((np.abs(x - 12.5) < 1) & (np.abs(y - 8.5) < 1))
    assert (kind.is_known(made) == ~unknown).all()
    inner = ~unknown & (x > 0.5)  # constant beyond the centre of the first column
    np.testing.assert_allclose(made[inner], (100 + 3 * x - 2 * y)[inner], rtol=1e-6)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_maps_follow_the_pixels_that_they_describe(policy):
    images = torch.from_numpy(coordinates(12)).permute(0, 3, 1, 2)
    ids = np.stack([np.zeros(12, int), np.arange(12), np.zeros(12, int)], 1)
    made, matrices = augment(images, ids, policy, size=SIZE, seed=3, cropped=False)
    placement = place(Frames.whole(12, (HEIGHT, WIDTH)), (HEIGHT, WIDTH), matrices, SIZE)
    columns = torch.arange(WIDTH, dtype=torch.uint8).expand(12, HEIGHT, WIDTH)  # each pixel's own
    found = resample_maps(columns, placement.sampling, size=SIZE, pixel_format=LabelMaps.pixel_format)
    known = (found != IGNORED) & ((made[:, :2] - 0.5).abs().sum(1) > 0.02)  # what geometry uncovers is grey
    distances = (found + 0.5 - made[:, 0] * WIDTH).abs()[known]
    assert len(distances) > 3000
    assert distances.quantile(0.98) < 1.6  # a part of a pixel, and the 2 or 4 pixels that a smaller image averages


def test_what_is_evaluated_says_which_part_of_the_picture_it_shows(tmp_path):
    preprocessing = Preprocessing(size=(48, 48), resize="short", resize_to=64)
    (batch,) = eval_batches(files(tmp_path), preprocessing, batch=12)
    top, left, bottom, right = preprocessing.visible_box(HEIGHT, WIDTH)
    assert np.allclose(batch.frames.crops, [left, top, right, bottom])
    assert (batch.frames.pictures == [HEIGHT, WIDTH]).all()
    placement = place(batch.frames, (48, 48), np.tile(np.eye(3), (12, 1, 1)), (48, 48))
    assert np.quantile(off(batch.images.float() / 255, placement), 0.98) < 1


def test_the_crop_of_a_jpeg_decoded_at_a_part_of_its_size_is_told_in_whole_pixels(tmp_path):
    large = np.zeros((800, 1200, 3), np.uint8)
    content = BytesIO()
    Image.fromarray(large).save(content, "JPEG")
    (tmp_path / "a.jpg").write_bytes(content.getvalue())
    source = Source(contents=Files(str(tmp_path), Strings(["a.jpg"])), targets=np.zeros(1, np.int64))
    policy = Augment(crop="none", flip=0.0)
    (batch,) = train_batches(source, policy=policy, size=(40, 60), batch=1, seed=0, start=0, stop=1)
    assert batch.frames.pictures.tolist() == [[800, 1200]]
    assert batch.frames.crops.tolist() == [[0, 0, 1200, 800]]


def test_what_a_users_transform_made_says_that_nothing_is_known(tmp_path):
    def transform(picture):
        return np.zeros((3, *SIZE), np.uint8)

    source, settings = files(tmp_path), {"size": SIZE, "batch": 4, "seed": 0, "start": 0, "stop": 1}
    batch = next(train_batches(source, policy=Augment(), transform=transform, **settings))
    assert np.isnan(batch.frames.crops).all()


def test_frames_of_smaller_pictures_show_the_same_region():
    frames = Frames(np.array([[-10.0, 0, 110, 40], [0, 0, 20, 10]]), np.array([[40.0, 100], [10, 20]]))
    small = frames.shrink(50)
    assert small.crops.tolist() == [[-5, 0, 55, 20], [0, 0, 20, 10]]
    assert small.pictures.tolist() == [[20, 50], [10, 20]]
