"""Pictures of a report with their annotation and the answer of the model beside it.

H and W of a picture, D detections, M objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.analysis.palette import DARK, parse_colour
from vitrail.analysis.render import to_rgb, to_uint8
from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Item, Source
from vitrail.images.masks import IGNORED
from vitrail.markup import image_uri
from vitrail.models.backbone import eval_mode
from vitrail.reports.facts import EvaluatedRun
from vitrail.tasks import Task
from vitrail.tasks.dense.drawing import BACKGROUND, class_colours, draw_annotation, scale_to_show, to_hex
from vitrail.tasks.detection.detector import ObjectTask, is_shown
from vitrail.tasks.detection.matching import ERRORS, MAX_DETECTIONS, NONE
from vitrail.tasks.detection.metric import BoxMetric
from vitrail.tasks.panoptic.answer import Panoptic
from vitrail.tasks.panoptic.metric import PanopticMetric, match_answer
from vitrail.tasks.regression.metric import NumberMetric
from vitrail.tasks.segmentation.metric import MapMetric
from vitrail.tasks.segmentation.segmenter import MapTask
from vitrail.tasks.user_images import to_pixels
from vitrail.text import listing, percent

WORST, EXAMPLES = 6, 4  # pictures that are shown
SIDE = 560  # pixels of the longer side of a picture
NAMED = 8  # boxes of a picture up to which all have captions; of more only what is wrong is written
DIMMED = 0.45  # brightness of a picture under its errors
WRONG = parse_colour(DARK["ruby"])  # of pixels


@dataclass(frozen=True)
class Pane:
    """A picture, its caption, and the text for those who do not see it."""

    image: Image.Image
    caption: str
    alt: str

    @property
    def source(self) -> str:
        """The picture as a data URI."""
        return image_uri(self.image, "jpeg")


@dataclass(frozen=True)
class Sample:
    """One picture of the data: what is annotated and what is answered, the figures of the picture, and the classes on it."""

    key: str
    panes: tuple[Pane, ...]
    words: str
    classes: frozenset[str]


def draw_samples(model: Task, source: Source, keys: Sequence[str], threshold: float) -> tuple[Sample, ...]:
    """Returns the pictures of ``source`` with these keys, for an `ObjectTask`, a `MapTask` or of `Panoptic`.

    ``threshold`` is the least score of a box that is shown.
    """
    rows = {key: row for row, key in enumerate(map(str, source.keys))}
    items = (source.read(rows[key]) for key in keys)
    if isinstance(model, ObjectTask):
        return tuple(draw_boxes_of(model, item, threshold) for item in items)
    draw: Callable[[Any, Item], Sample] = draw_maps_of if isinstance(model, MapTask) else draw_segments_of
    return tuple(draw(model, item) for item in items)


def draw_boxes_of(model: ObjectTask, item: Item, threshold: float) -> Sample:
    """Returns the boxes of one picture, matched at an IoU of 0.5 as they are evaluated, with words on those that are wrong."""
    image, outputs, frames = compute_outputs(model, item)
    height, width = map(int, frames.pictures[0])
    found = model.place_in_pictures(model.detect(outputs), frames)[0]
    # those of a class are at most as many as are matched
    answer = model.answer(found[is_shown(found, threshold)][:MAX_DETECTIONS], (height, width))
    matches = model.match(answer, item.target)
    is_missed = matches.counted[:, 0] & np.isneginf(matches.claims[:, 0])  # (M,)
    true, answered = [model.classes[label] for label in item.target.labels], answer.labels
    notes = ["missed" if missed else "" for missed in is_missed]
    notes = ["ignored" if crowd else note for crowd, note in zip(item.target.crowd, notes)]
    kinds = ["" if kind == NONE else ERRORS[kind] for kind in matches.errors]
    named = [f"{name} {score:.2f}" for name, score in zip(answered, answer.scores.tolist())]
    drawn = answer.draw_over(image, caption_boxes(named, kinds))
    annotated = draw_annotation(image, item.target, model.classes, (height, width), caption_boxes(true, notes))
    wrong = Counter(filter(None, kinds)) + Counter({"missed": int(is_missed.sum())})
    errors = listing([f"{count} {kind}" for kind, count in wrong.most_common()]) or "no errors"
    panes = (
        Pane(annotated, f"annotation: {count_names(true)}", f"{item.key} with its annotation: {count_names(true)}"),
        Pane(
            drawn, f"answer: {count_names(answered)}", f"{item.key} with the answer: {count_names(answered)}; {errors}"
        ),
    )
    return Sample(item.key, panes, errors, frozenset((*true, *answered)))


def caption_boxes(names: Sequence[str], notes: Sequence[str]) -> list[str]:
    """Returns a caption for each box: its name, and its note if it has one; of many boxes the note alone."""
    if len(names) > NAMED:
        return list(notes)
    return [f"{name}: {note}" if note else name for name, note in zip(names, notes)]


def count_names(names: Iterable[str]) -> str:
    """Returns how often each name occurs: "3 cat, 1 dog"."""
    return listing([f"{count} {name}" for name, count in Counter(names).most_common()]) or "nothing"


def draw_maps_of(model: MapTask, item: Item) -> Sample:
    """Returns the classes of the pixels of one picture, and where they are wrong."""
    image, outputs, frames = compute_outputs(model, item)
    answer, true = model.decode(outputs, frames)[0], item.target  # (H, W)
    is_known = true != IGNORED
    is_wrong = is_known & (answer.map != true)
    share = float(is_wrong.sum() / max(is_known.sum(), 1))
    shares = [describe_shares(map, model.classes) for map in (true, answer.map)]
    panes = (
        Pane(
            draw_annotation(image, true, model.classes, true.shape),
            f"annotation: {shares[0]}",
            f"{item.key} with its annotation: {shares[0]}",
        ),
        Pane(answer.draw_over(image), f"answer: {shares[1]}", f"{item.key} with the answer: {shares[1]}"),
        Pane(mark_wrong(image, is_wrong), "wrong pixels", f"{item.key} with the wrong pixels in red"),
    )
    present = np.unique([*true[is_known], *np.unique(answer.map)])
    return Sample(
        item.key, panes, f"{percent(share)} of the pixels are wrong", frozenset(model.classes[k] for k in present)
    )


def caption_numbers(evaluated: EvaluatedRun, metric: NumberMetric, row: int) -> Sample:
    """Returns the picture in this row of the metric, with its numbers and those of the answer as words."""
    item = evaluated.source.read(evaluated.source.rows[metric.keys[row]])
    pairs = zip(metric.names, metric.targets[row].tolist(), metric.predicted[row].tolist())
    words = [f"{name}: true {true:.4g}, predicted {found:.4g}" for name, true, found in pairs]
    pane = Pane(show_picture(item, evaluated.model.preprocessing), words[0], item.key)
    return Sample(item.key, (pane,), listing(words[1:]), frozenset())


def draw_segments_of(model: Task, item: Item) -> Sample:
    """Returns the segments of one picture, and the pixels of those that do not match."""
    image, outputs, frames = compute_outputs(model, item)
    answer = model.decode(outputs, frames)[0]
    assert isinstance(answer, Panoptic), model.name
    true, crowd = Panoptic.of_objects(item.target, answer.classes, answer.things), item.target.crowd
    matched = match_answer(answer, item.target)
    is_right = np.pad(matched.ious > 0, ((1, 0), (1, 0)))  # (M + 1, D + 1), the first of each void
    is_wrong = np.append(False, ~crowd)[true.ids] & ~is_right[true.ids, answer.ids]
    _, right, false, missed = matched.counts.sum(1).astype(int).tolist()
    captions = [each.label + " (ignored)" * group for each, group in zip(true.segments, crowd.tolist()) if each.thing]
    names, answered = (count_names(segment.label for segment in each.segments) for each in (true, answer))
    panes = (
        Pane(true.draw_over(image, captions), f"annotation: {names}", f"{item.key} with its annotation: {names}"),
        Pane(answer.draw_over(image), f"answer: {answered}", f"{item.key} with the answer: {answered}"),
        Pane(mark_wrong(image, is_wrong), "wrong pixels", f"{item.key} with the wrong pixels in red"),
    )
    present = frozenset(segment.label for segment in (*true.segments, *answer.segments))
    return Sample(item.key, panes, f"{right} right, {false} false, {missed} missed", present)


def describe_shares(map: NDArray[np.uint8], classes: Sequence[str], most: int = 4) -> str:
    """Returns the largest classes of a map (H, W) with their shares: "Sky 40 %, Road 30 %"."""
    counts = np.bincount(map.reshape(-1), minlength=256)[: len(classes)]
    ranked = [place for place in np.argsort(-counts, kind="stable")[:most] if counts[place]]
    return ", ".join(f"{classes[place]} {percent(counts[place] / map.size, 0)}" for place in ranked) or "no class"


def mark_wrong(image: Image.Image, is_wrong: NDArray[np.bool_]) -> Image.Image:
    """Returns the picture in dark grey with the wrong pixels (H, W) in red."""
    mask = Image.fromarray(is_wrong.astype(np.uint8) * 255).resize(image.size, Image.Resampling.BILINEAR)
    grey = np.asarray(image.convert("L"), np.float32)[..., None] * DIMMED
    strength = np.asarray(mask, np.float32)[..., None] / 255 * 0.8
    return Image.fromarray((grey + strength * (WRONG - grey)).astype(np.uint8))


def compute_outputs(model: Task, item: Item) -> tuple[Image.Image, Tensor, Frames]:
    """Returns the picture in the size in which it is shown, the model's outputs for it, and what they show of it."""
    pixels, size = model.transform.read(item.content, item.key)
    with eval_mode(model) as device:
        outputs = model(pixels[None].to(device)).float()
    return show_picture(item, model.preprocessing), outputs, Frames.seen(model.preprocessing, [size])


