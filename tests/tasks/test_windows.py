"""Whole pictures in windows: the mean of the logits of a segmenter, and each object of a detector once."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.tasks.dense_models import CLASSES, create
from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.windows import Windows
from vitrail.errors import ConfigError
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.tasks.dense import pixels
from vitrail.tasks.segmentation.metric import find_classes

SIZE = (32, 48)


def create_fitting(task, **arguments):
    """A small model that sees whole pictures with a border, as trainings make them."""
    model = create(task, size=SIZE, **arguments)
    model.preprocessing = replace(model.preprocessing, resize="fit")
    return model


@pytest.fixture(scope="module")
def segmenter():
    """One whose classes follow the colours nearby, so that windows do not agree at their borders."""
    model = create_fitting("segmentation")
    kernel = torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    kernel -= kernel.mean((1, 2, 3), keepdim=True)
    model.forward = lambda images: F.conv2d(images, kernel, padding=4)
    return model


@pytest.fixture(scope="module")
def detector():
    return create_fitting("detection", most=20, threshold=0.1)


def draw_picture(height, width, seed=0):
    cells = np.random.default_rng(seed).integers(0, 255, (5, 7, 3), np.uint8)
    return Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC)


# Segmentation.


def label_slowly(model, picture, zoom):
    """Logits of all pixels, one after another, added up over what shows them; for pictures of at least the input's aspect."""
    height, width = model.preprocessing.size
    tall, wide = (round(picture.height * width * scale / picture.width) for scale in (1, zoom))
    whole = Image.new("RGB", (width, height), (128, 128, 128))
    whole.paste(picture.resize((width, tall), Image.Resampling.BILINEAR))
    shown = [
        (whole, 0, 0, picture.height / tall, picture.width / width)
    ]  # an input, its corner, its pixels in the picture's
    tall, wide = wide, int(zoom * width)
    large = picture.resize((wide, tall), Image.Resampling.BILINEAR)
    down, across = picture.height / tall, picture.width / wide
    for top in (0, tall - height):
        for left in (0, wide - width):
            part = large.crop((left, top, left + width, top + height))
            shown.append((part, top * down, left * across, down, across))
    sums = np.zeros((len(model.classes), picture.height, picture.width))
    for part, top, left, down, across in shown:
        with torch.no_grad():
            pixels = torch.from_numpy(np.asarray(part).copy()).permute(2, 0, 1)[None] / 127.5 - 1
            logits = model(pixels)[0].double().numpy()
        for row, column in np.ndindex(picture.height, picture.width):
            y, x = (row + 0.5 - top) / down, (column + 0.5 - left) / across
            if 0 <= y <= height and 0 <= x <= width:
                sums[:, row, column] += interpolate(logits, y - 0.5, x - 0.5)
    return sums


def interpolate(logits, y, x):
    """Bilinear, with the values of the border beyond it."""
    (rows, columns), (top, left) = logits.shape[1:], (int(np.floor(y)), int(np.floor(x)))
    below, beside = y - top, x - left
    total = 0
    for row, share in ((top, 1 - below), (top + 1, below)):
        for column, part in ((left, 1 - beside), (left + 1, beside)):
            total = total + share * part * logits[:, min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)]
    return total


@pytest.mark.parametrize("size", [(40, 60), (25, 45)])  # one that fills the input, and one with a border below it
def test_a_map_is_that_of_the_mean_of_all_logits_at_each_pixel(segmenter, size):
    picture = draw_picture(*size)
    sums = label_slowly(segmenter, picture, 1.5)
    (answer,) = segmenter.predict(picture, zoom=1.5)
    assert answer.map.shape == (picture.height, picture.width)
    ranked = np.sort(sums, 0)
    is_clear = ranked[-1] - ranked[-2] > 1e-3  # rounding decides no other pixel
    assert is_clear.mean() > 0.9
    assert np.array_equal(answer.map[is_clear], sums.argmax(0)[is_clear])
    (whole,) = segmenter.predict(picture)
    assert (whole.map != answer.map).mean() > 0.02


