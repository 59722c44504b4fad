"""Drawing the annotation of a picture over it: boxes with their names, or classes of pixels as tints.

H and W of the picture, M objects.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.sources.annotations import Objects
from vitrail.tasks.dense.class_colours import class_colours
from vitrail.tasks.dense.drawing import draw_boxes, tint_classes


def draw_annotation(
    image: Image.Image,
    target: Objects | NDArray[np.uint8],
    classes: Sequence[str],
    size: tuple[int, int],
    captions: Sequence[str] | None = None,
) -> Image.Image:
    """A copy of a picture, in RGB and of any size, with its annotation.

    Args:
        target: the objects of the picture, or the class of each of its pixels (H, W).
        classes: the names of all classes.
        size: (height, width) of the picture in which ``target`` is measured.
        captions: (M,) of the objects; by default their names, with "(ignored)" behind those of crowds.
    """
    colours = class_colours(classes)
    if not isinstance(target, Objects):
        return tint_classes(image, target, classes, colours)
    names = [classes[label] for label in target.labels.tolist()]
    if captions is None:
        captions = [f"{name} (ignored)" if crowd else name for name, crowd in zip(names, target.crowd.tolist())]
    boxes = target.boxes * np.tile([image.width / size[1], image.height / size[0]], 2)
    return draw_boxes(image, boxes, captions, [colours[name] for name in names])


def scale_to_show(image: Image.Image, side: int) -> Image.Image:
    """A picture with at most ``side`` pixels on its longer side; one of up to half as many is enlarged with hard edges."""
    longer = max(image.size)
    times = side // longer if longer <= side // 2 else min(side / longer, 1)
    resampling = Image.Resampling.NEAREST if times > 1 else Image.Resampling.LANCZOS
    return image.resize((max(round(image.width * times), 1), max(round(image.height * times), 1)), resampling)