def show_picture(item: Item, preprocessing: Preprocessing) -> Image.Image:
    """Returns the picture in the size in which it is shown."""
    picture = np.asarray(to_pixels(item.content, preprocessing))
    return scale_to_show(Image.fromarray(np.ascontiguousarray(to_rgb(to_uint8(picture)))), SIDE)


def draw_chosen(
    evaluated: EvaluatedRun, metric: BoxMetric | MapMetric | NumberMetric | PanopticMetric, threshold: float = 0.0
) -> dict[str, Any]:
    """Returns the pictures with the most errors and others spread evenly over the split, each with the colours on them.

    ``threshold`` is the least score of a box that is shown.
    """
    chosen = {"worst": metric.worst(WORST), "examples": choose_evenly(len(metric.keys), EXAMPLES)}
    shown = {}
    for name, rows in chosen.items():
        if isinstance(metric, NumberMetric):
            samples = tuple(caption_numbers(evaluated, metric, row) for row in rows)
        else:
            keys = [evaluated.result.keys[row] for row in rows]
            samples = draw_samples(evaluated.model, evaluated.source, keys, threshold)
        present = frozenset[str]().union(*(sample.classes for sample in samples))
        colours = {
            name: to_hex(colour)
            for name, colour in class_colours(evaluated.model.classes).items()
            if name in present and name not in BACKGROUND
        }
        shown[name] = {"samples": samples, "colours": colours}
    return shown