def test_one_input_is_labelled_by_windows_as_it_is_alone():
    """Of a picture with a border around it, and of one that the input does not show all of."""
    logits = torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    for crop in ([0, 0, 100, 90.0], [-10, 12, 86, 76]):
        frames = Frames(np.array([crop], float), np.array([[61.0, 83]]))
        (expected,) = pixels.sample_pixels(logits, frames, find_classes)
        assert torch.equal(pixels.join_pixels([logits], frames, find_classes), expected)


def test_zoom_1_is_what_is_answered_without_it(segmenter, detector):
    picture = draw_picture(60, 90)
    for model in (segmenter, detector):
        (one,), (other,) = model.predict(picture, zoom=1), model.predict(picture)
        assert one.to_json() == other.to_json()


def test_windows_of_large_pictures_are_not_kept_in_memory(monkeypatch):
    """Kept are the whole picture and a row of windows with its neighbours, in parts that are labelled in strips."""
    size, classes = (6, 8), 5
    views = Frames.of_windows(Windows(Preprocessing(size=size, resize="fit"), 4.75), (240, 320))
    clone, sample = torch.Tensor.clone, pixels.sample_maps
    kept, numbers = WeakSet(), {"kept": 0, "sampled": 0}

    def keep(logits):
        copy = clone(logits)
        kept.add(copy)
        numbers["kept"] = max(numbers["kept"], len(kept))
        return copy

    def count(*arguments):
        found = sample(*arguments)
        numbers["sampled"] = max(numbers["sampled"], found.numel())
        return found

    monkeypatch.setattr(pixels, "CELLS", 1000)
    monkeypatch.setattr(torch.Tensor, "clone", keep)
    monkeypatch.setattr(pixels, "sample_maps", count)
    assert len(views) == 1 + 6 * 6
    outputs = torch.zeros(len(views), classes, *size).split(2)
    assert pixels.join_pixels(outputs, views, find_classes).shape == (240, 320)
    assert 1 + 6 < numbers["kept"] <= 1 + 6 + 2
    assert 500 < numbers["sampled"] <= 1000


def test_pictures_smaller_than_their_windows_are_labelled(segmenter):
    (answer,) = segmenter.predict(draw_picture(2, 3), zoom=4)
    assert answer.map.shape == (2, 3)


def test_a_picture_in_memory_that_is_stored_turned_is_answered_upright(segmenter):
    picture = draw_picture(40, 60)
    upright = picture.transpose(Image.Transpose.ROTATE_270)
    picture.getexif()[0x0112] = 6
    for zoom in (1, 1.5):
        (answer,), (expected,) = segmenter.predict(picture, zoom=zoom), segmenter.predict(upright, zoom=zoom)
        assert np.array_equal(answer.map, expected.map)


# Detection.


def join(detector, found, size=(64, 96), zoom=2.0):
    """Boxes of a picture, in its pixels, from those of its windows: {number of the input: [box, score, label]}."""
    views = Frames.of_windows(Windows(detector.preprocessing, zoom), size)
    outputs = torch.zeros(len(views), 20, 6)
    for view, rows in found.items():
        left, top, right, bottom = views.crops[view]
        scale = np.array([SIZE[1] / (right - left), SIZE[0] / (bottom - top)] * 2)
        for place, (box, score, label) in enumerate(rows):
            outputs[view, place, :4] = torch.from_numpy((np.array(box) - [left, top, left, top]) * scale)
            outputs[view, place, 4:] = torch.tensor([score, label])
    joined = detector.join_windows(iter(outputs.split(4)), views)
    assert joined.shape == (1, 20, 6)
    (answer,) = detector.decode(joined, views.take(np.array([0])))
    return [
        ([round(at, 3) for at in box], round(score, 3), CLASSES.index(label))
        for box, score, label in zip(answer.boxes.tolist(), answer.scores.tolist(), answer.labels)
    ]


