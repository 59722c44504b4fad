"""Label Studio's JSON exports: tasks with annotations ("JSON"), or images with their labels ("JSON-MIN").

Coordinates in these files are percentages of the width and height of the picture. A shape is a region, whose ``value`` has the
coordinates and the labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.contents import read_head
from vitrail.data.sources.fields import has_keys, read_document, read_name, read_points, read_size
from vitrail.data.sources.labels import RawData
from vitrail.data.sources.objects import Box, ObjectList, ObjectSplits, Read, Size
from vitrail.data.sources.scan import find_only_file, list_images_below
from vitrail.data.sources.splits import find_folder_split
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.limits import PIXELS
from vitrail.untrusted.numbers import to_real

TASKS = ("data", "annotations", "result")  # keys of the export "JSON"
SIZES = ("original_width", "original_height")  # of JSON-MIN
HEAD = 64  # bytes in which the list begins
HASHED = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio puts before the name of an uploaded image
KNOWN = frozenset(
    {"x", "y", "width", "height", "rotation", "points", "closed", "radiusX", "radiusY"}
    | {"format", "rle", "maskDataURL", "imageDataURL"}
)
AREAS = ("rectanglelabels", "polygonlabels", "ellipselabels", "brushlabels", "labels")


def find_label_studio(place: Path) -> Read | None:
    """Finds the export in a folder, or at a file; no JSON file is parsed. Raises `DataError` for several."""
    path = find_only_file(place, _is_export, "exports of Label Studio", ".json")
    return partial(read_label_studio, path) if path else None


def _is_export(path: Path) -> bool:
    is_list = read_head(path, HEAD).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return is_list and (has_keys(path, TASKS) or has_keys(path, SIZES))


def read_label_studio(path: Path, *, outlines: bool = False) -> RawData:
    """Reads the objects of an export, whose images lie in the folder of the file or below it, and are found by their names.

    With ``outlines`` they keep their shapes. Of an image the first annotation that was not cancelled is used. Raises
    `DataError` for another file, or if no image is found.
    """
    root, tasks = path.parent, read_document(path, "JSON", parse_json)
    if not isinstance(tasks, list):
        raise DataError(f"{path} is no list of tasks", "export the annotations as JSON or JSON-MIN")
    keys: dict[str, str] = {}
    for key in list_images_below(root):
        name = normalize("NFC", PurePosixPath(key).name)
        keys[name] = "" if name in keys else key  # several images of one name: none can be meant
    splits = ObjectSplits(root, outlines=outlines)
    for number, task in enumerate(tasks, 1):
        fields = task if isinstance(task, dict) else {}
        where = f"{path.name}, task {fields.get('id', number)!s:.40}"
        name = normalize("NFC", _name_image(fields))
        key = keys.get(name, keys.get(HASHED.sub("", name), ""))
        objects = splits[find_folder_split(key) or "train"]
        with objects.rejecting(where):
            if not key:
                raise ValueError(f"its image is not found: {name!r:.80}")
            _read_task(fields, key, where, objects)
    if not any(part.images for part in splits.values()):
        what = "; ".join([f"{path} has no annotated image that is found", *splits["train"].examples[:1]])
        raise DataError(what, f"put the images into {root / 'images'}")
    splits.drop_empty()
    return f"Label Studio objects ({path.name})", splits.finish()


def _name_image(task: Mapping[str, Any]) -> str:
    """The file name of the image of a task: of the first URL or path of an image under ``data``, or in the task itself."""
    data = task.get("data", task)
    for value in data.values() if isinstance(data, dict) else ():
        try:
            url = urlsplit(value.replace("\\", "/") if isinstance(value, str) else "")
        except ValueError:
            continue
        name = PurePosixPath(unquote(parse_qs(url.query).get("d", [url.path])[0])).name
        if name.rpartition(".")[2].lower() in EXTENSIONS:
            return name
    return ""


def _read_task(task: Mapping[str, Any], key: str, where: str, objects: ObjectList) -> None:
    """Adds the image of a task, and its regions."""
    regions = _list_regions(task, key, objects)
    if regions is None:
        return objects.note("images without an annotation, left out", key)
    size: Size = (0, 0)
    traced: Size | None = None
    masked = any("rle" in region["value"] for region in regions)
    found: list[Box] = []
    labelled = {str(region.get("id")) for region in regions if _find_label(region)}
    for number, region in enumerate(regions, 1):
        kind = str(region.get("type") or next((name for name in region["value"] if name in AREAS), "shape"))
        with objects.rejecting(f"{where}, region {region.get('id', number)!s:.40}"):
            if not _find_label(region) and str(region.get("id")) in labelled:
                continue  # its labels are in a region of the same id
            if not {"x", "points", "rle"} & region["value"].keys() or kind.startswith(("keypoint", "video")):
                objects.note(f"results without area ({kind:.40}), not used", key)
                continue
            if "data" in task:
                objects.note_unknown(region["value"], KNOWN | {*AREAS}, key)
            stated = read_size(region.get("original_height"), region.get("original_width"))
            if all(size) and stated != size:
                here, there = (f"{width} x {height}" for height, width in (stated, size))
                raise ValueError(f"its picture has {here} pixels, and {there} in other regions")
            if stated != size:
                size, traced = stated, objects.find_outlined(key, stated, masked=masked)
            packed = "rle" in region["value"]
            if packed and traced is None:  # a few bytes can say any size
                raise ValueError(f"the brush mask is for {size[1]} x {size[0]} pixels, and the image has another size")
            found.append(_read_region(region, size, traced if objects.outlines or packed else None))
    objects.add(key, size, found)


def _list_regions(task: Mapping[str, Any], key: str, objects: ObjectList) -> list[dict[str, Any]] | None:
    """The regions of a task as the export "JSON" has them; None for a task that nobody annotated."""
    if "data" not in task:
        values = [value for value in task.values() if isinstance(value, list)]
        regions = [{**entry, "value": entry} for value in values for entry in value if isinstance(entry, dict)]
        return regions if values else None
    annotations = task.get("annotations") or []
    if not isinstance(annotations, list) or not all(isinstance(each, dict) for each in annotations):
        raise ValueError(f"its annotations are {annotations!s:.80}")
    annotations = [each for each in annotations if not each.get("was_cancelled")]
    if len(annotations) > 1:
        objects.note("images with several annotations, of which the first is used", key)
    if not annotations:
        return None
    results = annotations[0]["result"]
    if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
        raise ValueError(f"its result is {results!s:.80}")
    return [result if isinstance(result.get("value"), dict) else {**result, "value": {}} for result in results]


def _find_label(region: Mapping[str, Any]) -> list[Any]:
    return next((value for name, value in region["value"].items() if name in AREAS and isinstance(value, list)), [])


def _read_region(region: Mapping[str, Any], size: Size, outlined: Size | None) -> Box:
    value, labels = region["value"], _find_label(region)
    if len(labels) != 1:
        raise ValueError(f"it has the labels {labels!s:.80}, not one")
    if not all(size):
        raise ValueError("it has no original_width and original_height")
    name, (height, width) = read_name(labels[0]), size

    def read(name: str, side: int) -> float:
        """A percentage of a side, in pixels."""
        return to_real(value[name], name) * side / 100

    degrees = to_real(value.get("rotation") or 0, "the rotation")
    if "rle" in value:
        return Box.of_patch(name, _read_brush(value["rle"], size), (0, 0), outlined)
    if "points" in value:
        points = read_points(value["points"])
        return Box.of_polygon(name, [(x * width / 100, y * height / 100) for x, y in points], outlined)
    x, y = read("x", width), read("y", height)
    if "radiusX" in value:
        return Box.of_ellipse(name, (x, y), (read("radiusX", width), read("radiusY", height)), degrees, outlined)
    box = x, y, x + read("width", width), y + read("height", height)
    return Box.of_rectangle(name, box, degrees, outlined, about=(x, y))  # the upper left corner


def _read_brush(values: Any, size: Size) -> NDArray[np.bool_]:
    """The pixels of a brush mask (H, W) from Label Studio's packed bits: four channels a pixel, of which the last is the mask.

    A header has the number of values (32 bits), the bits of a value less one (5), and four lengths of run lengths less one (4
    each). Blocks follow: whether one value repeats (1 bit), which of the lengths is used (2), the number of values less one, and
    the value, or all of them.
    """
    if not isinstance(values, list) or not all(isinstance(each, int) and 0 <= each < 256 for each in values):
        raise ValueError('"rle" must be a list of integers from 0 to 255')
    bits, used = "".join(f"{each:08b}" for each in values), 0

    def read(width: int) -> int:
        nonlocal used
        used += width
        if used > len(bits):
            raise ValueError("run lengths that are cut off")
        return int(bits[used - width : used], 2)

    count, word = read(32), read(5) + 1
    if count != 4 * size[0] * size[1] or count > 4 * PIXELS:
        raise ValueError(f"a mask of {count:,} values for {size[1]} x {size[0]} pixels")
    if word != 8:
        raise ValueError(f"a mask of values of {word} bits, not 8")
    lengths = [read(4) + 1 for _ in range(4)]
    mask, filled = np.zeros(count, np.uint8), 0
    while filled < count:
        repeats = read(1)
        end = filled + 1 + read(lengths[read(2)])
        run = [read(word) for _ in range(1 if repeats else end - filled)]
        mask[filled:end] = run[: count - filled]
        filled = end
    return mask.reshape(*size, 4)[..., 3] > 0
