"""Data sets, settings, indexes and packs of less than 100 kB that would cost seconds or gigabytes, or name files elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from tests.data.sources import foreign_objects, layouts
from vitrail.config.parse import read_yaml
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.files import write_checksummed
from vitrail.inference.parts.folder import Plan, verify_parts
from vitrail.studies.design import read_study
from vitrail.verbs.data import shard_data
from vitrail.verbs.data.findings import check
from vitrail.verbs.data.shards import index_shards

HUGE = 10**400
BILLION_SEEDS = (
    "{name: a, base: {schedule.steps: 1}, experiments: [{name: b, arms: {c: {}, d: {}, e: {}}, seeds: 1000000000}]}"
)
OUTSIDE = "../../outside/secret.png"
FAR = [[1.0, 1.0, 90_000.0, 1.0, 1.0, 90_000.0] * 600]  # a boundary that is walked for billions of steps
Make = Callable[[Path], Callable[[], Any]]  # writes a hostile file into a folder, and returns what reads it


def merge_bomb(form: str) -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{number}: 1" for number in range(9)) + "}"]
    for level in range(1, 9):
        lines.append(f"a{level}: &a{level} " + form.format(", ".join([f"*a{level - 1}"] * 9)))
    return "\n".join(lines) + "\n"


def dump(tree: Any) -> str:
    return json.dumps(tree).replace('"HUGE"', str(HUGE))


def coco(content: str | None = None, *, task: str | None = None, image: Mapping = {}, box: Mapping = {}) -> Make:
    """COCO's annotations, with ``image`` changed in every image and ``box`` in every annotation, or other ``content``."""

    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder / "images")
        tree = layouts.coco()
        for part, changes in (("images", image), ("annotations", box)):
            tree[part] = [{**entry, **changes} for entry in tree[part]]
        layouts.write(folder / "annotations.json", dump(tree) if content is None else content)
        return lambda: open_data(folder, task=task)

    return make


def voc(content: str | bytes) -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder / "JPEGImages")
        path = folder / "Annotations" / "a.xml"
        path.parent.mkdir()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return lambda: open_data(folder)

    return make


def cvat(attributes: str, inside: str = "", task: str | None = None) -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder / "images")
        text = f"<annotations><image id='0' {attributes}>{inside}</image></annotations>"
        layouts.write(folder / "annotations.xml", text)
        return lambda: open_data(folder, task=task)

    return make


def labelme(task: str | None = None, **changes: Any) -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder)
        shapes = [{"label": "cat", "points": [[1, 1], [9, 1], [9, 9]]}]
        tree = {"imagePath": "a.png", "imageHeight": 40, "imageWidth": 60, "shapes": shapes, **changes}
        layouts.write(folder / "a.json", dump(tree))
        return lambda: open_data(folder, task=task)

    return make


def panoptic(segment: Mapping = {}, **changes: Any) -> Make:
    """A panoptic file, with ``segment`` changed in every segment and ``changes`` in every annotation."""

    def make(folder: Path) -> Callable[[], Any]:
        foreign_objects.save_pictures(folder / "images", ["a.png"])
        tree = foreign_objects.panoptic(["a.png"])
        (annotation,) = tree["annotations"]
        foreign_objects.save_ids(folder / "panoptic" / "a.png", annotation["segments_info"])
        annotation["segments_info"] = [{**each, **segment} for each in annotation["segments_info"]]
        annotation.update(changes)
        layouts.write(folder / "panoptic.json", dump(tree))
        return lambda: open_data(folder, task="segmentation")

    return make


def id_map(picture: int, ids: np.ndarray) -> Make:
    """A square picture of so many pixels a side, and its id map."""

    def make(folder: Path) -> Callable[[], Any]:
        for name, image in (("images", Image.new("RGB", (picture, picture))), ("instances", Image.fromarray(ids))):
            (folder / name).mkdir()
            image.save(folder / name / "a.png")
        return lambda: open_data(folder)

    return make


