"""Targets that are more than a label: the objects of an image as boxes, or a value or a class for every pixel. No torch.

n images, M objects, V values of masks, K classes, H and W of the upright picture. Boxes are (left, top, right, bottom) in pixels
of the upright picture, measured from its upper left corner, so that a whole picture of H x W pixels is the box (0, 0, W, H)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.contents import Contents, choose_evenly
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.images.masks import IGNORED, encode_colours, open_mask, read_numbers
from vitrail.images.pixel_format import PixelFormat
from vitrail.images.rle import Rle
from vitrail.stamps import Stamped, hash_each
from vitrail.untrusted.limits import PIXELS

DRAWN_BOX = b"#"  # as the outline of an object: it was drawn as an upright rectangle, and is all of its box
FLAT = ("boxes", "labels", "crowd", "areas")  # what `Objects` has of each object


class Annotations(ABC):
    """One target for each of n images; see `Objects` and `PixelMaps`. Immutable."""

    task: ClassVar[str]  # that learns from them, as in `vitrail.tasks.TASKS`
    counted: ClassVar[str]  # what `count_classes` counts
    pixel_format: ClassVar[PixelFormat | None] = None  # of a value for every pixel

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, rows: NDArray[np.integer]) -> Self:
        """The targets of these images, in this order."""

    @classmethod
    def join(cls, images: Sequence[Self]) -> Self:
        """The targets of several parts, one after the other. Raises `DataError` where they cannot be joined."""
        what = f"the images of two splits are to be one, and their {cls.counted} are annotated apart"
        raise DataError(what, "annotate them as one split")

    @abstractmethod
    def of(self, row: int) -> Any:
        """The target of one image."""

    @abstractmethod
    def digest(self, row: int) -> bytes:
        """Bytes that are equal for images with equal targets."""

    def hashes(self) -> NDArray[np.uint64]:
        """(n,) a number for the target of each image, equal for equal targets."""
        return hash_each(map(self.digest, range(len(self))))

    def stamp(self, keys: Sequence[str]) -> Stamped | None:
        """The targets of the images with these keys as they are now, to find out later whether they have changed."""
        return Stamped.of_hashes(keys, self.hashes())

    @abstractmethod
    def count_classes(self, classes: int) -> NDArray[np.int64]:
        """How often each class occurs: (K,)."""

    @abstractmethod
    def renumber(self, indices: NDArray[np.int64], classes: int) -> Self:
        """The same targets with class k as class ``indices[k]`` of K; -1 stands for none, and for classes that do not occur."""

    def strata(self) -> NDArray[np.int64]:
        """(n,) the class that stands for each image in a stratified split; without one all images are alike."""
        return np.zeros(len(self), np.int64)

    @abstractmethod
    def read_map(self, row: int, size: tuple[int, int]) -> NDArray[Any] | None:
        """Returns the value of every pixel of an upright picture of this (height, width), or None.

        Raises `BadImage` where the picture was annotated in another size.
        """


@dataclass(frozen=True, eq=False)
class Objects(Annotations):
    """The objects of n images in flat buffers: small to pickle, however many there are.

    Args:
        boxes: (M, 4) float32, those of the first image first.
        labels: (M,) int32 indices of classes.
        crowd: (M,) bool: groups of objects, or objects that are too difficult. They are ignored in training and evaluated as COCO
            evaluates them: they can absorb detections, and nobody has to find them.
        areas: (M,) float32 in square pixels, of the objects' outlines where these are known.
        ends: (n,) int64, the number of objects up to and with each image.
        sizes: (n, 2) int32 height and width of the pictures as they were annotated; 0 where the annotation does not say.
        outlines: the outline of each object as compressed run lengths of COCO (`vitrail.images.rle`), `DRAWN_BOX`, or empty for
            an object without one.
    """

    task, counted = "detection", "objects"
    boxes: NDArray[np.float32]
    labels: NDArray[np.int32]
    crowd: NDArray[np.bool_]
    areas: NDArray[np.float32]
    ends: NDArray[np.int64]
    sizes: NDArray[np.int32]
    outlines: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        objects, images = len(self.boxes), len(self.ends)
        assert self.boxes.shape == (objects, 4), self.boxes.shape
        assert len(self.labels) == len(self.crowd) == len(self.areas) == objects, "one of each per object"
        assert len(self.sizes) == images, (len(self.sizes), images)
        assert objects == (self.ends[-1] if images else 0), "the last end is the number of objects"
        assert self.outlines is None or len(self.outlines) == objects, "one outline per object"

    @classmethod
    def join(cls, images: Sequence[Self]) -> Self:
        """The objects of one or more parts, one after the other; outlines only if all have them."""
        names = (*FLAT, "sizes")
        flat: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in images]) for name in names}
        outlined = all(part.outlines is not None for part in images)
        outlines = tuple(outline for part in images for outline in part.outlines or ()) if outlined else None
        ends = np.concatenate([part.lengths() for part in images]).cumsum()
        return replace(images[0], **flat, ends=ends, outlines=outlines)

    @classmethod
    def of_image(
        cls,
        boxes: Any,
        labels: Any,
        *,
        crowd: Any = None,
        areas: Any = None,
        size: tuple[int, int] = (0, 0),
        outlines: Sequence[bytes] | None = None,
        **fields: Any,
    ) -> Self:
        """The objects of one image, with ``fields`` of a subclass; areas are those of the boxes unless they are given."""
        boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
        sides = boxes[:, 2:] - boxes[:, :2]
        return cls(
            boxes=boxes,
            labels=np.asarray(labels, np.int32).reshape(-1),
            crowd=np.zeros(len(boxes), bool) if crowd is None else np.asarray(crowd, bool),
            areas=sides.prod(1) if areas is None else np.asarray(areas, np.float32),
            ends=np.array([len(boxes)], np.int64),
            sizes=np.array([size], np.int32),
            outlines=None if outlines is None else tuple(outlines),
            **fields,
        )

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> NDArray[np.int64]:
        """(n,) how many objects each image has."""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, rows: NDArray[np.integer]) -> Self:
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths()[rows]
        ends = lengths.cumsum()
        # the number of each chosen object: where its image begins, and its place in the image
        within = np.arange(lengths.sum()) - (ends - lengths).repeat(lengths)
        chosen = (self.ends[rows] - lengths).repeat(lengths) + within
        flat: dict[str, Any] = {name: getattr(self, name)[chosen] for name in FLAT}
        outlines = None if self.outlines is None else tuple(self.outlines[place] for place in chosen.tolist())
        return replace(self, **flat, ends=ends, sizes=self.sizes[rows], outlines=outlines)

    def of(self, row: int) -> Self:
        return self[np.array([row])]

    @property
    def hashed(self) -> tuple[NDArray[Any], ...]:
        """What counts of each object where targets are compared, beside its outline."""
        return self.boxes, self.labels, self.crowd

    def digest(self, row: int) -> bytes:
        return b"".join(part.tobytes() for part in self.of(row).hashed)

    def hashes(self) -> NDArray[np.uint64]:
        arrays, outlines = self.hashed, self.outlines or ()
        return hash_each(
            b"\0".join((*(array[first:last].tobytes() for array in arrays), *outlines[first:last]))
            for first, last in pairwise((0, *self.ends.tolist()))
        )

    def find_painted_size(self, row: int) -> tuple[int, int]:
        """Returns the (height, width) in which outlines of an image are painted.

        Raises `BadImage` where it is not known, or over the limit.
        """
        height, width = self.sizes[row].tolist()
        if not height or not width:
            raise BadImage("the annotation does not say how large the picture is, so its outlines cannot be painted")
        if height * width > PIXELS:
            raise BadImage(f"the annotation is for {width} x {height} pixels, over the limit of {PIXELS:,}")
        return height, width

    def count_classes(self, classes: int) -> NDArray[np.int64]:
        return np.bincount(self.labels, minlength=classes)

    def renumber(self, indices: NDArray[np.int64], classes: int) -> Self:
        return replace(self, labels=indices.astype(np.int32)[self.labels])

    def strata(self) -> NDArray[np.int64]:
        """The rarest class of each image; images without objects form a class of their own."""
        counts = np.bincount(self.labels, minlength=1)
        by_rank = np.argsort(counts, kind="stable")  # the rarest class first
        rank = np.argsort(by_rank)
        least = np.full(len(self), len(counts), np.int64)
        np.minimum.at(least, np.arange(len(self)).repeat(self.lengths()), rank[self.labels])
        return np.append(by_rank, len(counts))[least]

    def read_map(self, row: int, size: tuple[int, int]) -> NDArray[Any] | None:
        check_annotated_size(tuple(self.sizes[row].tolist()), size)
        return None


NOT_SHOWN, UNCOUNTED = -1, -2  # in a map of objects: pixels beyond the picture, and those of crowds
LABEL_BITS, MOST_OBJECTS = 16, 2**15 - 1


@dataclass(frozen=True, eq=False)
class OutlinedObjects(Objects):
    """Objects of which every outline is known as run lengths.

    The map of an image has in every pixel of an object, from low bits to high, the index of its class in `LABEL_BITS` bits and
    its number among the objects of the image, from 1; 0 in the background, and `UNCOUNTED` in crowds. Where objects overlap,
    the smaller one is on top.
    """

    task = "instances"
    pixel_format = PixelFormat(np.int32, NOT_SHOWN, "nearest")
    elsewhere: ClassVar[int] = 0  # in the map: pixels of no object

    def masks(self) -> list[Rle]:
        """Returns the outlines of all objects. Raises `BadImage` as `find_painted_size`."""
        sizes = [self.find_painted_size(row) for row in range(len(self))]
        owners = np.repeat(np.arange(len(self)), self.lengths()).tolist()
        return [Rle.of_text(outline, sizes[owner]) for outline, owner in zip(self.outlines or (), owners)]

    def read_map(self, row: int, size: tuple[int, int]) -> NDArray[np.int32]:
        check_annotated_size(self.find_painted_size(row), size)
        one = self.of(row)
        if len(one.labels) > MOST_OBJECTS:
            raise BadImage(f"{len(one.labels):,} objects, at most {MOST_OBJECTS:,} can be told apart")
        masks, values = one.masks(), np.arange(1, len(one.labels) + 1) << LABEL_BITS | one.labels
        columns = np.full(size[0] * size[1], self.elsewhere, np.int32)  # column by column
        for place in np.lexsort((-one.areas, ~one.crowd)).tolist():
            masks[place].paint(columns, UNCOUNTED if one.crowd[place] else int(values[place]))
        return np.ascontiguousarray(columns.reshape(size[::-1]).T)


@dataclass(frozen=True, eq=False)
class PanopticObjects(OutlinedObjects):
    """The segments of images, of things and of stuff, which do not overlap. In the map pixels of no segment are `UNCOUNTED`.

    Args:
        things: (K,) whether each class is one of things, whose segments are single objects.
    """

    task, counted = "panoptic", "segments"
    elsewhere = UNCOUNTED
    things: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.labels.max(initial=-1) < len(self.things), "things says of every class whether it is one"

    @property
    def hashed(self) -> tuple[NDArray[Any], ...]:
        return *super().hashed, np.array(self.things, bool)[self.labels]

    def renumber(self, indices: NDArray[np.int64], classes: int) -> Self:
        """As that of `Annotations`. A class that the data do not name is one of things."""
        things = dict(zip(indices.tolist(), self.things))
        flags = tuple(things.get(index, True) for index in range(classes))
        return replace(self, labels=indices.astype(np.int32)[self.labels], things=flags)


def check_annotated_size(annotated: tuple[int, ...], size: tuple[int, int], what: str = "annotation") -> None:
    """Raises `BadImage` where an upright picture has another (height, width) than its annotation, of which 0 says nothing."""
    if not all(annotated) or annotated == size:
        return
    fact = f"the {what} is for {annotated[1]} x {annotated[0]} pixels, the upright image has {size[1]} x {size[0]}"
    if annotated == size[::-1]:
        fact += ": it was annotated before it was turned upright by its EXIF orientation"
    raise BadImage(fact)


class PixelMaps(Annotations):
    """A value for every pixel of n images, read when it is needed. A subclass is a dataclass with ``contents``."""

    counted = "pixels"
    pixel_format: ClassVar[PixelFormat]
    contents: Contents

    def __len__(self) -> int:
        return len(self.contents.keys)

    def __getitem__(self, rows: NDArray[np.integer]) -> Self:
        return replace(self, contents=self.contents.take(np.asarray(rows, np.int64)))  # type: ignore[bad-argument-type]

    def of(self, row: int) -> NDArray[Any]:
        """Returns the values of one image, (H, W). Raises `BadImage` if they cannot be used."""
        content = self.contents[row]
        assert isinstance(content, np.ndarray), "a subclass decodes files"
        return content[..., 0].astype(self.pixel_format.dtype, copy=False)

    def read_map(self, row: int, size: tuple[int, int]) -> NDArray[Any]:
        levels = self.of(row)
        check_annotated_size(levels.shape, size, "mask")
        return levels

    def digest(self, row: int) -> bytes:
        try:
            return self.of(row).tobytes()
        except BadImage:
            return b""

    def count_classes(self, classes: int) -> NDArray[np.int64]:
        return np.zeros(classes, np.int64)

    def renumber(self, indices: NDArray[np.int64], classes: int) -> Self:
        return self


COUNTED = 1000  # maps that are read to count classes; of more, as many evenly spaced ones


@dataclass(frozen=True, eq=False)
class LabelMaps(PixelMaps):
    """A class for every pixel of n images, read when they are needed.

    Args:
        contents: of the mask files, or arrays (H, W, 1).
        values: what the masks contain: (V,) numbers of palette or grey masks, or (V, 3) colours.
        indices: (V,) uint8 the class of each value, or `IGNORED`.
    """

    task = "segmentation"
    pixel_format = PixelFormat(np.uint8, IGNORED, "nearest")
    contents: Contents  # type: ignore[bad-override]
    values: NDArray[np.uint8]
    indices: NDArray[np.uint8]

    def of(self, row: int) -> NDArray[np.uint8]:
        """(H, W) uint8 indices of classes, or `IGNORED`. Raises `BadImage` for a mask that cannot be used."""
        content = self.contents[row]
        if self.values.ndim == 2:  # colours, which only files have
            assert isinstance(content, bytes)
            levels = np.asarray(open_mask(content).convert("RGB"))
            known, codes = encode_colours(self.values), encode_colours(levels)  # (V,), (H, W)
            order = np.argsort(known)
            places = order[np.searchsorted(known, codes, sorter=order).clip(max=len(known) - 1)]
            found = np.where(known[places] == codes, self.indices[places], np.int16(-1))
        else:
            levels = read_numbers(open_mask(content)) if isinstance(content, bytes) else content[..., 0]
            table = np.full(256, -1, np.int16)
            table[self.values] = self.indices
            found = table[levels]
        if (unknown := found < 0).any():
            examples = np.unique(levels[unknown], axis=0)[:5].tolist()
            raise BadImage(f"the mask contains {', '.join(map(str, examples))}, which stands for no class")
        return found.astype(np.uint8)

    def hashes(self) -> NDArray[np.uint64]:
        """(n,) all equal: the meaning of the values of masks. The masks themselves are compared as files; see `stamp`."""
        return np.repeat(hash_each([self.values.tobytes() + self.indices.tobytes()]), len(self))

    def stamp(self, keys: Sequence[str]) -> Stamped | None:
        return self.contents.stamp()

    @cached_property
    def pixels(self) -> NDArray[np.int64]:
        """(256,) pixels of each class in at most `COUNTED` masks, without those that cannot be read."""
        total = np.zeros(256, np.int64)
        for row in choose_evenly(len(self), COUNTED).tolist():
            try:
                total += np.bincount(self.of(row).reshape(-1), minlength=256)
            except BadImage:
                continue
        return total

    def count_classes(self, classes: int) -> NDArray[np.int64]:
        """(K,) pixels of each class; see `pixels`."""
        return self.pixels[:classes]

    def renumber(self, indices: NDArray[np.int64], classes: int) -> LabelMaps:
        table = np.append(indices, np.full(256 - len(indices), IGNORED)).astype(np.uint8)
        return replace(self, indices=table[self.indices])
