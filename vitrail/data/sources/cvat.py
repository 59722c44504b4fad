"""CVAT's XML file of annotated images ("CVAT for images 1.1"): ``annotations.xml`` beside a folder ``images``."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.contents import read_head
from vitrail.data.sources.fields import read_document, read_name, read_size
from vitrail.data.sources.labels import RawData
from vitrail.data.sources.objects import Box, Corners, ObjectList, ObjectSplits, Read, Size
from vitrail.data.sources.scan import NamedFiles
from vitrail.data.sources.splits import WHOLE, find_split
from vitrail.errors import DataError
from vitrail.images.rle import Rle
from vitrail.untrusted.numbers import to_real, to_whole
from vitrail.untrusted.xml_documents import parse_xml

FILE = "annotations.xml"
SHAPES = ("polygon", "box", "ellipse", "mask")  # that have an area
KNOWN = frozenset(
    {"label", "occluded", "source", "z_order", "rotation", "points", "xtl", "ytl", "xbr", "ybr", "cx", "cy", "rx", "ry"}
    | {"rle", "left", "top", "width", "height", "group_id", "outside", "keyframe", "frame", "attributes", "id"}
)
KNOWN_OF_IMAGE = frozenset(
    {"id", "name", "subset", "width", "height", "task_id", "job_id", "project_id", "media_type", "frame"}
)


def find_cvat(root: Path) -> Read | None:
    """Finds an ``annotations.xml`` of CVAT in a folder."""
    is_cvat = (root / FILE).is_file() and b"<annotation>" not in read_head(root / FILE, 2**12)
    return partial(read_cvat, root) if is_cvat else None


def read_cvat(root: Path, *, outlines: bool = False) -> RawData:
    """Reads the objects of ``annotations.xml`` by the subset of each image; points, lines and tags are left out.

    Other shapes give their upright box, and with ``outlines`` themselves. Raises `DataError` for a file without images.
    """
    path = root / FILE
    tree = read_document(path, "XML", parse_xml)
    splits, files = ObjectSplits(root, outlines=outlines), NamedFiles(root)
    declared = [name.text.strip() for name in tree.iterfind("meta//labels/label/name") if name.text]
    for number, image in enumerate(tree.iterfind("image")):
        subset = image.get("subset") or ""
        split = find_split(subset)
        objects = splits[split or "train"]
        if split is None and subset.lower() not in ("", *WHOLE):
            objects.note(f"images of the subset {subset!r:.40}, used for training", image.get("name", FILE))
        with objects.rejecting(f"{FILE}, image {image.get('id', number)}"):
            name = image.attrib["name"]
            inside = (f"{subset}/{name}", name) if subset else (name,)
            if (key := files.find_key(*(f"images/{each}" for each in inside), *inside)) is None:
                raise ValueError(f"the image {name!r:.80} is not found: put the images into {root / 'images'}")
            _read_image(image, key, objects)
    if not splits:
        kinds = sorted({child.tag for child in tree} - {"version", "meta"})
        what = f"{path} has no images{', but ' + ', '.join(kinds)[:80] if kinds else ''}"
        raise DataError(what, "export it again as 'CVAT for images 1.1'")
    for child in tree:
        if child.tag not in ("version", "meta", "image"):
            splits.first.note(f"elements {child.tag!r:.40}, not used", FILE)
    return f"CVAT objects ({FILE})", splits.finish(declared)


def _read_image(image: ElementTree.Element, key: str, objects: ObjectList) -> None:
    objects.note_unknown(image.attrib, KNOWN_OF_IMAGE, key)
    size = read_size(image.get("height"), image.get("width"))
    outlined = objects.find_outlined(key, size)
    found = []
    for number, shape in enumerate(image, 1):
        if shape.tag not in SHAPES:
            objects.note(f"shapes without area ({shape.tag:.40}), left out", key)
            continue
        objects.note_unknown(shape.attrib, KNOWN, key)
        with objects.rejecting(f"{key}, {shape.tag} {number}"):
            found.append(_read_shape(shape, outlined))
    objects.add(key, size, found)


def _read_shape(shape: ElementTree.Element, outlined: Size | None) -> Box:
    name = read_name(shape.attrib["label"])
    degrees = to_real(shape.get("rotation", 0), "the rotation")
    if shape.tag == "polygon":
        pairs = (point.split(",") for point in shape.attrib["points"].split(";"))
        return Box.of_polygon(name, [(to_real(x, "x"), to_real(y, "y")) for x, y in pairs], outlined)
    if shape.tag == "box":
        return Box.of_rectangle(name, _numbers(shape, "xtl", "ytl", "xbr", "ybr"), degrees, outlined)
    if shape.tag == "ellipse":
        x, y, across, down = _numbers(shape, "cx", "cy", "rx", "ry")
        return Box.of_ellipse(name, (x, y), (across, down), degrees, outlined)
    left, top, width, height = _numbers(shape, "left", "top", "width", "height")
    if not math.isfinite(left + top):
        raise ValueError(f"a mask at ({left}, {top})")
    corner = round(left), round(top)
    outline = Rle.of_patch(_read_mask(shape, outlined), corner, outlined) if outlined else None
    return Box(name, (left, top, left + width, top + height), outline=outline)


def _read_mask(shape: ElementTree.Element, most: Size) -> NDArray[np.bool_]:
    """The pixels of a brush mask (h, w) from its run lengths: row by row, beginning with pixels outside of it."""
    height, width = (to_whole(shape.attrib[side], side, most=limit) for side, limit in zip(("height", "width"), most))
    counts = np.array([to_whole(count, "a run", most=height * width) for count in shape.attrib["rle"].split(",")])
    if counts.sum() != height * width:
        raise ValueError(f"the runs of a mask have {counts.sum():,} pixels, and it has {width} x {height}")
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(height, width)


def _numbers(shape: ElementTree.Element, *names: str) -> Corners:
    first, second, third, fourth = (to_real(shape.attrib[name], name) for name in names)
    return first, second, third, fourth
