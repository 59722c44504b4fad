"""Signs that a data set is not read as its owner means it: one class, nested class folders, names that differ in case only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.annotations import LABEL_BITS, Annotations, Objects, OutlinedObjects, PanopticObjects
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.labels import find_combined_labels
from vitrail.data.sources.source import Splits, list_splits
from vitrail.data.sources.splits import SPLITS
from vitrail.images.decode import BadImage
from vitrail.text import plural

SAMPLED = 2_000  # keys, spread evenly, that decide whether class folders are nested
LONG_NAME = 64  # characters
MEASURED, HIDDEN = 100, 0.05  # images whose outlines are painted; share of pixels under others that is worth a warning
MISSING = ("nan", "none", "null", "n/a", "na", "?")  # what programs write where a label is missing


def find_layout_warnings(splits: Splits, data: Any = None) -> list[str]:
    """Returns a sentence for each sign; with the command that reads nested folders as classes, if ``data`` is a path."""
    if not splits.classes:
        return list(splits.notes)
    named = f"class {splits.classes[0]!r}" if len(splits.classes) == 1 else f"{len(splits.classes):,} classes"
    annotated = [part for part in list_splits(splits).values() if isinstance(part.targets, Annotations)]
    warnings = [*splits.notes, *(chain(_find_unused(splits), _find_hidden(splits)) if annotated else [])]
    by_folders = splits.layout.startswith("class folders") and not any("/" in name for name in splits.classes)
    if by_folders and (pattern := _find_nested_pattern(splits, data)):
        what = "the images are in subfolders of the class folders, but the first folder level gives the labels"
        warnings.append(f"{what} ({named}); if the subfolders are the classes, give '{pattern}'")
    elif len(splits.classes) == 1 and not annotated:
        warnings.append(f"there is only one class, {splits.classes[0]!r}; a classifier needs two or more")
    return [*warnings, *_find_odd_classes(splits)]


def _find_unused(splits: Splits) -> Iterator[str]:
    """Describes classes of annotated data that never occur in training, and images without objects."""
    if splits.train is not None and (empty := np.flatnonzero(splits.train.counts() == 0)).size:
        yield _list_without(f"{splits.train.counted} in train", empty, splits.classes)
    for split, source in list_splits(splits).items():
        if isinstance(source.targets, Objects) and (nothing := int((source.targets.lengths() == 0).sum())):
            counts_as = "void" if isinstance(source.targets, PanopticObjects) else "background"
            yield f"{nothing:,} of {len(source):,} images in {split} have no {source.counted}, and count as {counts_as}"


def _find_hidden(splits: Splits) -> Iterator[str]:
    """Describes how much of the outlined objects, in at most `MEASURED` images a split, lies under smaller ones."""
    for split, source in list_splits(splits).items():
        if not isinstance(source.targets, OutlinedObjects):
            continue
        total, shown, lost = 0, 0, 0
        for row in choose_evenly(len(source), MEASURED).tolist():
            one = source.targets.of(row)
            try:
                values = one.read_map(0, one.find_painted_size(0))
            except BadImage:
                continue
            left = np.bincount(values[values > 0] >> LABEL_BITS, minlength=len(one.labels) + 1)[1:][~one.crowd]
            areas = np.array([mask.area for mask in one.masks()])[~one.crowd]
            total, shown, lost = total + areas.sum(), shown + left.sum(), lost + ((left == 0) & (areas > 0)).sum()
        if lost or shown < (1 - HIDDEN) * total:
            hidden = f"; wholly hidden: {plural(int(lost), 'object')}" if lost else ""
            under = f"of the pixels of objects in {split} lie under smaller objects, and count as theirs"
            yield f"{1 - shown / total:.1%} {under}{hidden}"


def _list_without(what: str, rows: np.ndarray, classes: tuple[str, ...]) -> str:
    names = ", ".join(repr(classes[row]) for row in rows[:5])
    return f"{len(rows)} of {len(classes)} classes have no {what}: {names}{', ...' if len(rows) > 5 else ''}"


def _find_odd_classes(splits: Splits) -> Iterator[str]:
    """Describes classes that are trained and have no image in the validation split, and names that may be mistakes."""
    classes, train, val = splits.classes, splits.train, splits.val
    missing = np.zeros(0, np.int64)
    if train and val and train.labelled and val.labelled and not isinstance(train.targets, Annotations):
        missing = np.flatnonzero((train.counts() > 0) & (val.counts() == 0))
    if missing.size:
        yield _list_without("validation image, so no figure says how well they are learned", missing, classes)
    folded: dict[str, list[str]] = {}
    for name in classes:
        folded.setdefault(name.strip().casefold(), []).append(name)
    for names in folded.values():
        if len(names) > 1:
            shown = ", ".join(map(repr, names))
            yield f"the classes {shown} differ only in case or spaces; rename them if they are the same class"
    if missing := [name for name in classes if name.casefold() in MISSING]:
        yield f"the class {missing[0]!r} looks like a missing label; remove its images if it is one"
    if combined := find_combined_labels(classes):
        yield combined
    if spaced := [name for name in classes if name != name.strip()]:
        yield f"{len(spaced):,} class names begin or end with a space, e.g. {spaced[0]!r}"
    if long := [name for name in classes if len(name) > LONG_NAME]:
        yield f"{len(long):,} class names have more than {LONG_NAME} characters, e.g. {long[0][:LONG_NAME]!r}..."


def _find_nested_pattern(splits: Splits, data: Any) -> str:
    """The pattern of the folders that contain the images if most are deeper than the class folders; else empty."""
    source = max(list_splits(splits).values(), key=len)
    levels = Counter[int]()  # of sampled images, by the number of folders from the class folder down
    for row in choose_evenly(len(source), SAMPLED).tolist():
        folders = source.keys[row].split("/")[:-1]
        in_split = len(folders) > 1 and folders[0].lower() in SPLITS and folders[1] in source.classes
        levels[len(folders) - in_split] += 1
    [(level, count)] = levels.most_common(1) or [(0, 0)]
    root = str(data) if isinstance(data, str | Path) else "DATA"
    if level < 2 or count < 0.9 * levels.total():
        deeper = sum(images for depth, images in levels.items() if depth > 1)
        return f"{root.rstrip('/')}/**" if deeper > 0.5 * levels.total() else ""
    first = source.keys[0].split("/")
    in_splits = len(list_splits(splits)) > 1 and first[0].lower() in SPLITS
    if len(splits.classes) == 1 and level == 2 and not in_splits:
        return f"{root.rstrip('/')}/{splits.classes[0]}"
    return root.rstrip("/") + "/*" * (level + in_splits)
