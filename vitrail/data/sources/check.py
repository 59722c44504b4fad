"""What is in a data set, and what is wrong with it: counts, sizes, bad files, duplicates, leaks between splits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Any

import numpy as np

from vitrail.data.decode import BadImage, decode
from vitrail.data.sources.labels import ROWS_SHOWN, SPLIT_ORDER
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source

BATCH = 256  # images held at a time
FEW = 10  # images to train on: a class with fewer is named
SIZE_STEPS = (32, 64, 128, 224, 384, 512, 1024, 2048, 4096)  # pixels of the shorter side


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What `check` found. An image is named by its key, with its split before it where the key does not say it."""

    layout: str
    classes: tuple[str, ...]
    counts: dict[str, dict[str, int]]  # split -> class -> images; a split without labels has its images under ""
    sizes: dict[str, int]  # shorter side, e.g. "224-383" -> images
    smallest: tuple[int, int] | None  # (height, width), of the good images
    largest: tuple[int, int] | None
    bad: tuple[tuple[str, str], ...]  # (image, reason)
    duplicates: tuple[tuple[str, ...], ...]  # images of equal content within one split
    leaks: tuple[tuple[str, ...], ...]  # images of equal content in more than one split
    conflicts: tuple[tuple[str, ...], ...]  # images of equal content and unlike labels
    few: tuple[str, ...]  # classes with fewer than FEW images to train on

    @property
    def images(self) -> int:
        return sum(sum(each.values()) for each in self.counts.values())

    @property
    def sound(self) -> bool:
        """Whether nothing here would spoil a training or its figures."""
        return not (self.bad or self.leaks or self.conflicts or self.few)

    def to_dict(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return asdict(self) | {"images": self.images, "sound": self.sound}

    def to_text(self) -> str:
        """All of it in plain lines; long lists are cut, `to_dict` has them whole."""
        splits = list(self.counts)
        lines = [f"layout   {self.layout}", f"images   {self.images:,}", f"classes  {len(self.classes)}"]
        rows: list[tuple[str, ...]] = [("", *splits)]
        rows += [
            (name or "unlabelled", *(f"{self.counts[split].get(name, 0):,}" for split in splits))
            for name in dict.fromkeys(name for split in splits for name in self.counts[split])
        ]
        lines += _table(rows[: 10 * ROWS_SHOWN])
        if self.smallest and self.largest:
            across = [f"{width} x {height}" for height, width in (self.smallest, self.largest)]
            lines.append(f"sizes    from {across[0]} to {across[1]} (width x height); by the shorter side:")
            lines += _table([(name, f"{count:,}") for name, count in self.sizes.items()])
        lines += _listed("bad images", [f"{key}: {reason}" for key, reason in self.bad])
        lines += _listed("duplicates within a split", [" = ".join(group) for group in self.duplicates])
        lines += _listed("images in more than one split", [" = ".join(group) for group in self.leaks])
        lines += _listed("equal images with unlike labels", [" = ".join(group) for group in self.conflicts])
        lines += _listed(f"classes with fewer than {FEW} images to train on", list(self.few))
        return "\n".join([*lines, "nothing wrong was found" if self.sound else "see above for what to mend"])


def check(data: Any, *, channels: int = 3, progress: Callable[[int, int], None] | None = None) -> CheckResult:
    """Reads and decodes every image of ``data``, and says what it found; changes nothing.

    Args:
        data: anything `open_data` takes; labels may be missing.
        channels: that images are decoded to.
        progress: is told how many images were read, and of how many, after each.

    Raises:
        DataError: the layout itself cannot be read.
    """
    splits = open_data(data, validation=0, channels=channels, labelled=False)
    sources = {name: part for name in SPLIT_ORDER if (part := getattr(splits, name)) is not None}
    images = [(split, index) for split, source in sources.items() for index in range(len(source))]
    digests = np.zeros(len(images), np.uint64)  # 0: bad
    bad: dict[int, str] = {}
    sizes: Counter[tuple[int, int]] = Counter()
    for number, (digest, size) in enumerate(_all_examined(sources, images, channels)):
        if isinstance(size, BadImage):
            bad[number] = size.reason
        else:
            digests[number] = digest
            sizes[size] += 1
        if progress is not None:
            progress(number + 1, len(images))

    def name(number: int) -> str:
        split, index = images[number]
        key = sources[split].keys[index]
        return key if len(sources) == 1 or key.startswith(split) else f"{split}/{key}"

    def label(number: int) -> bytes | None:
        split, index = images[number]
        return sources[split].targets[index].tobytes() if sources[split].labelled else None

    groups = _equals(digests)
    across = [group for group in groups if len({images[number][0] for number in group}) > 1]
    within = [group for group in groups if len({images[number][0] for number in group}) == 1]
    unlike = [group for group in groups if len({label(number) for number in group} - {None}) > 1]
    counts = {split: _counts(source) for split, source in sources.items()}
    return CheckResult(
        layout=splits.layout,
        classes=splits.classes,
        counts=counts,
        sizes=_histogram(sizes),
        smallest=min(sizes, key=min, default=None),
        largest=max(sizes, key=min, default=None),
        bad=tuple((name(number), reason) for number, reason in bad.items()),
        duplicates=tuple(tuple(map(name, group)) for group in within),
        leaks=tuple(tuple(map(name, group)) for group in across),
        conflicts=tuple(tuple(map(name, group)) for group in unlike),
        few=tuple(name for name, count in counts.get("train", {}).items() if name and count < FEW),
    )


def _all_examined(
    sources: dict[str, Source], images: list[tuple[str, int]], channels: int
) -> Iterator[tuple[int, tuple[int, int] | BadImage]]:
    """`_examined` of every image, in order; reading is one thread's, for row groups of Parquet are shared."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(images), BATCH):
            contents = [_read(sources[split], index) for split, index in images[start : start + BATCH]]
            yield from pool.map(_examined, contents, repeat(channels))


def _read(source: Source, index: int) -> bytes | np.ndarray | BadImage:
    try:
        return source.contents[index]
    except BadImage as error:
        return error


def _examined(content: bytes | np.ndarray | BadImage, channels: int) -> tuple[int, tuple[int, int] | BadImage]:
    """A hash of an image's content, and its (height, width), or what is wrong with it."""
    if isinstance(content, BadImage):
        return 0, content
    raw = content if isinstance(content, bytes) else content.tobytes()
    digest = int.from_bytes(blake2b(raw, digest_size=8).digest())
    if isinstance(content, np.ndarray):
        return digest, (content.shape[0], content.shape[1])
    try:
        picture = np.asarray(decode(content, channels=channels))
    except BadImage as error:
        return digest, error
    return digest, (picture.shape[0], picture.shape[1])


def _equals(digests: np.ndarray) -> list[list[int]]:
    """The numbers of the images that share their content with another, group by group."""
    order = np.argsort(digests, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(digests[order])) + 1)
    return sorted(group.tolist() for group in groups if len(group) > 1 and digests[group[0]])


def _counts(source: Source) -> dict[str, int]:
    if not source.labelled:
        return {"": len(source)}
    return dict(zip(source.classes, source.counts().tolist()))


def _histogram(sizes: Counter[tuple[int, int]]) -> dict[str, int]:
    """Images by their shorter side, in the steps of `SIZE_STEPS`."""
    edges = (1, *SIZE_STEPS)
    steps = np.searchsorted(SIZE_STEPS, [min(size) for size in sizes], side="right")
    found = Counter[int]()
    for step, count in zip(steps.tolist(), sizes.values()):
        found[step] += count
    names = [*(f"{low}-{high - 1}" for low, high in zip(edges, SIZE_STEPS)), f"{SIZE_STEPS[-1]}-"]
    return {names[step]: found[step] for step in sorted(found)}


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]


def _listed(title: str, entries: list[str]) -> list[str]:
    if not entries:
        return []
    more = [f"  ... and {len(entries) - ROWS_SHOWN:,} more"] if len(entries) > ROWS_SHOWN else []
    return [f"{title}: {len(entries):,}", *(f"  {entry}" for entry in entries[:ROWS_SHOWN]), *more]
