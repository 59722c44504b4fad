"""Describes the annotation files of a folder that no reader used, and why."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vitrail.data.sources.contents import read_head
from vitrail.data.sources.scan import is_system_name

HEAD = 2**12  # bytes that are looked at
KINDS = (".xml", ".json", ".yaml", ".yml", ".txt")
MOST = 200_000  # files that are looked for
ELEMENT = re.compile(r"<\s*([A-Za-z_][\w.-]*)")


def describe_unused(root: Path) -> str:
    """Returns a clause for the description of a layout: files by kind, an example, and what they lack; "" without such files."""
    found: dict[str, list[Path]] = {}
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_system_name(name))
        for name in sorted(names):
            if (kind := os.path.splitext(name)[1].lower()) in KINDS and not is_system_name(name):
                found.setdefault(kind, []).append(Path(folder) / name)
        seen += len(names)
        if seen > MOST:
            break
    parts = [_describe(kind, paths, root) for kind, paths in sorted(found.items())]
    return f"; annotation files seen and not used: {'; '.join(parts)}" if parts else ""


def _describe(kind: str, paths: list[Path], root: Path) -> str:
    example = paths[0]
    text = read_head(example, HEAD).replace(b"\0", b"").decode("utf-8", "replace")
    if kind == ".xml":
        element = ELEMENT.search(re.sub(r"<[?!][^>]*>", "", text))
        shown = f"<{element[1]:.40}>" if element else "nothing"
        why = f"it begins with {shown}, VOC's with <annotation> and CVAT's with <annotations>"
        if element and element[1] == "annotation":
            why = "VOC's files are read in the folder itself, in Annotations/ or beside the images of train/, val/ and test/"
    elif kind == ".json":
        why = "COCO's have images, annotations and categories, labelme's have shapes and imagePath and lie beside the images"
    elif kind == ".txt":
        why = "YOLO's have a class and four numbers a line, and lie in labels/ beside images/ or beside the images"
    else:
        why = "YOLO's have names, and train or val"
    return f"{len(paths):,} {kind} ({example.relative_to(root)}: {why})"
