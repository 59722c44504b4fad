"""Boxes as masks: writes detection data in COCO's format with the ellipse in each box as the outline of its object.

Round objects such as cells are nearly ellipses, so that instance segmentation can be measured on data that have boxes only.
Images are linked, not copied.

    python benchmarks/ellipses.py BCCD cells/
"""

from __future__ import annotations

import argparse
import json
from itertools import count
from pathlib import Path

from vitrail.data.sources.objects import Box
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import list_splits


def write_ellipses(data: str, out: Path) -> None:
    splits = open_data(data, task="detection", validation=0)
    (out / "images").mkdir(parents=True, exist_ok=True)
    numbers = count(1)
    for split, source in list_splits(splits).items():
        images, annotations = [], []
        for row, key in enumerate(source.keys):
            objects = source.targets.of(row)  # type: ignore[missing-attribute]
            height, width = objects.sizes[0].tolist()
            link = out / "images" / Path(key).name
            if not link.exists():
                link.symlink_to(Path(data, key).resolve())
            images.append({"id": row + 1, "file_name": link.name, "height": height, "width": width})
            for (left, top, right, bottom), label in zip(objects.boxes.tolist(), objects.labels.tolist()):
                centre, radii = ((left + right) / 2, (top + bottom) / 2), ((right - left) / 2, (bottom - top) / 2)
                mask = Box.of_ellipse("", centre, radii, outlined=(height, width)).outline
                assert mask is not None, key
                segmentation = {"size": [height, width], "counts": mask.to_text()}
                place = {"bbox": [left, top, right - left, bottom - top], "area": mask.area, "iscrowd": 0}
                owner = {"id": next(numbers), "image_id": row + 1, "category_id": label + 1}
                annotations.append({**owner, **place, "segmentation": segmentation})
        categories = [{"id": number, "name": name} for number, name in enumerate(source.classes, 1)]
        document = {"images": images, "annotations": annotations, "categories": categories}
        (out / f"instances_{split}.json").write_text(json.dumps(document))
        print(f"{split}: {len(images)} images, {len(annotations)} objects")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data")
    options.add_argument("out", type=Path)
    asked = options.parse_args()
    write_ellipses(asked.data, asked.out)


if __name__ == "__main__":
    main()
