"""Maps of classes that are painted from the outlines of objects: polygons and run lengths as segmentation learns them.

n images, H and W of the upright picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os.path import basename

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.annotations import DRAWN_BOX, Objects
from vitrail.data.sources.contents import Contents, Strings
from vitrail.data.sources.label_maps import IGNORED, LabelMaps
from vitrail.data.sources.labels import Labels, RawSplit, name_some
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.images.rle import Rle
from vitrail.stamps import Stamped
from vitrail.untrusted.limits import PIXELS

BACKGROUND = "background"
UNTRACED = {
    b"": "objects without an outline, whose boxes are ignored (255)",
    DRAWN_BOX: "rectangles among other shapes, painted as they were drawn",
}


@dataclass(frozen=True, eq=False)
class PaintedMaps(Contents):
    """Contents: for each of n images (H, W, 1) uint8, 0 for the background, k + 1 for the k-th class.

    Small objects lie over large ones. The box of an object without an outline is `IGNORED`: which of its pixels belong to the
    object is not known. `Objects.sizes` say how large the pictures are.
    """

    objects: Objects
    keys: Strings
    kind = "arrays"

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        objects = self.objects.of(row)
        height, width = size = (int(objects.sizes[0, 0]), int(objects.sizes[0, 1]))
        if not height or not width:
            raise BadImage("the annotation does not say how large the picture is, so its outlines cannot be painted")
        if height * width > PIXELS:
            raise BadImage(f"the annotation is for {width} x {height} pixels, over the limit of {PIXELS:,}")
        levels = np.zeros(size, np.uint8)
        for place in np.argsort(-objects.areas, kind="stable").tolist():
            label, outline = objects.labels[place] + 1, (objects.outlines or ())[place]
            if outline and outline != DRAWN_BOX:
                levels[Rle.of_text(outline, size).to_mask()] = label
            else:
                left, top, right, bottom = objects.boxes[place].round().astype(int)
                levels[top:bottom, left:right] = label if outline else IGNORED
        return levels[..., None]

    def take(self, rows: NDArray[np.int64]) -> PaintedMaps:
        return PaintedMaps(self.objects[rows], self.keys.take(rows))

    def stamp(self) -> Stamped:
        return Stamped.of_hashes(self.keys, self.objects.hashes())


def paint_splits(splits: Mapping[str, RawSplit]) -> dict[str, RawSplit]:
    """The splits with maps of classes in place of their objects; the first class is the background.

    Raises:
        DataError: no object has an outline, or there are too many classes.
    """
    if {outline for split in splits.values() for outline in _objects(split).outlines or ()} <= {b"", DRAWN_BOX}:
        what = "the data have boxes without outlines, and segmentation needs a class for every pixel"
        notes = "\n".join(note for split in splits.values() for note in split.notes)
        raise DataError(what, "give polygons or masks, or train with --task detect", value=notes)
    return {name: _paint_split(split) for name, split in splits.items()}


def _paint_split(split: RawSplit) -> RawSplit:
    assert split.labels is not None
    objects, keys = _objects(split), split.contents.keys
    names = (BACKGROUND, *split.labels.names)
    if len(names) > IGNORED:
        raise DataError(f"the data have {len(names)} classes with the background", f"give at most {IGNORED}")
    values = np.array([*range(len(names)), IGNORED], np.uint8)
    maps = LabelMaps(PaintedMaps(objects, keys), values, values)
    images = np.repeat(np.arange(len(objects)), objects.lengths()).tolist()  # of each object
    notes: list[str] = []
    for outline, what in UNTRACED.items():
        chosen = (keys[image] for image, own in zip(images, objects.outlines or ()) if own == outline)
        notes += name_some(what, map(basename, chosen))
    return replace(split, labels=Labels(names, maps, declared=True), notes=(*split.notes, *notes))


def _objects(split: RawSplit) -> Objects:
    assert split.labels is not None and isinstance(split.labels.values, Objects), "a split with objects"
    return split.labels.values
