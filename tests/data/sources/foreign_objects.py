"""Data sets of objects as other tools write them: one builder for each export, for pictures of 64 x 48 pixels."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 64, 48
BOX = (10, 10, 30, 30)  # left, top, right, bottom of most objects
SQUARE = [[10, 10], [30, 10], [30, 30], [10, 30]]


def save_picture(path: Path, *, orientation: int = 1, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Saves a picture of its own colour, stored in ``size`` (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size, (sum(map(ord, path.name)) % 251, 9, 9)).save(path, exif=exif)


def save_pictures(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        save_picture(folder / name)


def write(path: Path, content: str | bytes | Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def coco(
    names: Sequence[str], *, each: Mapping[str, Any] = {}, image: Mapping[str, Any] = {}, **changes: Any
) -> dict[str, Any]:
    """COCO's tree of one object in each picture; ``each`` changes every annotation, ``image`` every image; None drops a field."""
    pictures = [
        {"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT, **image}
        for number, name in enumerate(names)
    ]
    polygon = [value for point in SQUARE for value in point]
    objects = [
        {
            "id": 500 + number,
            "image_id": number,
            "category_id": 1,
            "bbox": [10, 10, 20, 20],
            "segmentation": [polygon],
            **each,
        }
        for number in range(len(names))
    ]
    drop = lambda entries: [{key: value for key, value in entry.items() if value is not None} for entry in entries]  # noqa: E731
    tree = {"images": drop(pictures), "annotations": drop(objects), "categories": [{"id": 1, "name": "cat"}]}
    return {**tree, **changes}


# (id, category, crowd, left, top, width, height): a cat, a crowd of dogs, and sky and grass, which are stuff
SEGMENTS = ((7, 1, 0, 10, 10, 20, 20), (70_000, 2, 1, 40, 5, 10, 30), (5, 8, 0, 0, 0, 64, 4), (300, 9, 0, 0, 40, 64, 8))


def panoptic(names: Sequence[str], **changes: Any) -> dict[str, Any]:
    """COCO's panoptic tree of the same `SEGMENTS` in each picture; the maps are those of `save_ids`."""
    segments = [
        {"id": number, "category_id": category, "iscrowd": crowd, "bbox": [*box], "area": box[2] * box[3]}
        for number, category, crowd, *box in SEGMENTS
    ]
    annotations = [
        {"image_id": number, "file_name": f"{Path(name).stem}.png", "segments_info": segments}
        for number, name in enumerate(names)
    ]
    things = ((1, "cat", 1), (2, "dog", 1), (8, "sky", 0), (9, "grass", 0))
    categories = [{"id": number, "name": name, "isthing": thing} for number, name, thing in things]
    return {**coco(names), "annotations": annotations, "categories": categories, **changes}


def save_ids(path: Path, segments: Iterable[Mapping[str, Any]]) -> None:
    """Saves a panoptic map in which each segment fills its box."""
    ids = np.zeros((HEIGHT, WIDTH), int)
    for each in segments:
        left, top, width, height = each["bbox"]
        ids[top : top + height, left : left + width] = each["id"]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.stack([ids % 256, ids // 256 % 256, ids // 65_536], 2).astype(np.uint8)).save(path)


def voc(box: Sequence[float] = (11, 11, 30, 30), inside: str = "", name: str = "cat") -> str:
    corners = "".join(f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box))
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    return f"<annotation>{size}<object><name>{name}</name><bndbox>{corners}</bndbox>{inside}</object></annotation>"


def yolo(number: int = 0) -> str:
    return f"{number} {20 / WIDTH} {20 / HEIGHT} {20 / WIDTH} {20 / HEIGHT}\n"


def labelme(name: str, shapes: Sequence[Mapping[str, Any]], **changes: Any) -> dict[str, Any]:
    shapes = [{"label": "cat", "group_id": None, "flags": {}, **shape} for shape in shapes]
    return {"shapes": shapes, "imagePath": name, "imageHeight": HEIGHT, "imageWidth": WIDTH, **changes}


def labelme_mask(pixels: np.ndarray) -> str:
    """A mask as labelme stores it: a PNG file of one bit a pixel, in base64."""
    file = BytesIO()
    Image.fromarray(pixels.astype(bool)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def cvat(shapes: str, names: Sequence[str] = ("a.png",)) -> str:
    images = "".join(
        f'<image id="{number}" name="{name}" width="{WIDTH}" height="{HEIGHT}">{shapes}</image>'
        for number, name in enumerate(names)
    )
    return f"<annotations><version>1.1</version>{images}</annotations>"


def label_studio(value: Mapping[str, Any], kind: str, name: str = "a.png") -> dict[str, Any]:
    """A task with one region, as the export "JSON" has it; places are percentages of the picture."""
    region = {"id": "r1", "type": kind, "value": value, "original_width": WIDTH, "original_height": HEIGHT}
    return {
        "id": 7,
        "data": {"image": f"/data/upload/1/0a1b2c3d-{name}"},
        "annotations": [{"id": 1, "result": [region]}],
    }


def label_studio_brush(mask: np.ndarray) -> list[int]:
    """A mask (H, W) in Label Studio's packed bits, in blocks of single values."""
    values = np.repeat(mask.reshape(-1), 4).astype(int) * 255
    bits = f"{values.size:032b}" + f"{7:05b}" + "0000" * 4
    for value in values.tolist():  # one value, repeated once: the length less one has a single bit
        bits += "1" + "00" + "0" + f"{value:08b}"
    bits += "0" * (-len(bits) % 8)
    return [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]
