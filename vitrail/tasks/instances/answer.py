"""The objects on a picture with their masks, and their files: COCO's results, YOLO's outlines and maps of the objects' numbers.

n objects, H and W of the picture.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.files import replace_file
from vitrail.images.rle import Rle, polygon_area, trace_outlines
from vitrail.markup import encode_image
from vitrail.tasks.answer import Answer, AnswerFiles
from vitrail.tasks.dense.drawing import draw_masks
from vitrail.tasks.detection.answer import CocoResults, Detections, FoundBoxes, YoloFiles
from vitrail.text import plural

COLUMNS = ("label", "score", "area", "x0", "y0", "x1", "y1")  # of objects.csv, after path and id

MaskFormat = Literal["rle", "polygon", "none"]
MASK_FORMATS: Mapping[MaskFormat, Callable[[Rle], dict[str, Any]]] = {
    "rle": lambda mask: {"mask": mask.to_coco()},
    "polygon": lambda mask: {"mask": {"size": list(mask.size), "polygons": trace_outlines(mask)}},
    "none": lambda mask: {},
}


@dataclass(frozen=True, eq=False)
class Instances(Detections):
    """The objects on one picture, the most certain first, each with its mask.

    Args:
        masks: one for each object, of the picture's ``size``.
    """

    masks: tuple[Rle, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        assert len(self.masks) == len(self), f"{len(self.masks)} masks of {len(self)} objects"
        assert all(mask.size == self.size for mask in self.masks), "masks of another size than the picture"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each object as those of `Detections`, and its area in pixels."""
        areas = [mask.area for mask in self.masks] or [None]
        return [{**row, "area": area} for row, area in zip(super().rows(), areas)]

    def to_json(self, masks: MaskFormat = "rle") -> dict[str, Any]:
        """As the server sends it, ``masks`` as COCO's compressed run lengths or polygons; with "none" only their areas."""
        found = super().to_json()
        write = MASK_FORMATS[masks]
        objects = (
            {**each, "area": mask.area, **write(mask)} for each, mask in zip(found["objects"], self.masks, strict=True)
        )
        return {**found, "objects": list(objects)}

    def to_masks(self) -> NDArray[np.bool_]:
        """The pixels of each object: (n, H, W)."""
        return np.array([mask.to_mask() for mask in self.masks], bool).reshape(len(self), *self.size)

    def to_found(self, file_name: str) -> FoundBoxes:
        return replace(super().to_found(file_name), masks=self.masks)

    def draw_over(self, image: Image.Image, captions: Sequence[str] | None = None) -> Image.Image:
        return draw_masks(image, self.masks, *self._place(image, captions))


class YoloSegments(YoloFiles):
    """A text file for each image with a line for each object: the number of its class, and the outline of its largest part.

    The outline is x y x y ..., as fractions of the image. Six digits are exact enough for the part to be read again without the
    change of a pixel, with its holes filled. ``classes.txt`` has the name of each class in a line of its own.
    """

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        self.lost: Counter[str] = Counter()

    def list_places(self, answer: Detections) -> list[list[float]]:
        assert isinstance(answer, Instances)
        return [self._place_outline(mask) for mask in answer.masks]

    def _place_outline(self, mask: Rle) -> list[float]:
        outlines = trace_outlines(mask)
        if not outlines:
            self.lost["empty"] += 1
            return []
        self.lost["parts"] += len(outlines) - 1
        self.lost["parted"] += len(outlines) > 1
        self.lost["holed"] += sum(map(polygon_area, outlines)) > mask.area
        return (np.reshape(outlines[0], (-1, 2)) / mask.size[::-1]).ravel().tolist()

    def close(self) -> None:
        super().close()
        parts, parted = plural(self.lost["parts"], "smaller part"), plural(self.lost["parted"], "object")
        said = {
            "parts": f"{parts} of {parted} left out",
            "holed": f"the holes of {plural(self.lost['holed'], 'object')} filled",
            "empty": f"{plural(self.lost['empty'], 'object')} without pixels left out",
        }
        if lost := [words for name, words in said.items() if self.lost[name]]:
            self.notes.append(f"{', '.join(lost)}: a line has one outline")


class IdMaps(AnswerFiles):
    """A PNG of 16 bits for each image, in its size, whose pixels are the numbers of objects; 0 is none.

    Number 1 is the most certain object, which lies on top. ``objects.csv`` has a row for each object, with the area of its whole
    mask, whatever lies on it.
    """

    suffix, each = "", ".png"

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        self.rows: list[list[Any]] = []
        self.hidden = 0

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        if answer is None:
            return
        assert isinstance(answer, Instances) and len(answer) < 2**16
        ids = np.zeros(answer.size, np.uint16)  # (H, W)
        for number, mask in reversed(list(enumerate(answer.masks, 1))):
            patch, (left, top) = mask.to_patch()
            height, width = patch.shape
            ids[top : top + height, left : left + width][patch] = number
        replace_file(self.out / f"{name}{self.each}", encode_image(Image.fromarray(ids), "PNG"))
        self.hidden += len(answer) - int(np.count_nonzero(np.unique(ids)))
        for number, row in enumerate(answer.rows() if answer.labels else (), 1):
            self.rows.append([key, number, *(row[column] for column in COLUMNS)])

    def close(self) -> None:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["path", "id", *COLUMNS])
        writer.writerows(self.rows)
        replace_file(self.out / "objects.csv", table.getvalue())
        if self.hidden:
            self.notes.append(
                f"{plural(self.hidden, 'object')} wholly covered by others, or without pixels, not in the maps"
            )


FORMATS: Mapping[str, type[AnswerFiles]] = {"coco": CocoResults, "yolo": YoloSegments, "ids": IdMaps}
