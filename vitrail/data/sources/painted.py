"""Targets for every pixel from the outlines of objects: maps of classes, and the outlines themselves, of which none is missing.

n images, H and W of the upright picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from os.path import basename
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.annotations import DRAWN_BOX, LabelMaps, Objects, OutlinedObjects
from vitrail.data.sources.contents import Contents, Strings
from vitrail.data.sources.labels import Labels, RawSplit, name_some
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.images.masks import IGNORED
from vitrail.images.rle import Rle
from vitrail.stamps import Stamped

BACKGROUND = "background"
UNTRACED = {
    b"": "objects without an outline, whose boxes are ignored",
    DRAWN_BOX: "rectangles among other shapes, painted as they were drawn",
}


@dataclass(frozen=True, eq=False)
class PaintedMaps(Contents):
    """For each of n images (H, W, 1) uint8, 0 for the background, k + 1 for the k-th class; small objects lie over large ones.

    The box of an object without an outline is `IGNORED`: which of its pixels belong to the object is not known.
    """

    objects: Objects
    keys: Strings
    kind = "arrays"

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        objects = self.objects.of(row)
        size = objects.find_painted_size(0)
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
    """The splits with maps of classes, of which the first is the background. Raises `DataError` if no object has an outline."""
    _check_outlines(splits, "segmentation needs a class for every pixel")
    return {name: _paint_split(split) for name, split in splits.items()}


def outline_splits(splits: Mapping[str, RawSplit]) -> dict[str, RawSplit]:
    """The splits with an outline for every object: of a drawn rectangle its own, and the box of one without is a crowd.

    Raises `DataError` if no object has an outline.
    """
    _check_outlines(splits, "instances needs the outline of every object")
    return {name: _outline_split(split) for name, split in splits.items()}


def _check_outlines(splits: Mapping[str, RawSplit], needed: str) -> None:
    if {outline for split in splits.values() for outline in _objects(split).outlines or ()} <= {b"", DRAWN_BOX}:
        notes = "\n".join(note for split in splits.values() for note in split.notes)
        remedy = "give polygons or masks, or train with --task detect"
        raise DataError(f"the data have boxes without outlines, and {needed}", remedy, value=notes)


def _outline_split(split: RawSplit) -> RawSplit:
    assert split.labels is not None
    objects = _objects(split)
    outlines, crowd = list(objects.outlines or ()), objects.crowd.copy()
    images = np.repeat(np.arange(len(objects)), objects.lengths())
    for place in np.flatnonzero([outline in UNTRACED for outline in outlines]).tolist():
        crowd[place] |= outlines[place] == b""
        with suppress(BadImage):  # it is one when the image is read
            size, box = objects.find_painted_size(int(images[place])), objects.boxes[place].round().astype(int)
            outlines[place] = Rle.of_box(box.tolist(), size).to_text().encode()
    flat: dict[str, Any] = {field.name: getattr(objects, field.name) for field in fields(objects)}
    targets = OutlinedObjects(**flat | {"crowd": crowd, "outlines": tuple(outlines)})
    return replace(split, labels=replace(split.labels, values=targets), notes=(*split.notes, *_note_untraced(split)))


def _paint_split(split: RawSplit) -> RawSplit:
    assert split.labels is not None
    objects, keys = _objects(split), split.contents.keys
    names = (BACKGROUND, *split.labels.names)
    if len(names) > IGNORED:
        raise DataError(f"the data have {len(names)} classes with the background", f"give at most {IGNORED}")
    values = np.array([*range(len(names)), IGNORED], np.uint8)
    maps = LabelMaps(PaintedMaps(objects, keys), values, values)
    notes = (*split.notes, *_note_untraced(split))
    return replace(split, labels=Labels(names, maps, declared=True), notes=notes)


def _note_untraced(split: RawSplit) -> Iterator[str]:
    """Yields notes on the objects whose outline was not drawn, with their number."""
    objects, keys = _objects(split), split.contents.keys
    images = np.repeat(np.arange(len(objects)), objects.lengths()).tolist()  # of each object
    for outline, what in UNTRACED.items():
        chosen = (keys[image] for image, own in zip(images, objects.outlines or ()) if own == outline)
        yield from name_some(what, map(basename, chosen))


def _objects(split: RawSplit) -> Objects:
    assert split.labels is not None and isinstance(split.labels.values, Objects), "a split with objects"
    return split.labels.values
