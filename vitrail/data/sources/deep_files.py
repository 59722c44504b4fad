"""Files of images of more than 8 bits, or of more than four bands, as floats (H, W, C); see `vitrail.images.deep_images`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.contents import Contents, StoredUnits, Strings, Units, choose_evenly
from vitrail.data.sources.source import Source, Splits, list_splits
from vitrail.images.decode import MODES, BadImage
from vitrail.images.deep_images import Pixels, decode_deep, describe_pixels, read_levels
from vitrail.images.pixel_range import Levels
from vitrail.stamps import Stamped
from vitrail.text import plural
from vitrail.untrusted.limits import PIXELS

PROBES = 16  # headers that tell whether images are deep
MEASURED = 1000  # training images whose range is measured; of more, as many evenly spaced ones


@dataclass(frozen=True, eq=False)
class DeepFiles(Contents):
    """The images of other contents as float32 (H, W, C) in [0, 1], where ``levels`` become 0 and 1."""

    contents: Contents
    channels: int
    levels: Levels | None
    max_pixels: int = PIXELS

    @property
    def keys(self) -> Strings:
        return self.contents.keys

    @property
    def units(self) -> Units | StoredUnits | None:
        return self.contents.units

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        content = self.contents[row]
        assert isinstance(content, bytes)
        return decode_deep(content, channels=self.channels, levels=self.levels, max_pixels=self.max_pixels)

    def take(self, rows: NDArray[np.int64]) -> DeepFiles:
        return replace(self, contents=self.contents.take(rows))

    def fingerprints(self) -> list[Hashable] | None:
        return self.contents.fingerprints()

    def checksum(self, row: int) -> str:
        return self.contents.checksum(row)

    def stamp(self) -> Stamped | None:
        return self.contents.stamp()


def open_deep(
    splits: Splits, *, channels: int | None = None, levels: Levels | None = None, max_pixels: int = PIXELS
) -> Splits:
    """The same data with deep images read as floats; data of 8 bits and up to four bands as they are.

    Without ``levels`` the smallest and the largest value of the training images become 0 and 1; `Splits.layout` says which.
    Without ``channels`` images have as many as the files have bands. A file of more than ``max_pixels`` is bad.
    """
    source = next(iter(list_splits(splits).values()), None)
    if source is None or source.kind != "files" or not len(source):
        return splits
    found = [pixels for _, pixels in _describe_evenly(source, PROBES)]
    if not any(pixels.deep or pixels.bands not in MODES for pixels in found):
        return splits
    channels = channels or max(pixels.bands for pixels in found)
    if levels is None and any(pixels.deep for pixels in found):
        levels = measure_levels(source, max_pixels)
    clause = f"; images of {plural(channels, 'channel')}"
    clause += f", of which the values {levels[0]:g} to {levels[1]:g} become 0 to 1" if levels else ""
    parts: dict[str, Any] = {
        name: replace(part, contents=DeepFiles(part.contents, channels, levels, max_pixels))
        for name, part in list_splits(splits).items()
    }
    return replace(splits, **parts, layout=splits.layout + clause)


def find_levels(source: Source) -> Levels | None:
    """Returns the values that become 0 and 1 in the images of a source; None for images of 8 bits."""
    return source.contents.levels if isinstance(source.contents, DeepFiles) else None


def measure_levels(source: Source, max_pixels: int = PIXELS) -> Levels | None:
    """The smallest and the largest value of the deep images of a source; None if none can be read."""
    ranges: list[float] = []
    for content, pixels in _describe_evenly(source, MEASURED):
        with suppress(BadImage):
            if pixels.deep and (values := read_levels(content, max_pixels=max_pixels)).dtype != np.uint8:
                ranges += float(values.min()), float(values.max())
    return (min(ranges), max(ranges)) if ranges else None


def _describe_evenly(source: Source, most: int) -> Iterator[tuple[bytes, Pixels]]:
    """At most ``most`` evenly spaced files that can be read, with what their headers say."""
    for row in choose_evenly(len(source), most).tolist():
        with suppress(BadImage):
            content = source.contents[row]
            if isinstance(content, bytes) and (pixels := describe_pixels(content)):
                yield content, pixels
