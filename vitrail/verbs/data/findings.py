"""Checks a data set: counts, sizes, bad files, duplicates, leaks and edited copies between splits, and suspected labels.

m images, of which thumbnails of 16 x 16 grey pixels are compared.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate, combinations
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.prepare import as_image
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.bad_images import MAX_BAD
from vitrail.data.sources.deep_files import open_deep
from vitrail.data.sources.labels import ROWS_SHOWN
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.source import Source, Splits, list_splits
from vitrail.data.sources.splits import SPLIT_ORDER
from vitrail.errors import DataError
from vitrail.images.decode import BadImage, decode, size_of
from vitrail.rows import Rows
from vitrail.untrusted.limits import PIXELS
from vitrail.verbs.data.outlines import describe_outlines
from vitrail.verbs.printing import columns

if TYPE_CHECKING:
    from vitrail.evaluation.label_errors import Suspect
    from vitrail.inference.features import Features
    from vitrail.tasks.task import Task

    Numbered = tuple[Features, NDArray[np.int64]]

BATCH = 256  # images in memory at a time
CHANNELS = 3  # to which images are decoded
FEW = 10  # training images; classes with fewer are reported
SIZE_STEPS = (32, 64, 128, 224, 384, 512, 1024, 2048, 4096)  # pixels of the shorter side
SIDE = 16  # pixels of a thumbnail
SMALLEST = 32  # pixels of the shorter side of images that are compared
FLAT = 8.0  # standard deviation of the levels of a thumbnail, below which it shows too little
BANDS, BITS = 4, 14  # of a hash; hashes that differ in fewer bits than there are bands agree in one band
ALIKE = 0.985  # correlation of two thumbnails
BLOCK = 1024  # images that are compared with many others at once
SIMILAR = 0.9  # cosine of the features of two images


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckResult(Rows):
    """The result of `check`. Images are named by their keys, with the split in front if the key does not contain it."""

    layout: str
    classes: tuple[str, ...]
    # split -> class -> images, or objects or pixels of that class; an unlabelled split has its images under ""
    counts: dict[str, dict[str, int]]
    sizes: dict[str, int]  # shorter side, e.g. "224-383" -> images
    smallest: tuple[int, int] | None  # (height, width), of the good images
    largest: tuple[int, int] | None
    bad: tuple[tuple[str, str], ...]  # (image, reason)
    duplicates: tuple[tuple[str, ...], ...]  # images of equal content within one split
    leaks: tuple[tuple[str, ...], ...]  # images of equal content in more than one split
    conflicts: tuple[tuple[str, ...], ...]  # images of equal content with different labels
    few: tuple[str, ...]  # classes with fewer than FEW training images; no problem by themselves
    near: tuple[tuple[str, str], ...] = ()  # images of different splits that look alike; see `find_near_copies`
    suspects: tuple[Suspect, ...] = ()  # images whose label may be wrong; no problem by themselves
    notes: tuple[str, ...] = ()  # on objects with outlines, and labels not examined; no problem by themselves
    warnings: tuple[str, ...] = ()  # signs that the layout is not read as it is meant
    widths: tuple[int, int] | None = None  # (smallest, largest), of the good images
    heights: tuple[int, int] | None = None
    refused: str = ""  # why `vitrail train` refuses the data
    counted: str = "images"  # what ``counts`` are of
    images: int = 0

    @property
    def sound(self) -> bool:
        """Whether nothing was found that would harm a training or its metrics."""
        return not (self.bad or self.leaks or self.near or self.conflicts or self.warnings or self.refused)

    @property
    def confused(self) -> list[tuple[str, str, int]]:
        """The given label, the suggested one, and the number of suspects with these two, the most frequent first."""
        pairs = Counter((suspect.given, suspect.suggested) for suspect in self.suspects)
        return [(*pair, count) for pair, count in pairs.most_common()]

    def to_dict(self) -> dict[str, Any]:
        """Returns the result in JSON types."""
        return asdict(self) | {"sound": self.sound, "confused": self.confused}

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns the number of images, objects or pixels of every split and class."""
        return [
            {"split": split, "class": name, self.counted: count}
            for split, counts in self.counts.items()
            for name, count in counts.items()
        ]

    def list_removals(self) -> list[dict[str, str]]:
        """Lists the images to remove, each with the reason: of equal or similar images those of the split that comes first.

        Of equal images with different labels all are listed, since nothing tells which label is right.
        """
        rows = [(key, f"bad: {reason}") for key, reason in self.bad]
        rows += [(key, f"other labels of an equal image: {group[0]}") for group in self.conflicts for key in group]
        rows += [(key, f"also in another split: {group[-1]}") for group in self.leaks for key in group[:-1]]
        rows += [(first, f"looks like one of another split: {second}") for first, second in self.near]
        rows += [(key, f"equal to {group[0]}") for group in self.duplicates for key in group[1:]]
        reasons = dict(reversed(rows))  # the first reason of each
        return [{"path": key, "reason": reasons[key]} for key in dict.fromkeys(key for key, _ in rows)]

    def __repr__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Returns the result as lines of text. Long lists are shortened; `to_dict` has them in full."""
        splits = list(self.counts)
        lines = [f"layout   {self.layout}", f"images   {self.images:,}", f"classes  {len(self.classes)}"]
        rows = [
            (name or "unlabelled", *(f"{self.counts[split].get(name, 0):,}" for split in splits))
            for name in dict.fromkeys(name for split in splits for name in self.counts[split])
        ]
        head = ("" if self.counted == "images" else self.counted, *splits)
        lines.append(indent(columns(rows[: 10 * ROWS_SHOWN - 1], head), "  "))
        if self.smallest and self.largest:
            across = [f"{width} x {height}" for height, width in (self.smallest, self.largest)]
            lines.append(f"sizes    from {across[0]} to {across[1]} (width x height)")
        if self.widths and self.heights:
            sides = "widths {:,} to {:,}, heights {:,} to {:,}".format(*self.widths, *self.heights)
            lines.append(f"         {sides}; by the shorter side:")
            lines.append(indent(columns((name, f"{count:,}") for name, count in self.sizes.items()), "  "))
        for title, entries in (
            ("bad images", list(map(": ".join, self.bad))),
            ("duplicates within a split", list(map(" = ".join, self.duplicates))),
            ("images in more than one split", list(map(" = ".join, self.leaks))),
            ("images that look like one of another split", list(map(" ~ ".join, self.near))),
            ("equal images with different labels", list(map(" = ".join, self.conflicts))),
            ("labels that may be wrong; look at each image", [describe_suspect(suspect) for suspect in self.suspects]),
            (
                "pairs of classes, given -> suggested",
                [f"{old} -> {new}: {count:,}" for old, new, count in self.confused],
            ),
            (f"classes with fewer than {FEW} training images", self.few),
            ("notes", self.notes),
            ("warnings", self.warnings),
        ):
            lines += [f"{title}: {len(entries):,}"] if entries else []
            lines += [f"  {entry}" for entry in entries[:ROWS_SHOWN]]
            lines += [f"  ... and {len(entries) - ROWS_SHOWN:,} more"] if len(entries) > ROWS_SHOWN else []
        lines += [f"refused by `vitrail train`: {self.refused}"] if self.refused else []
        sound = "no problems found, besides labels to look at" if self.suspects else "no problems found"
        return "\n".join([*lines, sound if self.sound else "problems found, see above"])


def describe_suspect(suspect: Suspect) -> str:
    """Returns one line on an image whose label may be wrong."""
    given, suggested = (
        f"{suspect.given} {suspect.given_probability:.3f}",
        f"{suspect.suggested} {suspect.probability:.3f}",
    )
    return f"{suspect.path}: {given} -> {suggested}"


def name_image(sources: Mapping[str, Source], split: str, index: int) -> str:
    """Returns the key of an image, with the split in front if there are several and the key does not tell it."""
    key = sources[split].keys[index]
    return key if len(sources) == 1 or key.startswith(split) or os.path.isabs(key) else f"{split}/{key}"


def check(
    data: Any,
    *,
    task: str | None = None,
    model: Task | None = None,
    cache: Path | None = None,
    max_pixels: int = PIXELS,
) -> CheckResult:
    """Reads and decodes every image of ``data`` and returns what was found. Changes nothing."""
    splits, refused = open_to_check(data, task, max_pixels)
    sources = list_splits(splits)
    images = [(split, index) for split, source in sources.items() for index in range(len(source))]
    digests = np.zeros(len(images), np.uint64)  # 0: bad
    thumbnails: list[np.ndarray | None] = [None] * len(images)
    bad: dict[int, str] = {}
    sizes: Counter[tuple[int, int]] = Counter()
    for number, (digest, size, thumbnail) in enumerate(_examine_all(sources, images, max_pixels)):
        if isinstance(size, BadImage):
            bad[number] = size.reason
        else:
            digests[number], thumbnails[number] = digest, thumbnail
            sizes[size] += 1
            if fault := _check_annotation(sources, images[number], size):
                bad[number] = fault
    if not refused and len(bad) > MAX_BAD * len(images):
        refused = f"{len(bad):,} of {len(images):,} images are bad, more than {MAX_BAD:.0%}"

    def name(number: int) -> str:
        return name_image(sources, *images[number])

    def label(number: int) -> bytes | None:
        split, index = images[number]
        return sources[split].digest_target(index)

    groups = _find_duplicates(digests)
    across = [group for group in groups if len({images[number][0] for number in group}) > 1]
    within = [group for group in groups if len({images[number][0] for number in group}) == 1]
    unlike = [group for group in groups if len({label(number) for number in group} - {None}) > 1]
    counts = {
        split: dict(zip(source.classes, source.counts().tolist())) if source.labelled else {"": len(source)}
        for split, source in sources.items()
    }
    of_split = np.array([SPLIT_ORDER.index(split) for split, _ in images])
    similar, notes = {*find_near_copies(thumbnails, of_split)}, [*describe_outlines(splits)]
    suspects: list[Suspect] = []
    if model is not None:
        features = _compute_features(model, sources, cache, max_pixels)
        similar |= {*_compare_features(features)}
        suspects, unexamined = _examine_labels(
            features, digests, [(images[row][0], name(row)) for row in range(len(images))]
        )
        notes += unexamined
    near = [pair for pair in sorted(similar) if digests[pair[0]] != digests[pair[1]]]
    heights, widths = ((min(sides), max(sides)) for sides in zip(*sizes)) if sizes else (None, None)
    return CheckResult(
        layout=splits.layout,
        classes=splits.classes,
        counts=counts,
        sizes=_bin_sizes(sizes),
        smallest=min(sizes, key=min, default=None),
        largest=max(sizes, key=min, default=None),
        bad=tuple((name(number), reason) for number, reason in bad.items()),
        duplicates=tuple(tuple(map(name, group)) for group in within),
        leaks=tuple(tuple(map(name, group)) for group in across),
        near=tuple((name(first), name(second)) for first, second in near),
        conflicts=tuple(tuple(map(name, group)) for group in unlike),
        few=tuple(name for name, count in counts.get("train", {}).items() if name and count < FEW),
        counted=next((source.counted for source in sources.values()), "images"),
        images=len(images),
        suspects=tuple(suspects),
        notes=tuple(notes),
        warnings=tuple(find_layout_warnings(splits, data)),
        widths=widths,
        heights=heights,
        refused=refused,
    )


def open_to_check(data: Any, task: str | None, max_pixels: int) -> tuple[Splits, str]:
    """Returns the data as a training opens them, or as far as they can be opened, and why `vitrail train` refuses them."""
    found = find_data(data, task=task)
    wanted = task or found.task
    try:
        splits = open_deep(open_data(found, validation=0, channels=CHANNELS, task=wanted), max_pixels=max_pixels)
    except DataError as error:
        splits = open_data(found, validation=0, channels=CHANNELS, labelled=False)
        return open_deep(splits, max_pixels=max_pixels), error.what
    if wanted is None and splits.train is not None and len(splits.classes) > 1:  # torch is not needed for these
        return splits, ""
    from vitrail.training.data import choose_arguments

    try:
        choose_arguments(splits, wanted or "classification", {})
    except DataError as error:
        return splits, error.what
    return splits, ""


def _compute_features(model: Task, sources: dict[str, Source], cache: Path | None, max_pixels: int) -> list[Numbered]:
    """Returns the features of each split that has images, each with the numbers (N,) of its good images over all splits."""
    from vitrail.inference.features import features_of
    from vitrail.inference.options import InferenceOptions

    options = InferenceOptions(max_bad=1.0, max_pixels=max_pixels, quiet=True)
    starts = accumulate([0, *map(len, sources.values())])
    found = [
        (features_of(model, source, options=options, cache=cache), start)
        for source, start in zip(sources.values(), starts)
        if len(source)
    ]
    return [(features, start + features.rows) for features, start in found]


def _compare_features(features: Sequence[Numbered]) -> Iterator[tuple[int, int]]:
    """Yields the pairs of images of different splits with similar features, as numbers over all splits."""
    import torch
    import torch.nn.functional as F

    from vitrail.inference.similarity import find_pairs

    vectors = [(F.normalize(torch.from_numpy(part.values), dim=1), numbers) for part, numbers in features]
    for (one, numbers), (other, others) in combinations(vectors, 2):
        for row, column, _ in find_pairs(SIMILAR, one, other):
            yield int(numbers[row]), int(others[column])


def _examine_labels(
    features: Sequence[Numbered], digests: NDArray[np.uint64], names: Sequence[tuple[str, str]]
) -> tuple[list[Suspect], list[str]]:
    """Returns the images of all splits whose label may be wrong, and notes on labels that were not examined.

    Hashes and names, each with its split, are those of all images.
    """
    from vitrail.evaluation.label_errors import find_suspects

    if not (examined := [part for part in features if part[0].source.single_label]):
        return [], ["labels not examined: that takes images with one class each"]
    numbers = np.concatenate([numbers for _, numbers in examined])
    values, targets = (np.concatenate([getattr(part, what) for part, _ in examined]) for what in ("values", "targets"))
    names = [names[number] for number in numbers.tolist()]
    return find_suspects(values, targets, digests[numbers], names, examined[0][0].source.classes)


def _check_annotation(sources: dict[str, Source], image: tuple[str, int], size: tuple[int, int]) -> str:
    """Returns why the annotation of an image of this (height, width) cannot be used; empty if it can."""
    split, index = image
    targets = sources[split].targets
    try:
        if isinstance(targets, Annotations):
            targets.read_map(index, size)
    except BadImage as error:
        return error.reason
    return ""


def _examine_all(
    sources: dict[str, Source], images: list[tuple[str, int]], max_pixels: int
) -> Iterator[tuple[int, tuple[int, int] | BadImage, np.ndarray | None]]:
    """`_examine` every image, in order. One thread reads, because row groups of Parquet are shared."""
    examine = partial(_examine, compared=len(sources) > 1, max_pixels=max_pixels)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(images), BATCH):
            contents = [_read(sources[split], index) for split, index in images[start : start + BATCH]]
            yield from pool.map(examine, contents)


def _read(source: Source, index: int) -> bytes | np.ndarray | BadImage:
    try:
        return source.contents[index]
    except BadImage as error:
        return error


def _examine(
    content: bytes | np.ndarray | BadImage, *, compared: bool, max_pixels: int
) -> tuple[int, tuple[int, int] | BadImage, np.ndarray | None]:
    """Returns a hash of the content of an image, its (height, width) or the error, and its thumbnail if it is ``compared``."""
    if isinstance(content, BadImage):
        return 0, content, None
    raw = content if isinstance(content, bytes) else content.tobytes()
    digest = int.from_bytes(blake2b(raw, digest_size=8).digest())
    if isinstance(content, np.ndarray):
        return digest, (content.shape[0], content.shape[1]), make_thumbnail(as_image(content)) if compared else None
    try:
        picture = decode(content, channels=CHANNELS, max_pixels=max_pixels)
    except BadImage as error:
        return digest, error, None
    return digest, size_of(picture), make_thumbnail(picture) if compared else None


def _find_duplicates(digests: np.ndarray) -> list[list[int]]:
    """Returns the indices of images with equal content, by group."""
    order = np.argsort(digests, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(digests[order])) + 1)
    return sorted(group.tolist() for group in groups if len(group) > 1 and digests[group[0]])


def _bin_sizes(sizes: Counter[tuple[int, int]]) -> dict[str, int]:
    """Returns the number of images by shorter side, in the steps of `SIZE_STEPS`."""
    names = [*(f"{low}-{high - 1}" for low, high in zip((1, *SIZE_STEPS), SIZE_STEPS)), f"{SIZE_STEPS[-1]}-"]
    totals = dict.fromkeys(names, 0)
    for size, count in sizes.items():
        totals[names[bisect_right(SIZE_STEPS, min(size))]] += count
    return {name: total for name, total in totals.items() if total}


def make_thumbnail(picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Returns (16, 16) grey levels of a picture; None for one that is small, no Pillow image, or nearly of one colour."""
    if isinstance(picture, np.ndarray) or min(picture.size) < SMALLEST:
        return None
    levels = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX).convert("L"))
    return levels if levels.std() >= FLAT else None


