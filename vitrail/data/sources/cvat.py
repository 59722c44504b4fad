"""CVAT's XML file of annotated images ("CVAT for images 1.1"): ``annotations.xml`` beside a folder ``images``."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

from vitrail.data.sources.contents import make_key
from vitrail.data.sources.labels import SPLITS, RawSplit
from vitrail.data.sources.object_lists import Box, Corners, ObjectList, Size, enclose_polygon, read_size
from vitrail.data.sources.xml_files import read_xml
from vitrail.errors import DataError

FILE = "annotations.xml"
IMAGES = ("images", "")
WITHOUT_AREA = ("polyline", "points", "skeleton", "cuboid")


def is_cvat(root: Path) -> bool:
    """Whether a folder has an ``annotations.xml``."""
    return (root / FILE).is_file()


def read_cvat(root: Path, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    """The objects of ``annotations.xml`` by the subset of each image.

    Of a polygon, ellipse, mask or rotated box the upright box is taken, and with ``outlines`` the polygon, too; points and
    lines are left out.

    Raises:
        DataError: a file that cannot be parsed, or an image that does not exist.
    """
    path = root / FILE
    tree = read_xml(path)
    parts: dict[str, ObjectList] = {}
    try:
        declared = [name.text.strip() for name in tree.iterfind("meta//labels/label/name") if name.text]
        for image in tree.iterfind("image"):
            subset = image.get("subset") or ""
            objects = parts.setdefault(SPLITS.get(subset.lower(), "train"), ObjectList())
            key = _find_image(root, image.attrib["name"], subset)
            for kind in WITHOUT_AREA:
                for _ in image.iterfind(kind):
                    objects.note(f"shapes without area ({kind}), left out", key)
            size = read_size(image.attrib["height"], image.attrib["width"])
            outlined = objects.find_outlined(key, size, root) if outlines else None
            found = (_read_shape(shape, outlined) for shape in image)
            objects.add(key, size, [box for box in found if box is not None])
    except (KeyError, ValueError) as error:
        what = f"{path} cannot be read: {type(error).__name__}: {error}"
        raise DataError(what, "export it again as 'CVAT for images 1.1'") from error
    if not parts:
        raise DataError(f"{path} has no images", "export it again as 'CVAT for images 1.1'")
    names = tuple(dict.fromkeys([*declared, *sorted(set().union(*(part.names() for part in parts.values())))]))
    return f"CVAT objects ({FILE})", {split: part.split(str(root), names) for split, part in parts.items()}


def _find_image(root: Path, name: str, subset: str) -> str:
    """The path of an image below ``root``."""
    for folder in IMAGES:
        for inside in (f"{subset}/{name}", name) if subset else (name,):
            if (path := root / folder / inside).is_file():
                return make_key(path, root)
    what = f"{root / FILE} names the image {name!r}, which is not found"
    raise DataError(what, f"put the images into {root / IMAGES[0]}, or export them with the annotations")


def _read_shape(shape: ElementTree.Element, outlined: Size | None) -> Box | None:
    """The object of a shape, of a polygon with its outline if the image's size is given as ``outlined``; None without area."""
    if shape.tag == "polygon":
        pairs = (point.split(",") for point in shape.attrib["points"].split(";"))
        return enclose_polygon(shape.attrib["label"], [(float(x), float(y)) for x, y in pairs], outlined)
    if shape.tag == "box":
        box = _turn(_numbers(shape, "xtl", "ytl", "xbr", "ybr"), float(shape.get("rotation", 0)))
    elif shape.tag == "ellipse":
        x, y, across, down = _numbers(shape, "cx", "cy", "rx", "ry")
        box = x - across, y - down, x + across, y + down
    elif shape.tag == "mask":
        left, top, width, height = _numbers(shape, "left", "top", "width", "height")
        box = left, top, left + width, top + height
    else:
        return None
    return Box(shape.attrib["label"], box)


def _numbers(shape: ElementTree.Element, *names: str) -> Corners:
    first, second, third, fourth = (float(shape.attrib[name]) for name in names)
    return first, second, third, fourth


def _turn(box: Corners, degrees: float) -> Corners:
    """The upright box around a box that is turned about its centre."""
    if not math.isfinite(degrees):
        raise ValueError(f"a box that is turned by {degrees} degrees")
    left, top, right, bottom = box
    cosine, sine = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    wide, tall = right - left, bottom - top
    x, y = (left + right) / 2, (top + bottom) / 2
    across, down = (wide * cosine + tall * sine) / 2, (wide * sine + tall * cosine) / 2
    return x - across, y - down, x + across, y + down
