"""Boxes and maps under random policies, held against the pixels: objects of one colour each show where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.slow import few_or_nightly
from tests.tasks.dense_models import create
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import Batch, train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.annotations import LabelMaps, Objects
from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.source import Source
from vitrail.images.masks import IGNORED
from vitrail.training.inputs import Augmented, TaskInputs

PICTURE, SIZE = (96, 120), (64, 80)
# (left, top, right, bottom); apart, so that no object hides another
BOXES = np.array([[4, 6, 50, 40], [66, 3, 112, 38], [10, 52, 44, 92], [60, 50, 116, 90]])
COLOURS = np.array([[250, 30, 30], [30, 250, 30], [30, 30, 250], [250, 250, 30]], np.uint8)
BACKGROUND = 128
TURNING = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
CLASSES = tuple("abcde")  # the objects, and then the background
NEAR = 12  # levels by which a pixel of one object alone may differ from its colour


def draw_policy(generator: np.random.Generator) -> Augment:
    low, high = np.sort(generator.uniform(0.4, 2.5, 2))
    turns = generator.random() < 0.6
    return Augment(
        crop=generator.choice(["jitter", "inception", "squash", "none"]),
        crop_scale=(float(low), float(high)),
        crop_area=(float(generator.uniform(0.2, 1)), 1.0),
        flip=float(generator.random()),
        layers=int(generator.integers(1, 4)) if turns else 0,
        magnitude=float(generator.uniform(1, 9)),
        operations=tuple(generator.choice(TURNING, generator.integers(1, 6), replace=False)),
        fill=BACKGROUND,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    """Two equal pictures of the objects, and the map of their classes."""
    folder = tmp_path_factory.mktemp("pictures")
    picture, levels = np.full((*PICTURE, 3), BACKGROUND, np.uint8), np.full(PICTURE, len(BOXES), np.uint8)
    for number, (left, top, right, bottom) in enumerate(BOXES):
        picture[top:bottom, left:right], levels[top:bottom, left:right] = COLOURS[number], number
    for name in ("0.png", "1.png"):
        Image.fromarray(picture).save(folder / name)
    Image.fromarray(levels).save(folder / "map.png")
    return Files(str(folder), Strings(["0.png", "1.png"]))


def read(source: Source, task, policy: Augment, seed: int) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    """Images (B, 3, h, w) from 0 to 255, and their targets."""
    (batch,) = train_batches(
        source, policy=policy, size=SIZE, batch=2, seed=seed, start=0, stop=1, collate=task.targets.collate
    )
    levels = Preprocessing(size=SIZE, mean=(0.0,), std=(1.0,), resize="fit")
    images, targets, _ = TaskInputs(Augmented(policy=policy, preprocessing=levels, seed=seed, cropped=True), task)(
        batch
    )
    return 255 * images, targets, batch


def find_objects(image: torch.Tensor) -> np.ndarray:
    """Which pixels show each object and nothing else: (4, h, w) bool."""
    return (image.permute(1, 2, 0)[None] - torch.from_numpy(COLOURS)[:, None, None]).abs().amax(-1).numpy() < NEAR


@pytest.mark.slow
@pytest.mark.parametrize("policies", few_or_nightly(100, 1000))
def test_boxes_hold_their_objects_and_maps_name_their_pixels(files, policies):
    objects = Objects.join([Objects.of_image(BOXES, range(4), size=PICTURE)] * 2)
    maps = LabelMaps(Files(files.root, Strings(["map.png"] * 2)), *np.tile(np.arange(5, dtype=np.uint8), (2, 1)))
    detector, segmenter = (create(task, size=SIZE, classes=CLASSES) for task in ("detection", "segmentation"))
    generator = np.random.default_rng(0)
    shown, tight = 0, 0
    for seed in range(policies):
        policy = draw_policy(generator)
        images, found, batch = read(Source(contents=files, targets=objects, classes=CLASSES), detector, policy, seed)
        same, levels, _ = read(Source(contents=files, targets=maps, classes=CLASSES), segmenter, policy, seed)
        assert torch.equal(images, same)
        # the pixels of the picture in one of the image, where a filter mixes neighbours
        scale = np.ptp(batch.frames.crops.reshape(-1, 2, 2), axis=1) / SIZE[::-1]  # (B, 2)
        for image, rows, level, steps in zip(images, found.numpy(), levels.numpy(), scale):
            boxes = {int(label): box for label, _, *box in rows if label >= 0}
            for number, pixels in enumerate(find_objects(image)):
                if not pixels.any():
                    continue
                shown += 1
                assert np.isin(level[pixels], (number, IGNORED)).all(), (seed, number, policy)
                if number not in boxes:  # too little of it is seen
                    continue
                left, top, right, bottom = boxes[number]
                y, x = np.nonzero(pixels)
                seen = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
                assert (seen[:2] > np.array([left, top]) - 1).all() and (seen[2:] < np.array([right, bottom]) + 1).all()
                if not policy.layers:  # as tight as the mixed pixels along the edges allow
                    tight += 1
                    reach = 2.5 + 1.5 / np.tile(np.minimum(steps, 1), 2)
                    assert (np.abs(seen - [left, top, right, bottom]) < reach).all(), (seed, number, policy)
    assert shown > 4 * policies and tight > 1.2 * policies
