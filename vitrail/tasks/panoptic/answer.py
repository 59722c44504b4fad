"""The segments of a picture, things and stuff, of which each pixel has one at most, and their files as COCO has them.

H and W of the picture, K classes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.sources.annotations import OutlinedObjects
from vitrail.errors import ConfigError
from vitrail.files import replace_file
from vitrail.images.masks import IGNORED
from vitrail.images.rle import Rle
from vitrail.markup import Markup, encode_image, tag
from vitrail.rows import SHOWN
from vitrail.tasks.answer import Answer, AnswerFiles
from vitrail.tasks.dense.answer import PlacedAnswer, list_classes
from vitrail.tasks.dense.drawing import Colour, class_colours, tint_classes
from vitrail.tasks.instances.answer import Instances
from vitrail.tasks.segmentation.answer import Segmentation


class Segment(NamedTuple):
    """A thing, or all stuff of a class: its pixels, and the smallest box around them, (left, top, right, bottom)."""

    label: str
    thing: bool
    score: float
    area: int
    box: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Panoptic(PlacedAnswer):
    """The segments of one picture, which do not overlap.

    Args:
        ids: (H, W) int32, k in the pixels of ``segments[k - 1]``, 0 in those of none (void).
        segments: the most certain first, each with at least one pixel.
        classes: the names of all classes.
        things: (K,) whether each class is one of things, which are counted, or of stuff.
    """

    ids: NDArray[np.int32]
    segments: tuple[Segment, ...]
    classes: tuple[str, ...]
    things: tuple[bool, ...]

    @classmethod
    def of_objects(cls, objects: OutlinedObjects, classes: Sequence[str], things: Sequence[bool]) -> Self:
        """The annotated segments of one image, with crowds, in their order. Raises `BadImage` as `OutlinedObjects.masks`."""
        height, width = objects.find_painted_size(0)
        columns, segments = np.zeros(height * width, np.int32), []
        for number, (mask, label) in enumerate(zip(objects.masks(), objects.labels.tolist()), 1):
            mask.paint(columns, number)
            segments.append(Segment(classes[label], things[label], 1.0, mask.area, mask.box))
        ids = np.ascontiguousarray(columns.reshape(width, height).T)
        return cls(ids, tuple(segments), tuple(classes), tuple(things))

    @property
    def colours(self) -> dict[str, Colour]:
        """The colour of each class as red, green and blue from 0 to 255."""
        return class_colours(self.classes)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The index of the class of each segment."""
        return np.array([self.classes.index(segment.label) for segment in self.segments], np.int64)

    def row(self) -> dict[str, Any]:
        """The number of segments, and how many of each class there are, as in "person 2, sky 1"."""
        counts = Counter(segment.label for segment in self.segments).most_common()
        return {"segments": len(self.segments), "labels": ", ".join(f"{label} {count}" for label, count in counts)}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each segment: id, label, thing, score, area, x0, y0, x1, y1. Without any one row without values."""
        names = ("id", "label", "thing", "score", "area", "x0", "y0", "x1", "y1")
        if not self.segments:
            return [dict.fromkeys(names)]
        rows = ((label, thing, round(score, 6), area, *box) for label, thing, score, area, box in self.segments)
        return [dict(zip(names, (number, *row))) for number, row in enumerate(rows, 1)]

    def to_json(self) -> dict[str, Any]:
        height, width = self.ids.shape
        drawn = {"size": [height, width], "png": b64encode(self.to_png()).decode()}
        listed = enumerate(self.segments, 1)
        segments = [{"id": number, **each._asdict(), "box": each.box} for number, each in listed]
        return {"width": width, "height": height, "segments": segments, "map": drawn}

    def to_png(self) -> bytes:
        """The ids as the colours of a PNG: red + 256 green + 65,536 blue."""
        colours = self.ids.astype("<u4")[..., None].view(np.uint8)[..., :3]
        return encode_image(Image.fromarray(np.ascontiguousarray(colours)), "PNG")

    def to_segmentation(self) -> Segmentation:
        """The class of every pixel; void is 255, which is not tinted, and counts in no class's share of the picture.

        Raises `ConfigError` for more than 255 classes.
        """
        if len(self.classes) > IGNORED:
            what = f"{len(self.classes)} classes, and a map of classes holds {IGNORED} at most"
            raise ConfigError(what, "use the ids and the segments")
        return Segmentation(self._map_classes(self.classes), self.classes, key=self.key)

    def _map_classes(self, names: Sequence[str]) -> NDArray[np.uint8]:
        """(H, W) the index in ``names`` of the class of each pixel, `IGNORED` in all others."""
        indices = [names.index(each.label) if each.label in names else IGNORED for each in self.segments]
        return np.array([IGNORED, *indices], np.uint8)[self.ids]

    def to_instances(self) -> Instances:
        """The things alone, as objects with masks."""
        size = self.ids.shape[0], self.ids.shape[1]
        found = [(number, each) for number, each in enumerate(self.segments, 1) if each.thing]
        boxes = np.array([each.box for _, each in found], np.float32).reshape(-1, 4)
        scores = np.array([each.score for _, each in found], np.float32)
        labels, masks = tuple(each.label for _, each in found), []
        for (number, _), (left, top, right, bottom) in zip(found, boxes.astype(int).tolist()):
            masks.append(Rle.of_patch(self.ids[top:bottom, left:right] == number, (left, top), size))
        return Instances(boxes, scores, labels, size, self.classes, masks=tuple(masks), key=self.key)

    def draw_over(self, image: Image.Image, captions: Sequence[str] | None = None) -> Image.Image:
        """A copy of the picture with tinted stuff, and with things as `Instances` draws them, with one caption for each."""
        stuff = list(dict.fromkeys(segment.label for segment in self.segments if not segment.thing))
        tinted = tint_classes(image, self._map_classes(stuff), stuff, self.colours)
        return self.to_instances().draw_over(tinted, captions)

    def show(self) -> Markup:
        """A line for each segment: the colour of its class, its name, and its share of the picture."""
        if not self.segments:
            return tag("div", "no segments")
        count, shown, pixels = len(self.segments), self.segments[:SHOWN], self.ids.size
        more = tag("div", f"and {count - SHOWN:,} more") if count > SHOWN else None
        return list_classes(
            ((each.label, self.colours[each.label], f"{each.area / pixels:.1%}") for each in shown), more
        )


class PanopticFiles(AnswerFiles):
    """COCO's panoptic format: a PNG for each image, in its size, whose colours are the ids of segments, and ``panoptic.json``.

    The id is red + 256 green + 65,536 blue; 0 is none. Ids of images and categories count from 1.
    """

    suffix, each = "", ".png"

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.number = 0  # of the last image, those that could not be read included
        self.things: dict[str, bool] = {}

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        self.number += 1
        if answer is None:
            return
        assert isinstance(answer, Panoptic)
        self.things = dict(zip(answer.classes, answer.things))
        file, (height, width) = f"{name}{self.each}", answer.ids.shape
        replace_file(self.out / file, answer.to_png())
        segments = []
        for number, (label, _, score, area, (left, top, right, bottom)) in enumerate(answer.segments, 1):
            entry = {"id": number, "category_id": self.classes.index(label) + 1, "area": area}
            segments.append({**entry, "bbox": [left, top, right - left, bottom - top], "iscrowd": 0, "score": score})
        picture = f"{name}{Path(key).suffix}"  # beside its map, where the files are data again
        self.images.append({"id": self.number, "file_name": picture, "height": height, "width": width})
        self.annotations.append({"image_id": self.number, "file_name": file, "segments_info": segments})

    def close(self) -> None:
        flags = [int(self.things.get(name, True)) for name in self.classes]
        named = enumerate(zip(self.classes, flags), 1)
        categories = [{"id": number, "name": name, "isthing": flag} for number, (name, flag) in named]
        content = {"images": self.images, "annotations": self.annotations, "categories": categories}
        replace_file(self.out / "panoptic.json", json.dumps(content, ensure_ascii=False))


FORMATS: Mapping[str, type[AnswerFiles]] = {"coco": PanopticFiles}