# windows 1 to 9 begin at 0, 24 and 48 of 96 columns and at 0, 16 and 32 of 64 rows of the picture, each 48 x 32 pixels large


def test_an_object_in_the_overlap_is_found_once_with_its_best_score(detector):
    box = [30.0, 6, 38, 12]
    near = [30.5, 6, 38, 12]
    assert join(detector, {1: [(near, 0.6, 1)], 2: [(box, 0.9, 1)], 0: [(near, 0.3, 1)]}) == [(box, 0.9, 1)]
    both = join(detector, {1: [(box, 0.6, 1)], 2: [(box, 0.9, 2)]})  # another class is another object
    assert both == [(box, 0.9, 2), (box, 0.6, 1)]


def test_an_object_that_a_border_cuts_is_found_once_and_whole(detector):
    """Window 1 ends at column 48, and is the more certain of what it shows."""
    whole = [44.0, 6, 54, 12]
    for end in (47.0, 48, 48.5):
        assert join(detector, {1: [([44, 6, end, 12], 0.95, 1)], 2: [(whole, 0.6, 1)]}) == [(whole, 0.6, 1)]
    below = [8.0, 26, 14, 33]
    assert join(detector, {1: [([8, 26, 14, 32], 0.95, 1)], 4: [(below, 0.6, 1)]}) == [(below, 0.6, 1)]
    assert join(detector, {2: [([24, 6, 30, 12], 0.95, 1)], 1: [([20, 6, 30, 12], 0.6, 1)]})[0][1] == 0.6


def test_an_object_at_the_border_of_the_picture_is_no_cut_one(detector):
    for view, box in ((1, [0.0, 0, 8, 6]), (9, [88.0, 58, 96, 64]), (3, [90.0, 0, 96, 5])):
        assert join(detector, {view: [(box, 0.5, 0)]}) == [(box, 0.5, 0)]
    narrow = Windows(detector.preprocessing, 2.0)
    assert len(narrow.boxes(20, 96)) == 1 + 3  # one row of windows, with a border below
    assert join(detector, {1: [([10, 14, 16, 20], 0.5, 0)]}, (20, 96)) == [([10, 14, 16, 20], 0.5, 0)]


def test_objects_larger_than_the_overlap_are_found_on_the_whole_picture_only(detector):
    large, part = [10.0, 10, 70, 60], [20.0, 12, 40, 30]
    assert join(detector, {0: [(large, 0.4, 1)], 1: [(part, 0.9, 1)], 5: [(part, 0.8, 1)]}) == [(large, 0.4, 1)]
    assert join(detector, {5: [([30, 30, 41, 37], 0.8, 1)]}) != []  # 11 of 48 columns, and 7 of 32 rows


def test_the_best_are_kept_where_windows_find_more_than_an_answer_may_have(detector):
    crowd = {view: [([50 + 3 * k, 30, 52 + 3 * k, 34], 0.5 + 0.01 * k, 0) for k in range(12)] for view in (0, 5)}
    crowd[9] = [([54 + 3 * k, 40, 56 + 3 * k, 44], 0.8 + 0.01 * k, 0) for k in range(14)]
    scores = [score for _, score, _ in join(detector, crowd)]
    assert len(scores) == 20
    assert scores == sorted(scores, reverse=True)
    assert scores[:14] == pytest.approx([0.93 - 0.01 * k for k in range(14)])


# What is refused.


def test_a_model_that_answers_for_whole_pictures_refuses_a_zoom():
    classifier = create_classifier("vit-ti16", image_size=32, classes=CLASSES, depth=1)
    with pytest.raises(ConfigError, match=r"zoom is 2, and a model of the task classification.*\n.*leave zoom out"):
        classifier.predict(draw_picture(20, 20), zoom=2)


@pytest.mark.parametrize("zoom", [0.5, 1000])
def test_a_zoom_out_of_range_is_refused_before_a_picture_is_read(segmenter, zoom):
    with pytest.raises(ConfigError, match=f"zoom is {zoom}"):
        segmenter.predict("no such picture.png", zoom=zoom)
