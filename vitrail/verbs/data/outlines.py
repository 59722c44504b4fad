"""What `vitrail data check` says of objects with outlines: things, stuff, void pixels, and objects that an input shows small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vitrail.data.sources.annotations import OutlinedObjects, PanopticObjects
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.layout_warnings import MEASURED
from vitrail.data.sources.source import Splits, list_splits
from vitrail.images.decode import BadImage

SMALL = 8  # pixels of the longer side of a box; of less a map of stride 4 shows next to nothing


def describe_outlines(splits: Splits) -> Iterator[str]:
    """Yields sentences on the splits with `OutlinedObjects`; of void at most `MEASURED` images of each split are measured."""
    for split, source in list_splits(splits).items():
        targets = source.targets
        if not isinstance(targets, OutlinedObjects) or splits.train is None:
            continue
        is_object = ~targets.crowd
        if isinstance(targets, PanopticObjects):
            is_thing = np.array(targets.things, bool)[targets.labels]
            yield f"{is_thing.sum():,} segments of things and {(~is_thing).sum():,} of stuff in {split}{_measure_void(targets)}"
            is_object &= is_thing
        from vitrail.models import MODELS  # with torch, which no other data need
        from vitrail.runtime.device import find_device
        from vitrail.tasks import find_task
        from vitrail.training.network import choose_size

        pixels = find_task(targets.task).pixels["cuda" if find_device(None).type == "cuda" else "cpu"]
        size = choose_size(splits.train, MODELS["vit-ti16"].cells[-1], pixels)
        scales = (size / targets.sizes.clip(min=1)).min(1).repeat(targets.lengths())  # of each object, as "fit" has it
        sides = (targets.boxes[:, 2:] - targets.boxes[:, :2]).max(1) * scales
        if len(small := np.flatnonzero(is_object & (sides < SMALL))):
            count = f"{len(small):,} of {is_object.sum():,} objects in {split} are smaller than {SMALL} px"
            first = source.keys[int(np.searchsorted(targets.ends, small[0], side="right"))]
            yield f"{count} at {size[1]} x {size[0]}, the size of the model's input (first: {first})"


def _measure_void(targets: PanopticObjects) -> str:
    covered, total = 0, 0
    for row in choose_evenly(len(targets), MEASURED).tolist():
        try:
            masks, (height, width) = targets.of(row).masks(), targets.find_painted_size(row)
        except BadImage:
            continue
        covered, total = covered + sum(mask.area for mask in masks), total + height * width
    return f"; {1 - covered / total:.1%} of the pixels are void" if total else ""
