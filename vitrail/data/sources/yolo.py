"""YOLO's text files of objects: a line for each box, polygon, or box with keypoints.

First where the files lie: what a YAML file names, or folders and lists of images beside text files without one. Paths in these
files are often those of another machine, or relative to a folder above, as in the exports of Roboflow and CVAT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.data.sources.contents import Files, Strings, choose_evenly, read_file, read_lines, read_upright_size
from vitrail.data.sources.fields import read_document
from vitrail.data.sources.labels import RawData, RawSplit, name_some
from vitrail.data.sources.objects import Box, ObjectList, ObjectSplits, Read, Size
from vitrail.data.sources.scan import NamedFiles, find_only_file, list_files, list_folders, list_images_below
from vitrail.data.sources.splits import SPLITS, divide_by_folder, divide_images
from vitrail.errors import DataError, find_fault
from vitrail.images.decode import BadImage
from vitrail.untrusted.numbers import to_real, to_whole
from vitrail.untrusted.yaml_documents import parse_yaml

IMAGES, LABELS = ("images", "imgs", "image", "img", "jpegimages"), ("labels", "label")  # folders, in any letter case
KEYS = re.compile(rb"(?m)(?:^|[{,])[ \t\"']*([A-Za-z]+)[\"']?[ \t]*:")
KNOWN = frozenset(
    {*SPLITS, "path", "names", "nc", "kpt_shape", "flip_idx", "kpt_names", "skeleton", "download", "roboflow"}
    | {"license", "version", "author", "description", "minival", "train_label_dir", "date", "url", "task", "channels"}
)
NOTHING = ("", "~", "null", "none")  # values of a split that does not exist
NAMES = ("classes.txt", "obj.names", "predefined_classes.txt", "classes.names", "labels.txt", "_darknet.labels")
SAMPLED = 50  # images whose text files are looked at, evenly spaced
LINE = re.compile(r"\d+(\.0+)?(\s+[-+]?[\d.]+(e[-+]?\d+)?){4,}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class YoloLayout:
    """The images of data in YOLO's format."""

    path: Path  # the YAML file, or the folder, that messages name
    base: Path  # the folder that keys of images are relative to
    images: Mapping[str, list[Path]]  # of each split
    names: Mapping[int, str] | None  # of the classes by number; None if no file has any
    keypoints: int = 0  # numbers that may stand in a line after a box
    notes: tuple[str, ...] = ()  # on what is not used


def find_labels(image: Path) -> Path:
    """Returns the path of the text file of an image: in ``labels`` beside ``images``, in any letter case, or beside the image."""
    parts = list(image.parts)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place].lower() in IMAGES:
            above, usual = Path(*parts[:place]), "labels" if parts[place] == "images" else parts[place]
            if (above / "labels").is_dir():
                usual = "labels"
            elif above.is_dir():
                usual = next((name for name in sorted(os.listdir(above)) if name.lower() in LABELS), usual)
            parts[place] = usual
            break
    return Path(*parts).with_suffix(".txt")


def _is_yolo(path: Path) -> bool:
    """Whether a YAML file names classes and the images of a split. One that cannot be parsed counts as well."""
    try:
        keys = {key.decode() for key in KEYS.findall(read_file(path))}
    except BadImage:
        return False
    if keys.isdisjoint(("names", "nc")) or keys.isdisjoint(SPLITS):
        return False
    try:
        plain = _parse(path)
    except DataError:
        return True
    return any(isinstance(plain.get(split), (str, list)) for split in SPLITS)


