"""Segments of things and stuff as targets: they reach a batch as they are, and neither void nor crowds are learned."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.sources.foreign_objects import HEIGHT, WIDTH, panoptic, save_ids, save_pictures, write
from vitrail.data.augment import placement
from vitrail.data.augment.geometry import resample_maps
from vitrail.data.augment.placement import Frames
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import train_batches
from vitrail.data.sources.annotations import LABEL_BITS, NOT_SHOWN, UNCOUNTED, PanopticObjects
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.errors import DataError
from vitrail.tasks.instances.loss import OutlineTargets

SIZE = (48, 64)
TARGETS = OutlineTargets(PanopticObjects, "segments of things and stuff")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    names = ("a.png", "b.png", "c.png")
    save_pictures(tmp_path / "images", names)
    for name in names:
        save_ids(tmp_path / "panoptic" / name, panoptic(names)["annotations"][0]["segments_info"])
    write(tmp_path / "panoptic.json", panoptic(names))
    return open_data(tmp_path, task="panoptic", validation=0).train


def collate(maps):
    return torch.from_numpy(np.stack(maps))


def test_the_targets_of_panoptic_data_are_no_others(source):
    TARGETS.check(source, "panoptic")
    with pytest.raises(DataError, match="opened for the task panoptic, and instances needs objects with outlines"):
        OutlineTargets().check(source, "instances")


def test_a_batch_has_the_segments_that_its_crops_show(source):
    """The same with a worker, which writes maps into memory that is shared."""
    how = {"size": SIZE, "batch": 3, "seed": 3, "start": 0, "stop": 6, "collate": collate}
    policy = Augment(crop="jitter", crop_scale=(0.5, 2.5), flip=0.0)
    alone, shared = (list(train_batches(source, policy=policy, workers=workers, **how)) for workers in (0, 1))
    whole, seen = source.targets.read_map(0, (HEIGHT, WIDTH)), set()
    for one, other in zip(alone, shared, strict=True):
        assert torch.equal(one.images, other.images) and torch.equal(one.targets, other.targets)
        assert one.targets.dtype == torch.int32
        for values, (left, top, right, bottom) in zip(one.targets.numpy(), one.frames.crops):
            x = np.floor(left + (np.arange(SIZE[1]) + 0.5) * (right - left) / SIZE[1]).astype(int)
            y = np.floor(top + (np.arange(SIZE[0]) + 0.5) * (bottom - top) / SIZE[0]).astype(int)[:, None]
            inside = (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
            expected = np.where(inside, whole[y.clip(0, HEIGHT - 1), x.clip(0, WIDTH - 1)], NOT_SHOWN)
            np.testing.assert_array_equal(values, expected)
            seen |= set(np.unique(values).tolist())
    # background does not occur
    assert seen == {NOT_SHOWN, UNCOUNTED, 1 << LABEL_BITS, 3 << LABEL_BITS | 2, 4 << LABEL_BITS | 3}


@pytest.mark.parametrize("degrees", [0, 30])
def test_void_and_crowds_stay_uncounted_where_images_are_turned_and_mirrored(source, degrees):
    values = torch.from_numpy(source.targets.read_map(0, SIZE))[None]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    mirror, centre = np.diag([-1.0, 1, 1]), np.array([[1.0, 0, 32], [0, 1, 24], [0, 0, 1]])
    turn = centre @ mirror @ [[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]] @ np.linalg.inv(centre)
    placed = placement.place(Frames.whole(1, SIZE), SIZE, turn[None], SIZE)
    objects, _, numbers = TARGETS.move(values, placed)
    # by the definition: what the middle of each pixel shows
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    at_x, at_y, _ = np.floor(np.tensordot(turn, np.stack([x, y, np.ones_like(x)]), 1) + 1e-9).astype(int)
    inside = (at_x >= 0) & (at_x < SIZE[1]) & (at_y >= 0) & (at_y < SIZE[0])
    shown = np.where(inside, values[0].numpy()[at_y.clip(0, 47), at_x.clip(0, 63)], NOT_SHOWN)
    maps = resample_maps(values, placed.sampling, size=SIZE, pixel_format=TARGETS.format)[0].numpy()
    assert (maps == shown).mean() > 0.995  # a middle on the border of two pixels may go to either
    np.testing.assert_array_equal(numbers[0] == UNCOUNTED, maps == UNCOUNTED)
    assert (numbers[0] == UNCOUNTED).sum() > 1000 and not (numbers[0] == 0).any()
    # cat, sky and grass; no crowd
    assert objects[0, :3, 0].tolist() == [0, 2, 3] and (objects[0, 3:, 0] == -1).all()
    for row, (label, _, left, top, right, bottom) in enumerate(objects[0, :3].tolist(), 1):
        own = (maps >= 0) & (maps & 0xFFFF == label)
        np.testing.assert_array_equal(numbers[0] == row, own)
        rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
        assert [left, top, right, bottom] == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
