"""Pascal VOC's XML files of objects (Everingham et al. 2010): a folder ``Annotations`` beside ``JPEGImages``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from vitrail.data.sources.contents import read_lines
from vitrail.data.sources.folders import Scan
from vitrail.data.sources.labels import SPLITS, RawSplit, sort_names
from vitrail.data.sources.object_lists import Box, ObjectList, read_size
from vitrail.data.sources.xml_files import read_xml
from vitrail.errors import DataError

IMAGES = ("JPEGImages", "images", "")


def is_voc(root: Path) -> bool:
    """Whether a folder has ``Annotations`` with XML files."""
    return any((root / "Annotations").glob("*.xml"))


def read_voc(root: Path, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    """The objects of a VOC folder, by the splits of ``ImageSets/Main``.

    Coordinates of VOC count pixels from 1 and include the last; ``difficult`` objects are ignored as crowds are. The format
    has no ``outlines``.

    Raises:
        DataError: a file that cannot be parsed, or a list that names an image without files.
    """
    images = _find_images(root)
    annotated = {path.stem: path for path in sorted((root / "Annotations").glob("*.xml"))}
    lists = _read_lists(root) or {"train": sorted(annotated)}
    parts = {}
    for split, stems in lists.items():
        objects = ObjectList()
        for stem in stems:
            if stem not in images:
                raise DataError(
                    f"the image {stem!r} of the split {split} is not in {root}", "add it, or remove it from ImageSets"
                )
            if stem in annotated:
                objects.add(images[stem], *_read_one(annotated[stem]))
            else:
                objects.note("images without an annotation file, left out", images[stem])
        objects.convention.check(root / "Annotations")
        parts[split] = objects
    for stem in images.keys() - annotated.keys() if lists.keys() == {"train"} else ():
        parts["train"].note("images without an annotation file, left out", images[stem])
    names = sort_names(set().union(*(part.names() for part in parts.values())))
    return "VOC objects", {split: part.split(str(root), names) for split, part in parts.items()}


def _find_images(root: Path) -> dict[str, str]:
    """The path of each image below ``root``, by its name without extension."""
    for name in IMAGES:
        if (root / name).is_dir() and (paths := Scan().list_folder(str(root / name))[1]):
            return {Path(path).stem: f"{name}/{path}" if name else path for path in paths}
    raise DataError(f"{root} has annotations and no images", f"put the images into {root / IMAGES[0]}")


def _read_lists(root: Path) -> dict[str, list[str]]:
    """The images of each split, where ``ImageSets/Main`` lists them; ``trainval`` is not used beside ``train``."""
    folder = root / "ImageSets" / "Main"
    lists = {}
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        if split := SPLITS.get(path.stem.lower()):
            lines = read_lines(path, "give a list of names, one a line")
            lists[split] = [line.split()[0] for line in lines if line.strip()]
    return lists


def _read_one(path: Path) -> tuple[tuple[int, int], list[Box]]:
    """The (height, width) that a file states, or (0, 0), and its objects."""
    tree = read_xml(path)
    try:
        size = tree.find("size")
        sides = (0, 0) if size is None else read_size(size.findtext("height"), size.findtext("width"))
        return sides, list(_read_boxes(tree))
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", "export the annotations again") from error


def _read_boxes(tree: ElementTree.Element) -> Iterator[Box]:
    for entry in tree.iter("object"):
        name, box = (entry.findtext("name") or "").strip(), entry.find("bndbox")
        if not name or box is None:
            raise ValueError("an object has no name or no bndbox")
        left, top, right, bottom = (_number(box, corner) for corner in ("xmin", "ymin", "xmax", "ymax"))
        difficult = (entry.findtext("difficult") or "0").strip() == "1"
        # an object without area in its file has none here, though its last pixel is included
        empty = right <= left or bottom <= top
        box = (left - 1, top - 1, right - empty, bottom - empty)
        yield Box(name, box, difficult, given=(left, top, right, bottom))


def _number(parent: ElementTree.Element, name: str) -> float:
    text = parent.findtext(name)
    if text is None:
        raise ValueError(f"{parent.tag} has no {name}")
    return float(text)