def find_near_copies(
    thumbnails: Sequence[NDArray[np.uint8] | None], groups: NDArray[np.integer]
) -> list[tuple[int, int]]:
    """Finds the pairs of images of different ``groups`` (n,) whose thumbnails are alike, each with the smaller index first.

    A difference hash (the sign of the change between neighbouring pixels) chooses candidates, and the correlation of the
    thumbnails decides, so brightness and contrast do not matter.
    """
    rows = np.array([row for row, levels in enumerate(thumbnails) if levels is not None], np.int64)
    if not len(rows) or len(np.unique(groups[rows])) < 2:
        return []
    levels = np.stack([thumbnails[row] for row in rows.tolist()]).astype(np.float32)  # (m, 16, 16)
    hashes = _hash(levels)
    flat = levels.reshape(len(rows), -1)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    found: set[tuple[int, int]] = set()
    for first, second in _list_candidates(hashes, groups[rows]):
        alike = (flat[first] * flat[second]).sum(1) >= ALIKE
        found |= set(zip(rows[first[alike]].tolist(), rows[second[alike]].tolist()))
    return sorted(found)


def _hash(levels: NDArray[np.float32]) -> NDArray[np.uint64]:
    """(m,) 56 bits: whether each of 8 x 8 blocks is darker than the next one in its row."""
    blocks = levels.reshape(len(levels), 8, 2, 8, 2).mean((2, 4))  # (m, 8, 8)
    bits = (blocks[:, :, 1:] > blocks[:, :, :-1]).reshape(len(levels), -1)  # (m, 56)
    return bits @ (np.uint64(1) << np.arange(BANDS * BITS, dtype=np.uint64))


def _list_candidates(
    hashes: NDArray[np.uint64], groups: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields arrays of pairs, the smaller index first, of different groups whose hashes differ in fewer bits than `BANDS`."""
    for band in range(BANDS):
        values = (hashes >> np.uint64(band * BITS)) & np.uint64(2**BITS - 1)
        order = np.argsort(values, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
            if len(members) < 2 or len(np.unique(groups[members])) < 2:
                continue
            for start in range(0, len(members), BLOCK):
                part = members[start : start + BLOCK]
                differing = np.bitwise_count(hashes[part, None] ^ hashes[None, members])
                near = (differing < BANDS) & (groups[part, None] != groups[None, members]) & (part[:, None] < members)
                one, other = np.nonzero(near)
                yield part[one], members[other]
