"""Caching decoded small images in memory. 50,000 images of 32 x 32 are 150 MB, and decoding them in every epoch would take
longer than training on them.

Axes: n items, H, W, C.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from vitrail.data.decode import BadImage, decode, header_size
from vitrail.data.sources.contents import Arrays, UserDataset
from vitrail.data.sources.label_maps import LabelMaps
from vitrail.data.sources.source import Source
from vitrail.errors import DataError

SMALL = 64  # maximum pixels per side
PROBES = 65  # number of images whose headers are read
KEPT_BYTES = 2**32


def keep_decoded(
    source: Source,
    *,
    channels: int | None = None,
    bad: Callable[[str, str], None] | None = None,
    sample: int | None = None,
) -> Source:
    """Decode a source of small images of one size into a source of arrays. Any other source is returned unchanged.

    The decision depends only on the source, never on free memory: the headers of 65 images, evenly spaced, must have the
    same size of at most 64 x 64, all images must fit in 4 GiB, and every image that can be decoded must have that size.
    A user's Dataset is unchanged, because its images may differ each time; so are images with maps of classes, which are read
    with them.

    Args:
        channels: to which files are decoded; 3 by default.
        bad: called with (key, reason) for each image that cannot be decoded and is missing from the result. Without it
            the first such image is an error.
        sample: decode only this many images, evenly spaced, and repeat them in place of the others. For measurements: the
            result has the length, the targets and the speed of the whole. Bad images are not reported.

    Raises:
        DataError: a bad image if ``bad`` is None, or what ``bad`` raises.
    """
    channels = channels or 3
    as_is = source.kind == "arrays" or isinstance(source.contents, UserDataset) or isinstance(source.targets, LabelMaps)
    size = None if as_is else _common_size(source)
    if size is None or max(size) > SMALL or len(source) * size[0] * size[1] * channels > KEPT_BYTES:
        return source
    if sample is not None and sample < len(source):
        rows = np.linspace(0, len(source) - 1, sample).astype(np.int64)
        some = keep_decoded(source.subset(rows), channels=channels, bad=lambda key, reason: None)
        if some.kind == "files" or not len(some):
            return source
        return replace(source, contents=Arrays(np.resize(some.images, (len(source), *size, channels)), source.keys))
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
            return source
        images[row] = picture.reshape(images.shape[1:])
    for row, reason in reasons.items():
        if bad is None:
            raise DataError(f"the image {source.keys[row]} is bad: {reason}", "repair or remove it")
        bad(source.keys[row], reason)
    good = np.array([row for row in range(len(source)) if row not in reasons], np.int64)
    kept = source.subset(good) if reasons else source
    return replace(kept, contents=Arrays(images[good] if reasons else images, kept.keys))


def _common_size(source: Source) -> tuple[int, int] | None:
    """(H, W) if all the headers that are read agree on it."""
    sizes = set()
    for row in sorted({round(row) for row in np.linspace(0, len(source) - 1, PROBES)}) if len(source) else []:
        with suppress(BadImage):
            sizes.add(header_size(_read(source, row)))
    sizes.discard(None)
    return sizes.pop() if len(sizes) == 1 else None


def _read(source: Source, row: int) -> bytes:
    content = source.contents[row]
    assert isinstance(content, bytes)
    return content