def yolo(description: str, line: str = "0 .5 .5 .2 .2") -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder / "images")
        layouts.write(folder / "labels" / "a.txt", line)
        layouts.write(folder / "data.yaml", description)
        return lambda: open_data(folder)

    return make


def manifest(name: str, content: str) -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder)
        layouts.write(folder / name, content)
        return lambda: check(folder / name)

    return make


def settings(content: str, read: Callable[[Path], Any] = read_yaml) -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.write(folder / "settings.yaml", content)
        return lambda: read(folder / "settings.yaml")

    return make


def arrays(shape: tuple[int, ...], name: str = "images.npy", *, declared: int = 0) -> Make:
    """An array whose header says ``shape``, or an archive whose member has so many bytes, as it says."""

    def make(folder: Path) -> Callable[[], Any]:
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        (folder / name).write_bytes(file.getvalue())
        if declared:
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr("images.npy", file.getvalue())
            declare(folder / name, declared)
        return lambda: check(folder / name)

    return make


def declare(archive: Path, size: int) -> None:
    """Changes the bytes that the first member of a zip archive has by its directory: a bomb, without the time to write one."""
    content = bytearray(archive.read_bytes())
    at = content.index(b"PK\1\2") + 24
    content[at : at + 4] = size.to_bytes(4, "little")
    archive.write_bytes(content)


def numbered(label: int) -> Make:
    """Arrays with the number of a class that would need as many names."""

    def make(folder: Path) -> Callable[[], Any]:
        np.savez(folder / "x.npz", images=np.zeros((4, 2, 2, 3), np.uint8), labels=np.array([0, 1, 0, label]))
        return lambda: check(folder / "x.npz")

    return make


def parquet(rows: int) -> Make:
    """Rows that a dictionary repeats."""

    def make(folder: Path) -> Callable[[], Any]:
        places = pyarrow.array(np.zeros(rows, np.int32))
        column = pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(["x" * 8000]))
        pyarrow.parquet.write_table(pyarrow.table({"path": column, "label": column}), folder / "x.parquet")
        return lambda: check(folder / "x.parquet")

    return make


def tar(label: bytes, kind: str = "cls") -> Make:
    def make(folder: Path) -> Callable[[], Any]:
        layouts.save_images(folder / "images")
        with tarfile.open(folder / "x.tar", "w") as archive:
            archive.add(folder / "images" / "a.png", "a.png")
            member = tarfile.TarInfo(f"a.{kind}")
            member.size = len(label)
            archive.addfile(member, io.BytesIO(label))
        return lambda: index_shards(str(folder), log=print)

    return make


def index(change: Callable[[dict[str, Any], Path], None]) -> Make:
    """An index whose catalogue was changed and checksummed again."""

    def make(folder: Path) -> Callable[[], Any]:
        for name in ("cat", "dog"):
            layouts.save_images(folder / "photos" / name)
        shard_data(folder / "photos", folder / "shards", images=4, quiet=True)
        path = folder / "shards" / "index" / "index.json"
        described = json.loads(path.read_text())
        change(described, path.parent)
        write_checksummed(path, described)
        return lambda: check(folder / "shards")

    return make


def said(**changes: Any) -> Make:
    return index(lambda described, _: described.update(changes))


def shard(**changes: Any) -> Make:
    return index(lambda described, _: described["shards"][0].update(changes))


