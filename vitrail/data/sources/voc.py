"""Pascal VOC's XML files of objects (Everingham et al. 2010): in ``Annotations`` beside ``JPEGImages``, or beside each image."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from unicodedata import normalize
from xml.etree import ElementTree

from vitrail.data.sources.contents import read_head
from vitrail.data.sources.fields import read_document, read_name, read_size
from vitrail.data.sources.labels import RawData
from vitrail.data.sources.objects import Box, ObjectList, ObjectSplits, Read, Size
from vitrail.data.sources.scan import list_files, list_folders, list_images_below
from vitrail.data.sources.splits import SPLITS, divide_by_folder, divide_images
from vitrail.errors import DataError
from vitrail.untrusted.numbers import to_real
from vitrail.untrusted.xml_documents import parse_xml

ANNOTATIONS = ("annotations", "annotation", "xml", "xmls", "labels")  # folders, in any letter case
IMAGES = ("jpegimages", "images", "imgs", "image", "img")
ROOT = re.compile(rb"<annotation[\s/>]")
HEAD = 2**12  # bytes in which the root element begins
KNOWN = frozenset(
    {"name", "bndbox", "difficult", "pose", "truncated", "occluded", "part", "actions", "attributes", "polygon"}
    | {"robndbox", "type", "id", "point", "segmented", "deleted", "verified", "occlusion", "score", "confidence"}
)
KNOWN_OF_FILE = frozenset(
    {"folder", "filename", "path", "source", "size", "segmented", "object", "owner", "database", "verified"}
)
TRUE, FALSE = ("1", "true", "yes"), ("", "0", "false", "no", "unspecified")


def find_voc(root: Path) -> Read | None:
    """Finds XML files of VOC: in a folder, in ``Annotations``, or in folders of splits."""
    return None if next(_list_files(root), None) is None else partial(read_voc, root)


def read_voc(root: Path, *, outlines: bool = False) -> RawData:
    """Reads the objects of a VOC folder, by the lists of ``ImageSets/Main``, or by the folders of splits that the images lie in.

    Coordinates count pixels from 1 and include the last; ``difficult`` objects are crowds. ``outlines`` are those of
    ``polygon``, which some tools add. Raises `DataError` if no image is found, or a list cannot be read.
    """
    files, lost = _pair_files(root)
    images, splits = sorted(files), ObjectSplits(root, outlines=outlines)
    divided, _, notes = divide_images(root, images, "ImageSets/Main") or (divide_by_folder(images), "", [])
    for split, keys in divided.items():
        objects = splits[split]
        for key in keys:
            if (path := files[key]) is None:
                objects.note("images without an annotation file, left out", key)
            else:
                _read_one(path, key, objects)
        objects.convention.check(root)
    splits.first.remarks += notes
    for path in lost:
        splits.first.note("annotation files whose image is not found, or has the name of another, left out", path.name)
    return "VOC objects", splits.finish()


def _list_files(root: Path) -> Iterator[Path]:
    """The XML files of VOC in the folders where tools write them, in order."""
    for above in (root, *list_folders(root, *SPLITS)):
        inside = list_folders(above, *ANNOTATIONS)
        for folder in (above, *inside, *(path for each in inside for path in list_folders(each))):
            for path in list_files(folder, ".xml"):
                if ROOT.search(read_head(path, HEAD).replace(b"\0", b"")):  # UTF-16 has zeros between
                    yield path


def _pair_files(root: Path) -> tuple[dict[str, Path | None], list[Path]]:
    """The annotation file of each image in the folders that annotations belong to, None without; and files without an image."""
    by_stem: dict[str, list[PurePosixPath]] = {}
    for key in list_images_below(root):
        by_stem.setdefault(normalize("NFC", PurePosixPath(key).stem), []).append(PurePosixPath(key))
    files: dict[str, Path | None] = {}
    lost = []
    for path in _list_files(root):
        inside = PurePosixPath(path.relative_to(root).as_posix())
        if image := _choose_image(inside, by_stem.get(normalize("NFC", path.stem), ())):
            files[str(image)] = path
        else:
            lost.append(path)
    if not files:
        what = f"the images of the VOC annotations in {root} are not found, e.g. that of {lost[0].name}"
        raise DataError(what, f"put the images beside the annotations, or into {root / 'JPEGImages'}")
    used = {PurePosixPath(key).parent for key in files}
    rest = [str(image) for images in by_stem.values() for image in images if image.parent in used]
    return dict.fromkeys(rest) | files, lost


def _choose_image(annotation: PurePosixPath, images: Sequence[PurePosixPath]) -> PurePosixPath | None:
    """Chooses an image with the name of an annotation: in its folder, in a folder of images beside that, or the only one."""
    same = [part for part in annotation.parent.parts if part.lower() not in ANNOTATIONS]

    def rank(image: PurePosixPath) -> int:
        if image.parent == annotation.parent:
            return 0
        if [part for part in image.parent.parts if part.lower() not in IMAGES] == same:
            return 1 if image.parent.name.lower() in IMAGES else 2
        return 3

    nearest = min(map(rank, images), default=0)
    best = [image for image in images if rank(image) == nearest]
    return best[0] if len(best) == 1 else None


def _read_one(path: Path, key: str, objects: ObjectList) -> None:
    """Adds the image ``key`` and the objects of its annotation file."""
    try:
        tree = read_document(path, "XML", parse_xml)
    except DataError as error:
        return objects.reject(key, error.what)
    size = (0, 0)
    with objects.rejecting(f"{key}, its size"):
        if (stated := tree.find("size")) is not None:
            size = read_size(stated.findtext("height"), stated.findtext("width"))
    objects.note_unknown([child.tag for child in tree], KNOWN_OF_FILE, key)
    outlined = objects.find_outlined(key, size)
    found = []
    for number, entry in enumerate(tree.iter("object"), 1):
        objects.note_unknown([child.tag for child in entry], KNOWN, key)
        with objects.rejecting(f"{key}, object {number}"):
            found.append(_read_object(entry, outlined))
    objects.add(key, size, found)


def _read_object(entry: ElementTree.Element, outlined: Size | None) -> Box:
    name, difficult = read_name(entry.findtext("name"), "the name"), (entry.findtext("difficult") or "").strip().lower()
    if difficult not in (*TRUE, *FALSE):
        raise ValueError(f"difficult is {difficult!r:.40}, not 0 or 1")
    if (bounds := entry.find("bndbox")) is not None:
        left, top, right, bottom = (_number(bounds, corner) for corner in ("xmin", "ymin", "xmax", "ymax"))
        # an object without area in its file has none here, though its last pixel is included
        empty = right <= left or bottom <= top
        corners = (left - 1, top - 1, right - empty, bottom - empty)
        box = Box(name, corners, given=(left, top, right, bottom))
    elif (turned := entry.find("robndbox")) is not None:
        x, y, width, height = (_number(turned, part) for part in ("cx", "cy", "w", "h"))
        corners = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        box = Box.of_rectangle(name, corners, math.degrees(_number(turned, "angle")))
        box.filled = False
    else:
        raise ValueError("it has no bndbox")
    box.crowd = difficult in TRUE
    if outlined and (polygon := entry.find("polygon")) is not None:  # the corners x1, y1, x2, y2, ...
        numbers = range(1, len(polygon) // 2 + 1)
        corners = [(_number(polygon, f"x{number}"), _number(polygon, f"y{number}")) for number in numbers]
        box.outline = Box.of_polygon(name, corners, outlined).outline
    return box


def _number(parent: ElementTree.Element, name: str) -> float:
    text = parent.findtext(name)
    if text is None:
        raise ValueError(f"{parent.tag} has no {name}")
    return to_real(text, name)