def describe_yaml(path: Path) -> YoloLayout:
    """Reads a YAML file, whose paths are relative to its folder or its ``path``, or have an end that exists below the folder."""
    plain = _parse(path)
    names = _read_names(plain, path)
    places = _read_places(plain.get("path") or ".", path) or ["."]
    if len(places) > 1:
        raise DataError(f"{path} has several folders under 'path'", "give one")
    inside = path.parent / places[0]
    base = (inside if os.path.isdir(inside) else path.parent).resolve()
    images = {
        split: [image for place in places for image in _list_images(place, path, base)]
        for split, places in _find_places(plain, path, base).items()
    }
    notes = [f"{path.name}: the key {key!r:.40} is not used" for key in sorted(plain.keys() - KNOWN)]
    if (count := plain.get("nc")) is not None and str(count).strip() != str(len(names)):
        notes.append(f"{path.name}: nc is {count!s:.20}, and there are {len(names)} names")
    used = {os.path.normpath(image) for split in images.values() for image in split}
    rest = [key for key in list_images_below(base) if os.path.normpath(base / key) not in used]
    unused = [Path(key).as_posix() for key in rest if find_labels(base / key).is_file()]
    notes += name_some("images with a text file in no split, not used", unused)
    return YoloLayout(
        path=path, base=base, images=images, names=names, keypoints=_read_keypoints(plain, path), notes=tuple(notes)
    )


def _find_places(plain: Mapping[str, Any], path: Path, base: Path) -> dict[str, list[Path]]:
    """The folders, or lists, of images of each split."""
    files = NamedFiles(base)
    places: dict[str, list[Path]] = {}
    moved = False
    for word, split in SPLITS.items():
        given = [] if plain.get(word) is None else _read_places(plain[word], path)
        if given and split in places:
            raise DataError(f"{path} has several keys for the split {split}, e.g. {word!r}", "keep one of them")
        for place in given:
            if (found := _locate(place, files)) is None:
                what = f"{path} names {base / place}, which does not exist"
                raise DataError(what, "give paths relative to the file, or to its 'path'")
            places.setdefault(split, []).append(found)
            moved |= files.find(place) is None
    if not places:
        raise DataError(f"{path} names no images", "give a folder of images as 'train', and perhaps 'val' and 'test'")
    same = [split for split, found in places.items() if found == places.get("train")]
    if moved and len(same) > 1:
        what = f"the paths of {path} do not exist, and the only folder of that name is {places['train'][0]}"
        raise DataError(f"{what}, for {' and '.join(same)}", "give paths relative to the file")
    return places


def _read_keypoints(plain: Mapping[str, Any], path: Path) -> int:
    """How many numbers of keypoints follow a box."""
    shape = plain.get("kpt_shape")
    if shape is None:
        return 0
    try:
        count, numbers = (to_whole(part, "kpt_shape", most=1000) for part in shape)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} has kpt_shape: {shape!s:.60}", "give [number of keypoints, 2 or 3]") from error
    return count * numbers


def _has_boxes(path: Path) -> bool:
    try:
        lines = read_lines(path, "")
    except DataError:
        return False
    return bool(lines) and all(map(LINE.fullmatch, lines[:10]))


def _find_names(root: Path) -> dict[int, str] | None:
    """The lines of a file of names, in the folder or in that of the text files."""
    for folder in (root, *list_folders(root, *LABELS, *SPLITS)):
        for name in NAMES:
            if (folder / name).is_file():
                return dict(enumerate(read_lines(folder / name, "give one name a line")))
    return None


