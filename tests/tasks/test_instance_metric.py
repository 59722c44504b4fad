"""COCO's figures of masks: those of pycocotools for the same answers and annotations."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest
import torch

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.open import open_data
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.images.rle import Rle
from vitrail.tasks.instances.answer import Instances
from vitrail.tasks.instances.metric import InstanceMetric, read_objects
from vitrail.tasks.metric import Figures

FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
FIGURES += ("ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large")


@pytest.fixture(scope="module")
def source(real_data):
    return open_data(real_data / "coco_mini" / "instances.json", task="instances", validation=0).train


def draw_answers(source, seed=0):
    """Answers that are shifted, of a wrong class, doubled, missing, or parts of crowds."""
    generator, answers = np.random.default_rng(seed), []
    for row in range(len(source)):
        objects = source.targets.of(row)
        masks, labels, size = [], [], tuple(objects.sizes[0].tolist())
        for mask, label in zip(objects.masks(), objects.labels.tolist()):
            for _ in range(generator.integers(0, 3)):
                patch, (left, top) = mask.to_patch()
                shift = generator.integers(-1, 2, 2) * generator.integers(0, 1 + max(patch.shape) // 6)
                masks.append(Rle.of_patch(patch, (left + int(shift[0]), top + int(shift[1])), size))
                labels.append(label if generator.uniform() < 0.9 else int(generator.integers(len(source.classes))))
        boxes = np.array([mask.box for mask in masks], np.float32).reshape(-1, 4)
        scores = generator.permutation(len(masks)).astype(np.float32) / 64  # distinct within an image, exact
        names = tuple(source.classes[label] for label in labels)
        answers.append(Instances(boxes, scores, names, size, source.classes, masks=tuple(masks)))
    return answers


def measure(source, answers) -> InstanceMetric:
    """The metric of given answers, added in two parts."""
    parts = []
    for rows in (range(len(source) // 2), range(len(source) // 2, len(source))):
        given = iter([answers[row] for row in rows])
        metric = InstanceMetric(source.classes, (8, 8), lambda outputs, frames, given=given: [next(given)], source)
        keys = [source.keys[row] for row in rows]
        metric.update(torch.zeros(len(keys), 1), torch.zeros(len(keys), 1), keys, Frames.whole(len(keys), (8, 8)))
        parts.append(metric)
    parts[0].merge(parts[1])
    return parts[0]


def evaluate_by_pycocotools(file, source, answers, kind) -> Figures:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    document = json.loads(file.read_text())
    ids = {image["file_name"].split("/")[-1]: image["id"] for image in document["images"]}
    categories = {category["name"]: category["id"] for category in document["categories"]}
    results = []
    for key, answer in zip(source.keys, answers):
        for label, score, mask in zip(answer.labels, answer.scores.tolist(), answer.masks):
            left, top, right, bottom = mask.box
            place = (
                {"segmentation": mask.to_coco()}
                if kind == "segm"
                else {"bbox": [left, top, right - left, bottom - top]}
            )
            owner = {"image_id": ids[key.split("/")[-1]], "category_id": categories[label], "score": score}
            results.append({**owner, **place})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(file))
        evaluated = COCOeval(coco, coco.loadRes(results), kind)
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return dict(zip(FIGURES, evaluated.stats.tolist()))


def test_figures_of_masks_and_boxes_are_those_of_pycocotools(real_data, source):
    assert source.targets.crowd.any() and len(source.targets.boxes) > 80
    answers, file = draw_answers(source), real_data / "coco_mini" / "instances.json"
    figures = measure(source, answers).compute()
    expected = evaluate_by_pycocotools(file, source, answers, "segm")
    assert 0.2 < expected["ap"] < 0.9
    for name in FIGURES:
        assert figures[name] == pytest.approx(expected[name], abs=1e-12), name
    boxes = evaluate_by_pycocotools(file, source, answers, "bbox")
    assert figures["box_ap"] == pytest.approx(boxes["ap"], abs=1e-12) != figures["ap"]
    assert figures["box_ap50"] == pytest.approx(boxes["ap50"], abs=1e-12)


def test_the_annotation_itself_is_perfect_and_no_answer_has_nothing(source):
    perfect, none = [], []
    for row in range(len(source)):
        objects = source.targets.of(row)
        kept = np.flatnonzero(~objects.crowd)
        size, masks = tuple(objects.sizes[0].tolist()), objects.masks()
        names = tuple(source.classes[label] for label in objects.labels[kept])
        some = Instances(
            objects.boxes[kept],
            np.ones(len(kept), np.float32),
            names,
            size,
            source.classes,
            masks=tuple(masks[k] for k in kept),
        )
        perfect.append(some)
        none.append(
            Instances(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), (), size, source.classes, masks=())
        )
    figures = measure(source, perfect).compute()
    assert figures["ap"] == figures["box_ap"] == figures["f1"] == 1
    assert measure(source, none).compute()["ap"] == 0


def test_intervals_and_tables_are_of_masks(source):
    metric = measure(source, draw_answers(source))
    result = EvaluationResult("test", source.classes, metric, 0)
    low, high = result.figures["ap_low"], result.figures["ap_high"]
    assert low < result.figures["ap"] < high
    head, rows = metric.table()
    assert "AP %" in head and len(rows) == len(source.classes)


def test_objects_are_read_back_from_a_map(source):
    objects = source.targets.of(0)
    size = tuple(objects.sizes[0].tolist())
    values = objects.read_map(0, size)
    again = read_objects(values)
    assert np.array_equal(again.read_map(0, size) > 0, values > 0)
    assert again.labels.tolist() == objects.labels[np.unique(values[values > 0] >> 16) - 1].tolist()