def table(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Make:
    """A table that was changed, with the checksum of the change."""

    def alter(described: dict[str, Any], folder: Path) -> None:
        path = folder / f"{name}.npy"
        np.save(path, change(np.load(path)))
        content = path.read_bytes()
        described["tables"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    return index(alter)


def parts(record: Mapping[str, Any] | None = None, **changes: Any) -> Make:
    """A folder of results in parts with another plan, or a ``record`` of its first part."""

    def make(folder: Path) -> Callable[[], Any]:
        plan = {
            "verb": "predict", "model": "m", "inputs": "i", "images": 4, "part_size": 2, "format": "jsonl",
            "columns": {}, "width": 0, "settings": {},
        }  # fmt: skip
        write_checksummed(folder / "_plan.json", {"format_version": 1, "plan": {**plan, **changes}, "about": {}})
        if record is not None:
            facts = {"part": 0, "plan": Plan(**plan).digest, "images": 2, "unreadable": 0, "rows": 2}
            (folder / "_records").mkdir()
            write_checksummed(folder / "_records" / "0000000.json", {**facts, **record})
        return lambda: verify_parts(folder, quiet=True)

    return make


def entities(encoding: str) -> bytes:
    declared = "".join(f'<!ENTITY a{level} "{f"&a{level - 1};" * 10}">' for level in range(1, 10))
    text = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE l [<!ENTITY a0 "aaaaaaaaaa">{declared}]>'
    return (text + "<annotation><object><name>&a9;</name></object></annotation>").encode(encoding)


def voc_size(side: str) -> str:
    return f"<annotation><size><width>{side}</width><height>40</height></size></annotation>"


def names(*lines: str) -> str:
    return "train: images\nval: images\n" + "\n".join(lines) + "\n"


# by name: what makes the input, the class of the error, and words of it
BOMBS: dict[str, tuple[Make, type[Exception], str]] = {
    "YAML of merge keys": (yolo(merge_bomb("{{<<: [{}]}}") + names("names: [a]")), DataError, "more than 50,000 values"),
    "YAML of aliases": (yolo(merge_bomb("[{}]") + names("names: *a8")), DataError, "more than 50,000 values"),
    "YAML that is deep": (yolo(names("names: " + "[" * 50_000)), DataError, "nested deeper than 100"),
    "YAML with a large number": (yolo("train: images\nnc: " + "9" * 5000), DataError, "nc is '999"),
    "YAML with numbers for paths": (yolo("train: images\nval: 5\nnames: [a]\n"), DataError, "which does not exist"),
    "YAML with a NUL in its path": (yolo(names("names: [a]", 'path: "a\\0b"')), DataError, "where paths should be"),
    "YAML that names a folder above": (yolo("train: ../..\nnames: [a]\n"), DataError, "is in"),
    "settings of merge keys": (settings(merge_bomb("{{<<: [{}]}}")), ConfigError, "more than 50,000 values"),
    "settings that are deep": (settings("[" * 50_000), ConfigError, "nested deeper than 100"),
    "a study of merge keys": (settings(merge_bomb("{{<<: [{}]}}"), read_study), ConfigError, "more than 50,000"),
    "a study of 10^9 seeds": (settings(BILLION_SEEDS, read_study), ConfigError, "3,000,000,000 trials"),
    "a study that is deep": (settings("[" * 50_000, read_study), ConfigError, "nested deeper than 100"),
    "YOLO with a large class": (yolo(names("names: [a]"), "9" * 5000 + " .5 .5 .2 .2"), DataError, "not a whole number"),
    "a line of YOLO with infinity": (yolo(names("names: [a]"), "0 inf .5 .2 .2"), DataError, "the coordinate inf"),
    "JSON that is deep": (coco('{"images": [], "annotations": [], "categories": ' + "[" * 50_000), DataError, "deeper than 100"),
    "JSON with a large number": (coco(box={"bbox": ["HUGE", 0, 5, 5]}), DataError, "has 401 digits"),
    "a size of infinity": (coco(image={"width": float("inf")}), DataError, "the width of a picture is inf"),
    "a size in words": (coco(image={"width": "x"}), DataError, "the width of a picture is 'x'"),
    "a size in a list": (coco(image={"width": [1]}), DataError, "the width of a picture is of type list"),
    "a negative size": (coco(image={"width": -96}), DataError, "the width of a picture is -96"),
    "a size beyond 32 bits": (coco(image={"width": 2**31}), DataError, "the width of a picture is 2147483648"),
    "outlines of 60,000 x 60,000": (
        coco(task="segmentation", image={"width": 60_000, "height": 60_000}, box={"segmentation": FAR}),
        DataError, "outlines for another size than that of the picture",
    ),
    "outlines that are long": (coco(task="segmentation", box={"segmentation": FAR}), DataError, "whose boundary has"),
    "run lengths that overflow": (
        coco(task="segmentation", box={"segmentation": {"size": [40, 60], "counts": [2**62] * 4}}), DataError, "a run of",
    ),
    "panoptic segments of no list": (panoptic(segments_info=5), DataError, "segments_info is 5"),
    "a panoptic id of infinity": (panoptic({"id": float("inf")}), DataError, "the id is inf"),
    "a panoptic id of 401 digits": (panoptic({"id": "HUGE"}), DataError, "has 401 digits"),
    "an id map of 6,000 x 6,000": (id_map(60, np.zeros((6000, 6000), np.uint8)), DataError, "it has 6000 x 6000 pixels"),
    "an id map of single pixels": (
        id_map(3000, np.indices((3000, 3000), np.uint8).sum(0).astype(np.uint8) % 2), DataError, "runs of equal values, over",
    ),
    "CVAT of 60,000 x 60,000": (
        cvat("name='a.png' width='60000' height='60000'", "<polygon label='a' points='1,1;9,1;9,9'/>", "segmentation"),
        DataError, "outlines for another size than that of the picture",
    ),
    "CVAT of a huge size": (cvat(f"name='a.png' width='{10**20}' height='40'"), DataError, "the width of a picture is"),
    "CVAT that turns by infinity": (
        cvat("name='a.png' width='60' height='40'", "<box label='a' xtl='1' ytl='1' xbr='9' ybr='9' rotation='inf'/>"),
        DataError, "turned by inf degrees",
    ),
    "XML entities": (voc(entities("utf-8")), DataError, "declares a document type"),
    "XML entities in UTF-16": (voc(entities("utf-16")), DataError, "declares a document type"),
    "XML that is deep": (voc("<annotation>" * 3_900 + "</annotation>" * 3_900), DataError, "nested deeper than 100"),
    "a VOC size of infinity": (voc(voc_size("1e999")), DataError, "the width of a picture is '1e999'"),
    "labelme of infinity": (labelme(imageHeight=float("inf")), DataError, "the height of a picture is inf"),
    "labelme with a large number": (labelme(shapes=[{"label": "a", "points": [["HUGE", 1]]}]), DataError, "has 401 digits"),
    "labelme with NaN": (
        labelme("segmentation", shapes=[{"label": "a", "points": [[float("nan"), 1], [2, 3], [4, 5]]}]),
        DataError, "a polygon with the coordinate nan",
    ),
    "a manifest that is deep": (manifest("x.jsonl", '{"path": "a.png", "label": ' + "[" * 50_000), DataError, "deeper than 100"),
    "a manifest with a large number": (manifest("x.jsonl", '{"path": "a.png", "label": ' + "9" * 5000 + "}"), DataError, "5,000"),
    "an array that is not there": (arrays((10**6, 1000, 1000, 3)), DataError, "has 0 bytes"),
    "an archive of zeros": (arrays((4, 10**4, 10**4, 1), "x.npz", declared=4 * 10**8), DataError, "and expands to"),
    "a class number of 10^12": (numbered(10**12), DataError, "go up to 1000000000000"),
    "Parquet that repeats a row": (parquet(10**6), DataError, "1,000,000 rows in"),
    "a label of 5,000 digits in a tar": (tar(b"9" * 5000), DataError, "the number of a class is"),
    "a label in a tar that is deep": (tar(b"[" * 50_000, "json"), DataError, "nested deeper than 100"),
    "an index of -5 images": (said(images=-5), DataError, "images is -5"),
    "an index of 10^12 images": (said(images=10**12), DataError, "images in all"),
    "an index of no list": (said(shards=5), DataError, "its shards are no list"),
    "an index with classes that are numbers": (said(classes=[1, 2]), DataError, "is no name"),
    "a shard of 10^30 bytes": (shard(bytes=10**30), DataError, "the size of the shard"),
    "a shard of -1 bytes": (shard(bytes=-1), DataError, "the size of the shard"),
    "a shard of another form": (shard(extra=1), DataError, "does not have the fields"),
    "starts before the first shard": (table("starts", lambda starts: starts - 10**6), DataError, "outside of all shards"),
    "lengths below zero": (table("lengths", lambda each: each * 0 - 1), DataError, "outside of all shards"),
    "names that do not rise": (table("name_ends", lambda ends: ends[::-1]), DataError, "do not rise"),
    "names that end elsewhere": (table("name_ends", lambda ends: ends + 10**9), DataError, "do not end"),
    "names that are no text": (table("names", lambda letters: letters * 0 + 255), DataError, "decode"),
    "names with control characters": (table("names", lambda letters: letters * 0 + 27), DataError, "has control characters"),
    "a table of another length": (table("starts", lambda starts: starts[:3]), DataError, "has the shape"),
    "a table of floats": (table("starts", lambda starts: starts.astype("f8")), DataError, "has the shape"),
    "targets that are no classes": (table("targets", lambda targets: targets * 0 + 99), DataError, "none of the classes"),
    "parts of no images": (parts(part_size=0), DataError, "of a part is 0"),
    "parts of -1 images": (parts(part_size=-1), DataError, "of a part is -1"),
    "10^12 parts": (parts(images=10**12, part_size=1), DataError, "at most 1,000,000 are written"),
    "parts of another format": (parts(format="x"), DataError, "the format is 'x'"),
    "a plan of parts with another key": (parts(zzz=1), DataError, "zzz"),
}  # fmt: skip

# by name, as above: what a file says becomes part of a path
PATHS: dict[str, tuple[Make, type[Exception], str]] = {
    "COCO's file_name": (coco(image={"file_name": OUTSIDE}), DataError, "points outside of its folder|not found"),
    "COCO's absolute file_name": (coco(image={"file_name": "/etc/hostname"}), DataError, "points outside of its folder"),
    "the file_name of a panoptic map": (panoptic(file_name=OUTSIDE), DataError, "points outside of its folder|not found"),
    "the absolute file_name of a panoptic map": (panoptic(file_name="/etc/hostname"), DataError, "is not found"),
    "CVAT's name": (cvat(f"name='{OUTSIDE}' width='9' height='9'"), DataError, "points outside of its folder|not found"),
    "CVAT's absolute name": (cvat("name='/etc/hostname' width='9' height='9'"), DataError, "points outside of its folder"),
    "labelme's imagePath": (labelme(imagePath=OUTSIDE), DataError, "does not exist"),
    "labelme's absolute imagePath": (labelme(imagePath="/etc/hostname"), DataError, "points outside of its folder"),
    "the name of a shard": (shard(name="../../outside/secret.png"), DataError, "no path inside of the root"),
    "the absolute name of a shard": (shard(name="/etc/hostname"), DataError, "no path inside of the root"),
    "the SHA-256 of a shard": (shard(sha256="../../outside/x"), DataError, "no SHA-256"),
    "the name of a table": (
        index(lambda tree, _: tree["tables"].update({"../../evil": {"bytes": 1, "sha256": "0" * 64}})),
        DataError, "has others than",
    ),
    "the root of an index at a URL": (said(root="memory://elsewhere"), DataError, "only what you name is fetched"),
    "the root of an index that is a file": (said(root="file:///etc"), DataError, "only what you name is fetched"),
}  # fmt: skip
