"""Caching decoded small images in memory: decoding 50,000 of 32 x 32 in every epoch would take longer than training on them.

Axes: n items, H, W, C.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import PIL

from vitrail.data.sources.annotations import PixelMaps
from vitrail.data.sources.contents import Arrays, UserDataset, choose_evenly
from vitrail.data.sources.deep_files import DeepFiles
from vitrail.data.sources.source import Source
from vitrail.errors import DataError
from vitrail.files import disk_errors, read_checksummed, stage_file, write_checksummed
from vitrail.images.decode import BadImage, decode, header_size

SMALL = 64  # maximum pixels per side
PROBES = 65  # number of images whose headers are read
KEPT_BYTES = 2**32
VERSION = 1  # of what is kept in a shared folder: raised where `decode` gives other pixels

Decoded = tuple[np.ndarray, dict[int, str]]  # (n, H, W, C) uint8, and the reasons of bad images by row


def keep_decoded(
    source: Source,
    *,
    channels: int | None = None,
    bad: Callable[[str, str], None] | None = None,
    sample: int | None = None,
    shared: Path | None = None,
) -> Source:
    """Decodes a source of small images of one size into a source of arrays. Any other source is returned unchanged.

    The decision depends only on the source, never on free memory: the headers of 65 images, evenly spaced, must have the
    same size of at most 64 x 64, all images must fit in 4 GiB, and every image that can be decoded must have that size.
    Unchanged are a user's Dataset, whose images may differ each time, and images with a value for every pixel.

    Args:
        channels: to which files are decoded; 3 by default.
        bad: called with (key, reason) for each image that cannot be decoded and is missing from the result. Without it
            the first such image is an error.
        sample: decode only this many images, evenly spaced, and repeat them in place of the others. For measurements: the
            result has the length, the targets and the speed of the whole. Bad images are not reported.
        shared: a folder in which the decoded images are kept in a file, named after the content of the image files, and from
            which they are mapped: they are decoded once, and all processes that map them share their memory. Several processes
            may begin at once; what is damaged is decoded again. Nothing in the folder is ever removed.

    Raises `DiskError` if ``shared`` cannot be written, and `DataError` for a bad image if ``bad`` is None.
    """
    channels = channels or 3
    as_is = isinstance(source.contents, UserDataset | DeepFiles) or isinstance(source.targets, PixelMaps)
    size = None if as_is or source.kind == "arrays" else _common_size(source)
    if size is None or max(size) > SMALL or len(source) * size[0] * size[1] * channels > KEPT_BYTES:
        return source
    if sample is not None and sample < len(source):
        rows = np.linspace(0, len(source) - 1, sample).astype(np.int64)
        some = keep_decoded(source.subset(rows), channels=channels, bad=lambda key, reason: None)
        if some.kind == "files" or not len(some):
            return source
        return replace(source, contents=Arrays(np.resize(some.images, (len(source), *size, channels)), source.keys))
    decoded = _decode(source, size, channels) if shared is None else _share(source, size, channels, shared)
    if decoded is None:
        return source
    images, reasons = decoded
    for row, reason in reasons.items():
        if bad is None:
            raise DataError(f"the image {source.keys[row]} is bad: {reason}", "repair or remove it")
        bad(source.keys[row], reason)
    good = np.array([row for row in range(len(source)) if row not in reasons], np.int64)
    kept = source.subset(good) if reasons else source
    return replace(kept, contents=Arrays(images[good] if reasons else images, kept.keys))


def _decode(source: Source, size: tuple[int, int], channels: int) -> Decoded | None:
    """All images, and the reasons of those that cannot be decoded; None where one has another size."""
    images = np.zeros((len(source), *size, channels), np.uint8)  # (n, H, W, C)
    reasons: dict[int, str] = {}
    # sequentially: Pillow holds the interpreter lock for most of a small image, and threads were slower
    for row in range(len(source)):
        try:
            picture = np.asarray(decode(_read(source, row), channels=channels))  # (H, W) or (H, W, C)
        except BadImage as error:
            reasons[row] = error.reason
            continue
        if picture.shape[:2] != size:
            return None
        images[row] = picture.reshape(images.shape[1:])
    return images, reasons


def _share(source: Source, size: tuple[int, int], channels: int, folder: Path) -> Decoded | None:
    """Returns the result of `_decode` with its images mapped from a file in ``folder``, written if missing or damaged."""
    name = _hash_contents(source, size, channels)
    path, about = folder / f"{name}.npy", folder / f"{name}.json"
    stored = read_checksummed(about)
    if stored is not None and (images := _map(path)) is not None and zlib.crc32(images.data) == stored["crc"]:
        return images, {int(row): reason for row, reason in stored["bad"].items()}
    if (decoded := _decode(source, size, channels)) is None:
        return None
    images, reasons = decoded
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with stage_file(path) as staged, open(staged, "wb") as file:
            np.save(file, images)
    # the description last: of several processes that write both, each writes the same
    write_checksummed(about, {"crc": zlib.crc32(images.data), "bad": reasons})
    mapped = _map(path)
    return images if mapped is None else mapped, reasons


def _map(path: Path) -> np.ndarray | None:
    """The array in a file, in pages that all processes share; None for a file that is missing or damaged."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception:  # NumPy's parser of headers raises many types
        return None


def _hash_contents(source: Source, size: tuple[int, int], channels: int) -> str:
    """A name for the images of a source as they are decoded: equal for equal bytes of the files in the same order."""
    digest = blake2b(f"{VERSION} {PIL.__version__} {size} {channels} {len(source)}".encode(), digest_size=16)
    for row in range(len(source)):
        try:
            content = _read(source, row)
        except BadImage as error:
            content = error.reason.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _common_size(source: Source) -> tuple[int, int] | None:
    """(H, W) if all the headers that are read agree on it."""
    sizes = set()
    for row in choose_evenly(len(source), PROBES).tolist():
        with suppress(BadImage):
            sizes.add(header_size(_read(source, row)))
    sizes.discard(None)
    return sizes.pop() if len(sizes) == 1 else None


def _read(source: Source, row: int) -> bytes:
    content = source.contents[row]
    assert isinstance(content, bytes)
    return content