def _locate(given: str, files: NamedFiles) -> Path | None:
    """The path of a file or folder, or the longest end of it that exists below the folder of ``files``; None without."""
    parts = [part for part in given.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    ends = (given, *("/".join(parts[first:]) for first in range(len(parts))))
    found = next(filter(None, map(files.find, ends)), None)
    return None if found is None else Path(files.root) / found


def _list_images(place: Path, path: Path, base: Path) -> list[Path]:
    """The images of a folder at any depth, or those that a text file lists."""
    if place.is_dir():
        if path.parent.resolve() != (folder := place.resolve()) and path.parent.resolve().is_relative_to(folder):
            raise DataError(f"{path} names the folder {place}, which {path.parent} is in", "name a folder of images")
        if images := list_images_below(place):
            return [place / image for image in images]
        raise DataError(f"{path} names the folder {place}, which has no images", "put the images there")
    if place.suffix.lower() == ".txt" and place.is_file():
        remedy = "give the path of an image in each line"
        if not (lines := read_lines(place, remedy)):
            raise DataError(f"{place} lists no images", remedy)
        if unnamed := [line for line in lines if not Path(line).name]:
            raise DataError(f"{place} has the line {unnamed[0]!r}, which names no image", remedy)
        folders = [NamedFiles(folder) for folder in dict.fromkeys((place.parent, base))]
        located = ((_locate(line, files) for files in folders) for line in lines)
        return [next(filter(None, found), place.parent / line) for line, found in zip(lines, located)]
    what = f"{path} names {place}, which is neither a folder nor a list"
    raise DataError(what, "give folders, or .txt files of paths")


def _parse(path: Path) -> dict[str, Any]:
    parse = partial(parse_yaml, as_text=True)
    plain = read_document(path, "YAML", parse, "give a YAML file with train, val and names")
    return plain if isinstance(plain, dict) else {}


def _read_places(value: Any, path: Path) -> list[str]:
    places = [value] if isinstance(value, str) else value
    if not isinstance(places, list) or not all(isinstance(place, str) and not find_fault(place) for place in places):
        raise DataError(f"{path} has {str(value)!r:.80} where paths should be", "give a path, or a list of paths")
    return [place for place in places if place.strip().lower() not in NOTHING]


def _read_names(plain: Mapping[str, Any], path: Path) -> dict[int, str]:
    names = plain.get("names")
    try:
        if names is None and "nc" in plain:
            names = list(map(str, range(to_whole(plain["nc"], "nc", most=100_000))))
        numbered = dict(enumerate(names)) if isinstance(names, list) else names
        if not isinstance(numbered, dict):
            what = f"the names of {path} are {names!r:.80}"
            raise DataError(what, "give a list of names, or a mapping from numbers to names")
        if unnamed := [name for name in numbered.values() if not isinstance(name, str) or not name.strip()]:
            raise ValueError(f"a name is {unnamed[0]!s:.80}")
        pairs = ((to_whole(number, "the number of a class"), name.strip()) for number, name in numbered.items())
        return dict(sorted(pairs))
    except ValueError as error:
        raise DataError(f"the names of {path} cannot be read: {error}", "give a list of names") from error


BEYOND = 1e-3  # how far a coordinate may lie outside of 0 to 1 by rounding
UNNAMED = "the classes have no names and are named after their numbers: put the names into classes.txt, one a line"


def find_yolo(place: Path) -> Read | None:
    """Finds a YAML file in YOLO's format in a folder, or at a path. Raises `DataError` for several."""
    path = find_only_file(place, _is_yolo, "descriptions of objects", ".yaml", ".yml")
    return (lambda outlines: read_yolo(describe_yaml(path), outlines=outlines)) if path else None


def find_yolo_texts(root: Path) -> Read | None:
    """Finds images beside text files of boxes without a YAML file, in the splits that lists as ``train.txt``, or folders, say."""
    folders = list_folders(root)
    near = [path for path in folders if path.name.lower() in (*SPLITS, *IMAGES) or path.name.startswith("obj_")]
    near.insert(0, root)
    inside = any(list_folders(folder, *LABELS) for folder in near)
    if not inside and not any(list_files(folder, ".txt") for folder in near):
        return None
    keys = list_images_below(root)
    by_split, _, notes = divide_images(root, keys, "") or (divide_by_folder(keys), "", [])
    images = {split: [root / key for key in inside] for split, inside in by_split.items()}
    every = [image for split in images.values() for image in split]
    sample = [every[row] for row in choose_evenly(len(every), SAMPLED).tolist()]
    if not any(_has_boxes(path) for image in sample for path in {find_labels(image), image.with_suffix(".txt")}):
        return None
    layout = YoloLayout(path=root, base=root, images=images, names=_find_names(root), notes=tuple(notes))
    return partial(read_yolo, layout)


def read_yolo(layout: YoloLayout, *, outlines: bool = False) -> RawData:
    """Reads the objects of data in YOLO's format. An image without a text file has no objects.

    With ``outlines`` they keep their polygons. A test split without text files has no labels; another one is a `DataError`.
    """
    splits, files = ObjectSplits(layout.base, outlines=outlines), NamedFiles(layout.base)
    unlabelled: dict[str, RawSplit] = {}
    for split, images in layout.images.items():
        labels = {image: files.find_file(os.fspath(find_labels(image))) for image in images}
        if any(labels.values()):
            _read_split(layout, labels, splits[split])
        elif split == "test" and len(layout.images) > 1:
            keys = sorted(_make_key(image, layout.base) for image in images)
            unlabelled[split] = RawSplit(Files(str(layout.base), Strings(keys)))
        else:
            raise _explain_missing(layout, split, images)
    splits.first.remarks += [*layout.notes, *([UNNAMED] if layout.names is None else [])]
    found = splits.finish(() if layout.names is None else layout.names.values()) | unlabelled
    name = layout.path.name if layout.path != layout.base else "text files"
    return f"YOLO objects ({name})", {split: found[split] for split in layout.images}


def _read_split(layout: YoloLayout, labels: Mapping[Path, str | None], objects: ObjectList) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (image, path), size in zip(labels.items(), pool.map(read_upright_size, labels)):
            key = _make_key(image, layout.base)
            found: list[Box] = []
            if path is None:
                objects.note("images without a text file, taken as images without objects", key)
            elif not size:
                objects.note("images that cannot be read, whose objects are left out", key)
            else:
                found = _read_file(path, layout, size, objects)
            objects.add(key, size or (0, 0), found, stated=False)
    objects.convention.check(f"the text files of {layout.path}")


def _make_key(image: Path | str, base: Path) -> str:
    return os.path.relpath(image, base).replace(os.sep, "/")


def _explain_missing(layout: YoloLayout, split: str, images: Sequence[Path]) -> DataError:
    """The error for a split without any text file; it names those beside the images."""
    wanted = find_labels(images[0])
    what = f"none of the {len(images):,} images of the split {split} in {layout.path} has a text file, e.g. {wanted}"
    if beside := [path for image in images if os.path.isfile(path := image.with_suffix(".txt"))]:
        what += f"; {len(beside):,} text files lie beside the images, e.g. {beside[0].name}"
        return DataError(what, f"move them to {wanted.parent}")
    return DataError(what, "put a text file there for each image, an empty one for an image without objects")


def _read_file(path: str, layout: YoloLayout, size: Size, objects: ObjectList) -> list[Box]:
    found, lines = [], []
    where = _make_key(path, layout.base)
    try:
        lines = read_lines(path, "check the file")
    except DataError as error:
        objects.reject(where, error.what)
    for line in lines:
        with objects.rejecting(f"{where}, the line {line!r:.60}"):
            found.append(_read_line(line, size, layout, objects.outlines))
            if layout.keypoints and len(line.split()) > 5:
                objects.note("keypoints, not used", where)
    return found


def _read_line(line: str, size: Size, layout: YoloLayout, outlines: bool) -> Box:
    """A class and a box (centre x, centre y, width, height), or the corners of a polygon, as fractions of the image."""
    number, *values = line.split()
    try:
        category = to_whole(number, "the class")
        places = [to_real(value, "a coordinate") for value in values]
    except ValueError as error:
        raise ValueError(f"{error}: give a class and four numbers, or a polygon") from error
    name = str(category) if layout.names is None else layout.names.get(category)
    if name is None:
        raise ValueError(f"the class {category}, which has no name: name it in the YAML file or in classes.txt")
    if layout.keypoints and len(places) not in (4, 4 + layout.keypoints):
        raise ValueError(f"{len(places)} numbers, not 4 and those of {layout.keypoints} of keypoints")
    places = places[:4] if layout.keypoints else places
    if len(places) != 4 and (len(places) < 6 or len(places) % 2):
        raise ValueError(f"a line of {len(places)} coordinates: give four, or the pairs of a polygon")
    if not all(-BEYOND <= place <= 1 + BEYOND for place in places):
        largest = max(places, key=abs)
        remedy = "divide by the image's width and height" if largest > 2 else "give numbers from 0 to 1"
        raise ValueError(f"the coordinate {largest:g}, and not fractions of the image; {remedy}")
    height, width = size
    if len(places) == 4:
        x, y, wide, tall = places
        box = (x - wide / 2) * width, (y - tall / 2) * height, (x + wide / 2) * width, (y + tall / 2) * height
        return Box(name, box, given=(x * width, y * height, wide * width, tall * height))
    points = [(width * x, height * y) for x, y in zip(places[::2], places[1::2])]
    return Box.of_polygon(name, points, size if outlines else None)
