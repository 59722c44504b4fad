"""Writers of one small data set in the layouts of boxes and masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("cat", "dog")
SIZES = {"a": (40, 60), "b": (30, 30), "c": (50, 20)}
# (class, left, top, right, bottom) in pixels; `b` has no objects
OBJECTS = {"a": [("dog", 0, 0, 30, 20), ("cat", 12, 8, 60, 40)], "b": [], "c": [("cat", 5, 10, 15, 30)]}


def save_images(folder: Path, names=SIZES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", SIZES[name][::-1], (number * 20, 0, 0)).save(folder / f"{name}.png")


def write(path: Path, content: str | dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def coco(names=SIZES, **changes) -> dict:
    """Ids are neither in order nor without gaps, as in the files that people have."""
    numbers = {name: 100 - place for place, name in enumerate(SIZES)}
    objects = [(name, *one) for name in names for one in OBJECTS[name]]
    return {
        "images": [
            {"id": numbers[name], "file_name": f"{name}.png", "height": SIZES[name][0], "width": SIZES[name][1]}
            for name in names
        ],
        "annotations": [
            {
                "id": place,
                "image_id": numbers[name],
                "category_id": {"cat": 3, "dog": 17}[label],
                "bbox": [left, top, right - left, bottom - top],
                "iscrowd": 0,
            }
            for place, (name, label, left, top, right, bottom) in enumerate(objects)
        ],
        "categories": [{"id": 17, "name": "dog"}, {"id": 3, "name": "cat"}],
        **changes,
    }


def voc(name: str) -> str:
    height, width = SIZES[name]
    objects = "".join(
        f"<object><name>{label}</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax>"
        f"<ymax>{bottom}</ymax></bndbox></object>"
        for label, left, top, right, bottom in OBJECTS[name]
    )
    return f"<annotation><size><width>{width}</width><height>{height}</height></size>{objects}</annotation>"


def yolo(name: str, polygon: bool = False) -> str:
    height, width = SIZES[name]
    lines = []
    for label, left, top, right, bottom in OBJECTS[name]:
        if polygon:
            corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
            places = [value for x, y in corners for value in (x / width, y / height)]
        else:
            places = [
                (left + right) / 2 / width,
                (top + bottom) / 2 / height,
                (right - left) / width,
                (bottom - top) / height,
            ]
        lines.append(" ".join(map(str, (NAMES.index(label), *places))))
    return "\n".join(lines)


def write_coco(root: Path) -> Path:
    save_images(root / "images")
    write(root / "annotations" / "instances.json", coco())
    return root


def write_coco_beside_images(root: Path) -> Path:
    """The layout that Roboflow exports."""
    save_images(root / "train", ("a", "b"))
    save_images(root / "valid", ("c",))
    write(root / "train" / "_annotations.coco.json", coco(("a", "b")))
    write(root / "valid" / "_annotations.coco.json", coco(("c",)))
    return root


def write_voc(root: Path) -> Path:
    save_images(root / "JPEGImages")
    for name in SIZES:
        write(root / "Annotations" / f"{name}.xml", voc(name))
    write(root / "ImageSets" / "Main" / "train.txt", "a\nb\n")
    write(root / "ImageSets" / "Main" / "val.txt", "c\n")
    return root


def write_yolo(root: Path) -> Path:
    for split, names in (("train", ("a", "b")), ("val", ("c",))):
        save_images(root / "images" / split, names)
        for name in names:
            write(root / "labels" / split / f"{name}.txt", yolo(name))
    write(root / "data.yaml", "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n")
    return root


def write_yolo_polygons(root: Path) -> Path:
    write_yolo(root)
    for split, name in (("train", "a"), ("train", "b"), ("val", "c")):
        write(root / "labels" / split / f"{name}.txt", yolo(name, polygon=True))
    write(root / "data.yaml", "train: images/train\nval: images/val\nnames: {0: cat, 1: dog}\n")
    return root


def labelme(name: str, **changes) -> dict:
    """Boxes by two opposite corners, in any order, and by the corners of a polygon."""
    height, width = SIZES[name]
    shapes = []
    for number, (label, left, top, right, bottom) in enumerate(OBJECTS[name]):
        polygon = {"shape_type": "polygon", "points": [[left, top], [right, top], [right, bottom]]}
        rectangle = {"shape_type": "rectangle", "points": [[right, top], [left, bottom]]}
        shapes.append({"label": label, "group_id": None, "flags": {}, **(polygon if number else rectangle)})
    return {
        "version": "5.4.1",
        "shapes": shapes,
        "imagePath": f"{name}.png",
        "imageData": None,
        "imageHeight": height,
        "imageWidth": width,
        **changes,
    }


def write_labelme(root: Path) -> Path:
    for split, names in (("train", ("a", "b")), ("val", ("c",))):
        save_images(root / split, names)
        for name in names:
            write(root / split / f"{name}.json", labelme(name))
    return root


def cvat(shapes=None) -> str:
    """One of each shape that has an area."""
    images = []
    for number, (name, (height, width)) in enumerate(SIZES.items()):
        own = shapes
        if own is None:
            own = "".join(
                f'<box label="{label}" occluded="0" xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}" z_order="0"/>'
                if number
                else f'<polygon label="{label}" points="{left},{top};{right},{top};{right},{bottom}"/>'
                for label, left, top, right, bottom in OBJECTS[name]
            )
        subset = "Validation" if name == "c" else "Train"
        place = f'id="{number}" name="{name}.png" subset="{subset}" width="{width}" height="{height}"'
        images.append(f"<image {place}>{own}</image>")
    labels = "".join(f"<label><name>{name}</name></label>" for name in NAMES)
    meta = f"<meta><task><labels>{labels}</labels></task></meta>"
    return f"<annotations><version>1.1</version>{meta}{''.join(images)}</annotations>"


def write_cvat(root: Path) -> Path:
    save_images(root / "images" / "Train", ("a", "b"))
    save_images(root / "images" / "Validation", ("c",))
    write(root / "annotations.xml", cvat())
    return root


def write_masks(root: Path, values: dict[int, object], *, mode: str = "L", splits: bool = True) -> Path:
    """Masks whose left half has class 0 and right half class 1, with an ignored first row."""
    for split, names in (("train", ("a", "b")), ("val", ("c",))):
        inside = Path(split) if splits else Path()
        save_images(root / "images" / inside, names)
        (root / "masks" / inside).mkdir(parents=True, exist_ok=True)
        for name in names:
            height, width = SIZES[name]
            classes = np.zeros((height, width), int)
            classes[:, width // 2 :] = 1
            classes[0] = 2
            levels = np.array([values[number] for number in range(len(values))], np.uint8)[
                classes.clip(max=len(values) - 1)
            ]
            Image.fromarray(levels).convert(mode).save(root / "masks" / inside / f"{name}_mask.png")
    return root
