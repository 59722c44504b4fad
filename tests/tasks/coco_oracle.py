"""pycocotools on our structures, and hostile random sets to evaluate."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np

from vitrail.tasks.detection.matching import Detected, Truth

SIZE = (60, 80)


def describe(box, label: int, image: int) -> dict:
    """An annotation without its id; our labels are ids of categories as they are."""
    x0, y0, x1, y1 = map(float, box)
    return {"image_id": image, "category_id": int(label), "bbox": [x0, y0, x1 - x0, y1 - y0]}


def evaluate(found: Sequence[Detected], true: Sequence[Truth], classes: int, size: tuple[int, int] = SIZE):
    """pycocotools' ``COCOeval`` of all images, after its ``summarize``."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations, results = [], []
    for image, (detected, truth) in enumerate(zip(found, true)):
        for label, crowd, area, box in zip(truth.labels, truth.crowd, truth.areas, truth.boxes):
            further = {"iscrowd": int(crowd), "area": float(area)}
            # the ids begin with 1: pycocotools takes a match with an object of id 0 for none
            annotations.append({"id": len(annotations) + 1, **describe(box, label, image), **further})
        for label, score, box in zip(detected.labels, detected.scores, detected.boxes):
            results.append(describe(box, label, image) | {"score": float(score)})
    height, width = size
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image, "height": height, "width": width} for image in range(len(true))],
            "annotations": annotations,
            "categories": [{"id": label, "name": str(label)} for label in range(classes)],
        }
        coco.createIndex()
        evaluated = COCOeval(coco, coco.loadRes(results) if results else COCO(), "bbox")
        if not results:
            evaluated.cocoDt.dataset = {**coco.dataset, "annotations": []}
            evaluated.cocoDt.createIndex()
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return evaluated


def random_boxes(generator: np.random.Generator, count: int) -> np.ndarray:
    """On a coarse grid, so that overlaps are equal and on the thresholds; exact in float32."""
    corners = generator.integers(0, 24, (count, 2)) * 2.5
    return np.concatenate([corners, corners + generator.integers(1, 9, (count, 2)) * 2.5], 1).astype(np.float32)


def jitter(generator: np.random.Generator, boxes: np.ndarray, scale: float) -> np.ndarray:
    """Boxes about so many pixels off."""
    moved = boxes + generator.normal(0, scale, boxes.shape)
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 0.5)
    return moved.astype(np.float32)


def random_set(generator: np.random.Generator) -> tuple[list[Detected], list[Truth], int]:
    """Crowds, ties, absent classes, empty images, areas unlike the boxes, more than 100 detections of a class."""
    classes = int(generator.integers(1, 6))
    present = generator.integers(0, classes, generator.integers(1, classes + 1))
    ties, crowds, many = generator.random(3) < (0.5, 0.5, 0.3)
    found, true = [], []
    for _ in range(generator.integers(1, 7)):
        count = int(generator.choice([0, 1, 5, 12]))
        boxes = random_boxes(generator, count)
        boxes[count // 2 :] = boxes[: count - count // 2] + 2.5 * generator.integers(-1, 2, (count - count // 2, 1))
        crowd = generator.random(count) < 0.3 * crowds
        areas = np.exp(generator.uniform(np.log(50), np.log(2e4), count))
        areas[::3] = generator.choice([32.0**2, 96.0**2], len(areas[::3]))  # the ends of the ranges
        true.append(Truth(generator.choice(present, count), crowd, areas, boxes))
        spurious = int(generator.choice([0, 3, 130 if many else 10]))
        again = boxes.repeat(generator.integers(0, 3), 0)
        answers = np.concatenate(
            [again + 2.5 * generator.integers(-1, 2, again.shape), random_boxes(generator, spurious)]
        )
        answers[:, 2:] = np.maximum(answers[:, 2:], answers[:, :2] + 2.5)
        scores = generator.random(len(answers))
        scores = scores.round(1) if ties else scores
        labels = generator.integers(0, classes, len(answers)) if not many else np.full(len(answers), present[0])
        labels[: len(again)] = true[-1].labels.repeat(len(again) // max(count, 1))
        answers = answers.astype(np.float32)
        found.append(Detected(labels, scores, answers))
    return found, true, classes
