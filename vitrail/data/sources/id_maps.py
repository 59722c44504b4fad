"""Maps in which every pixel names its object: folders of images and id maps, and Cityscapes' instanceIds (Cordts et al. 2016).

Masks are id maps, and not masks of classes, if their folder has one of the names `ID_MAPS`, or if most of them have 16 or 32 bits
and values above 255. H and W of a map.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from os.path import basename
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.contents import choose_evenly, open_file, read_file, read_upright_size
from vitrail.data.sources.labels import RawData, name_some
from vitrail.data.sources.mask_folders import (
    AFTER_IDS,
    CITYSCAPES,
    ID_MAPS,
    INSTANCE_IDS,
    MaskFolder,
    find_masks,
    pair_splits,
)
from vitrail.data.sources.mask_names import find_class_table
from vitrail.data.sources.objects import Box, ObjectList, ObjectSplits, Read, Size
from vitrail.data.sources.painted import BACKGROUND
from vitrail.data.sources.scan import list_images_below
from vitrail.images.decode import BadImage, header_size, open_header
from vitrail.images.masks import IGNORED, WIDE_VOID, decode_ids
from vitrail.images.rle import Rle, split_ids

PROBES = 8  # maps whose values tell what they are
OBJECT = "object"  # the class without a name
# Cityscapes: classes with objects by their id; the value is 1000 times the id plus the number of the object, or the id of a group
THINGS = {
    **{24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 29: "caravan", 30: "trailer", 31: "train"},
    **{32: "motorcycle", 33: "bicycle"},
}
STUFF = range(24)


class MapFile(NamedTuple):
    """The map of an image, both relative to the data, and the size that an annotation states, (0, 0) if it does not."""

    key: str
    path: str
    stated: Size = (0, 0)


class Segments(NamedTuple):
    """The masks of a map by their ids, without 0, and its (H, W)."""

    size: Size
    masks: dict[int, Rle]


def find_id_maps(root: Path) -> Read | None:
    """Finds the id maps of a folder, or of Cityscapes."""
    if folders := find_masks(root, ID_MAPS, AFTER_IDS):
        return partial(read_id_maps, root, folders, f"in {folders[0].masks}/ every value but 0 is an object")
    folders = find_masks(root, after=())
    inside = dict.fromkeys(each.masks for each in folders if each.masks != each.images)
    maps = [f"{folder}/{path}" for folder in inside for path in list_images_below(root / folder)]
    if any(os.path.splitext(path)[0].endswith(INSTANCE_IDS) for path in maps):
        return partial(read_cityscapes, root, folders)
    probes = [root / maps[row] for row in choose_evenly(len(maps), PROBES).tolist()]
    if 2 * sum(map(_has_wide_values, probes)) <= len(probes):
        return None
    why = f"{folders[0].masks}/ has values above {IGNORED}: every value but 0 is an object"
    return partial(read_id_maps, root, folders, why)


def _has_wide_values(path: Path) -> bool:
    with suppress(BadImage):
        with open_file(path) as file, open_header(file) as image:
            is_wide = image.mode.startswith(("I", "F"))
        if is_wide:
            ids = decode_ids(read_file(path))
            return bool(((ids > IGNORED) & ~np.isin(ids, WIDE_VOID)).any())
    return False


def read_id_maps(root: Path, folders: Sequence[MaskFolder], why: str, *, outlines: bool = False) -> RawData:
    """Reads the objects of id maps, one for each value but 0, of the only class that `find_class_table` finds, else of "object".

    ``why`` says how the maps are known as such. Splits are those of `pair_splits`. Raises `DataError` as these functions do.
    """
    splits = ObjectSplits(root, outlines=outlines)
    table = find_class_table(root, [f"{each.masks}/map" for each in folders if each.images != each.masks])
    names = [each.name for each in table.classes if each.name.lower() != BACKGROUND] if table else []
    name = names[0] if len(names) == 1 else OBJECT
    said = _read_all(splits, root, folders, lambda value: (name, False))
    if table and len(names) != 1:
        what = f"{table.path.name} names {len(names)} classes, and id maps do not say the class of an object"
        splits.first.remarks.append(f"{what}: all are {OBJECT!r}")
    return f"images and id maps ({why}){said}", splits.finish([name])


def read_cityscapes(
    root: Path, folders: Sequence[MaskFolder], *, outlines: bool = False, stuff: bool = False
) -> RawData:
    """Reads the objects of Cityscapes' ``instanceIds``; groups of objects are crowds. Raises `DataError` as `pair_splits`.

    With ``stuff`` they are the segments of the 19 classes that are evaluated.
    """
    splits = ObjectSplits(root, outlines=outlines)
    if stuff:
        splits.things.update((name, number in THINGS) for number, name in CITYSCAPES.items())
        said = _read_all(splits, root, folders, _name_segment, INSTANCE_IDS)
        return f"Cityscapes segments (of instanceIds){said}", splits.finish(CITYSCAPES.values())
    said = _read_all(splits, root, folders, _name_cityscapes, INSTANCE_IDS)
    layout = "Cityscapes objects (of instanceIds, without classes that have no objects; --task segment takes masks)"
    return layout + said, splits.finish(THINGS.values())


def _name_cityscapes(value: int) -> tuple[str, bool] | None:
    number = value // 1000 if value >= 1000 else value
    if number in THINGS:
        return THINGS[number], value < 1000
    if value in STUFF:
        return None
    raise ValueError(f"the value {value}, which Cityscapes does not have")


def _name_segment(value: int) -> tuple[str, bool] | None:
    thing = _name_cityscapes(value)
    if value < 1000 and value not in THINGS:
        return (CITYSCAPES[value], False) if value in CITYSCAPES else None
    return thing if thing and thing[0] in CITYSCAPES.values() else None


# the class of a value, and whether it is a crowd; None if it is no object
Meaning = Callable[[int], tuple[str, bool] | None]


def _read_all(
    splits: ObjectSplits, root: Path, folders: Sequence[MaskFolder], meaning: Meaning, ending: str = ""
) -> str:
    """Adds the images of all maps to their splits, and returns what the layout says of them."""
    parts, said, notes = pair_splits(root, folders, ending)
    for split, part in parts.items():
        files = [MapFile(key, path) for key, path in part.mask_of.items()]
        for file, found in zip(files, trace_maps(root, files, decode_ids)):
            if isinstance(found, str):
                splits[split].reject(f"{file.key}, its map {basename(file.path)}", found)
            else:
                _add(file, found, splits[split], meaning)
        splits[split].remarks += name_some("images without a map, left out", part.missing)
    splits.first.remarks += notes
    return said


def _add(file: MapFile, found: Segments, objects: ObjectList, meaning: Meaning) -> None:
    boxes = []
    for value, mask in found.masks.items():
        with objects.rejecting(f"{file.key}, its map {basename(file.path)}"):
            if named := meaning(value):
                name, crowd = named
                boxes.append(Box(name, mask.box, crowd, mask.area, outline=mask if objects.outlines else None))
    objects.add(file.key, found.size, boxes)


def trace_maps(
    root: Path, files: Sequence[MapFile], decode: Callable[[bytes], NDArray[Any]]
) -> Iterator[Segments | str]:
    """Reads maps with ``decode`` in threads. One that cannot be used gives the reason; one of another size is not decoded."""

    def trace(file: MapFile) -> Segments | str:
        try:
            content = read_file(root / file.path)
            size = header_size(content)
            picture = read_upright_size(root / file.key)
            for other, what in ((picture, "the upright image"), (file.stated, "its annotation")):
                if size and other and all(other) and size != other:
                    return f"it has {size[1]} x {size[0]} pixels, {what} {other[1]} x {other[0]}"
            ids = decode(content)
            return Segments(ids.shape, split_ids(ids))
        except BadImage as error:
            return error.reason
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(trace, files)
