"""Sources: images and their targets, independent of the layout on disk; two sources as one, and parts of a source.

At the end classes of the data stand for one or several of a model's, as ObjectNet's for ImageNet's. Which items are for
validation, where the data have no validation split, and which are in a part of the data are functions of the seed, the keys and
the labels: they do not depend on the order of files or on a random generator, and few items change sides when files are added.
Axes: n items, H, W, C as an image has them, K classes, D classes of other data.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.data.imagenet import index_classes
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.contents import Arrays, Contents, Files, StoredUnits, Strings, Units
from vitrail.data.sources.labels import BETWEEN, count_classes
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.images.decode import BadImage, upright_size
from vitrail.stamps import Stamped, hash_each
from vitrail.untrusted.files import read_text


@dataclass(frozen=True, eq=False)
class Item:
    """One example: the bytes of an image file or an array (H, W, C) uint8 or float32, its target, and its key."""

    content: bytes | np.ndarray
    target: Any  # class index; (K,) float32 of zeros and ones; of `Annotations` what they have of it; None: unlabelled
    key: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Examples by index. Immutable and small to pickle; files are opened when they are read."""

    contents: Contents
    targets: np.ndarray | Annotations  # (n,) int64, or (n, K) float32; (0,) where unlabelled
    classes: tuple[str, ...] = ()
    multi_label: bool = False

    def __len__(self) -> int:
        return len(self.contents.keys)

    @property
    def keys(self) -> Strings:
        """One key per item: its path relative to the root of the data, or e.g. "train.parquet#17"."""
        return self.contents.keys

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each key."""
        return {key: row for row, key in enumerate(self.keys)}

    @property
    def kind(self) -> Literal["files", "arrays"]:
        """`arrays`: all images are in memory and have one size. `files`: images are read and decoded when needed."""
        return self.contents.kind

    @property
    def units(self) -> Units | StoredUnits | None:
        """Which items are read together; None where any order costs the same."""
        return self.contents.units

    @property
    def images(self) -> np.ndarray:
        """All images (n, H, W, C) of a source whose kind is `arrays`."""
        assert isinstance(self.contents, Arrays), "only a source of arrays has its images in memory"
        return self.contents.images

    @property
    def labelled(self) -> bool:
        return len(self.targets) > 0

    @property
    def single_label(self) -> bool:
        """Whether each image has one class."""
        return self.labelled and not self.multi_label and not isinstance(self.targets, Annotations)

    @property
    def labels(self) -> np.ndarray:
        """The targets of a source whose images have classes. Raises `DataError` for boxes or a class for every pixel."""
        if isinstance(self.targets, Annotations):
            what = f"classes of images are required, and the data have classes of {self.targets.counted}"
            raise DataError(what, "give data with one class folder per class, or a manifest with labels")
        return self.targets

    def read(self, index: int) -> Item:
        """One item, not yet decoded. Raises `BadImage` if it cannot be read."""
        index = range(len(self))[index]
        if isinstance(self.targets, Annotations):
            target = self.targets.of(index)
        else:
            target = self.targets[index] if self.labelled else None
            target = int(target) if isinstance(target, np.integer) else target
        return Item(self.contents[index], target, self.keys[index])

    def digest_target(self, index: int) -> bytes | None:
        """Bytes that are equal for equal targets; None for an unlabelled image."""
        if not self.labelled:
            return None
        targets = self.targets
        return targets.digest(index) if isinstance(targets, Annotations) else targets[index].tobytes()

    def stamp(self) -> dict[str, Stamped]:
        """The ``images`` and the ``targets`` as they are now, as far as that can be had without reading all of them."""
        stamps = {"images": self.contents.stamp()}
        if isinstance(self.targets, Annotations):
            stamps["targets"] = self.targets.stamp(self.keys)
        elif self.labelled:
            stamps["targets"] = Stamped.of_hashes(self.keys, self._hash_targets())
        return {what: stamped for what, stamped in stamps.items() if stamped is not None}

    def _hash_targets(self) -> np.ndarray:
        """(n,) uint64: classes as they are, and hashes of several labels or annotations."""
        if isinstance(self.targets, Annotations):
            return self.targets.hashes()
        if self.targets.ndim == 1:
            return self.targets.view(np.uint64)
        return hash_each(row.tobytes() for row in self.targets)

    def digest_targets(self) -> str:
        """The SHA-256 of the classes, and of the keys and targets in their order; see `Annotations.hashes`."""
        digest = sha256("\0".join(self.classes).encode())
        digest.update(hash_each(key.encode() for key in self.keys).tobytes())
        if self.labelled:
            digest.update(self._hash_targets().tobytes())
        return digest.hexdigest()

    def drop_targets(self) -> Source:
        """The images alone."""
        return replace(self, targets=np.zeros(0, np.int64), classes=())

    def subset(self, indices: Sequence[int] | np.ndarray) -> Source:
        """The items at these indices, in this order."""
        rows = np.asarray(indices, np.int64)
        targets = self.targets[rows] if self.labelled else self.targets
        return replace(self, contents=self.contents.take(rows), targets=targets)

    def pick(self, keys: Sequence[str]) -> Source:
        """The items with these keys, e.g. the held-out ones of a run. Raises `DataError` if one is missing."""
        if missing := [key for key in keys if key not in self.rows]:
            fact = f"{len(missing):,} of {len(keys):,} recorded images are not in the data, e.g. {missing[0]!r}"
            raise DataError(fact, "give the same data that the run was started with")
        return self.subset([self.rows[key] for key in keys])

    @property
    def counted(self) -> str:
        """The unit of `counts`: images, objects or pixels."""
        return self.targets.counted if isinstance(self.targets, Annotations) else "images"

    def counts(self) -> np.ndarray:
        """Number of items per class: (K,) int64; of objects or of pixels where the targets are such."""
        return count_classes(self.targets, len(self.classes))


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The splits of a data set. Data without split names are the training split."""

    train: Source | None = None
    val: Source | None = None
    test: Source | None = None
    classes: tuple[str, ...] = ()
    layout: str = ""  # description of the detected layout
    held_out: bool = False  # val was held out of train by `open_data`
    seed: int = 0  # of the held-out split
    notes: tuple[str, ...] = ()  # on annotations that were repaired or left out
    # keys of training images that seem to be equal to others with other labels; found where a validation split is held out
    suspects: tuple[str, ...] = ()


def list_splits(splits: Splits) -> dict[str, Source]:
    """The splits that exist, by name."""
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    return {name: part for name, part in parts.items() if part is not None}


def drop_annotations(splits: Splits) -> Splits:
    """The same images without their boxes or maps of classes; classes of images stay."""
    annotated = {name: part for name, part in list_splits(splits).items() if isinstance(part.targets, Annotations)}
    if not annotated:
        return splits
    plain: dict[str, Any] = {name: part.drop_targets() for name, part in annotated.items()}
    return replace(splits, classes=(), **plain)


def describe_data(splits: Splits) -> str:
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in list_splits(splits).items())
    shown = ", ".join(splits.classes[:8]) + (", ..." if len(splits.classes) > 8 else "")
    held = f" (val held out of train{', stratified' if splits.classes else ''})" if splits.held_out else ""
    classes = f"{len(splits.classes)}: {shown}" if splits.classes else "none: the images have no labels"
    return f"data     {splits.layout}: {sizes}{held}\nclasses  {classes}"


def choose_split(splits: Splits, asked: str | None = None) -> tuple[str, Source]:
    """The named split, else test, else val, else train. Raises `DataError` if it does not exist."""
    existing = {name: part for name, part in list_splits(splits).items() if len(part)}
    if not existing:
        raise DataError("the data have no images", "run `vitrail data check` to see what was found")
    name = list(existing)[-1] if asked is None else asked
    if name not in existing:
        raise DataError(f"the data have no split {asked!r}", f"choose one of: {', '.join(reversed(existing))}")
    return name, existing[name]


@dataclass(frozen=True, eq=False)
class Joined(Contents):
    """Items of several contents; ``parts`` (n,) and ``rows`` (n,) say where each item is."""

    contents: tuple[Contents, ...]
    parts: np.ndarray
    rows: np.ndarray
    keys: Strings

    @property
    def root(self) -> str:
        """The folder that the keys start from."""
        return getattr(self.contents[0], "root", "")

    def __getitem__(self, row: int) -> bytes | np.ndarray:
        return self.contents[self.parts[row]][int(self.rows[row])]

    def take(self, rows: np.ndarray) -> Joined:
        return Joined(self.contents, self.parts[rows], self.rows[rows], self.keys.take(rows))


def join_sources(first: Source, second: Source) -> Source:
    """The items of two sources with the same classes. Raises `DataError` for arrays of other sizes or types, and for maps."""
    assert (first.classes, first.multi_label) == (second.classes, second.multi_label), "the classes differ"
    keys = Strings.join([first.keys, second.keys])
    match first.contents, second.contents:
        case Files(root=root), Files(root=other) if root == other:
            contents = Files(root, keys)
        case Arrays(images=images), Arrays(images=others):
            if (images.shape[1:], images.dtype) != (others.shape[1:], others.dtype):
                what = f"images of {images.shape[1:]} {images.dtype} and of {others.shape[1:]} {others.dtype}"
                raise DataError(f"the splits have {what}", "give all splits the same size and type")
            contents = Arrays(np.concatenate([images, others]), keys)
        case both:
            lengths = len(first), len(second)
            rows = np.concatenate([np.arange(length) for length in lengths])
            contents = Joined(both, np.repeat([0, 1], lengths), rows, keys)
    if isinstance(first.targets, Annotations) and isinstance(second.targets, Annotations):
        return replace(first, contents=contents, targets=type(first.targets).join([first.targets, second.targets]))
    return replace(first, contents=contents, targets=np.concatenate([first.labels, second.labels]))


SAMPLED = 64  # images by which data are known again


def sample_images(source: Source, names: Iterable[str] | None = None) -> dict[str, str]:
    """The checksum of a few images by the hash of their key, where they have one: of those of these hashes, or of the least ones.

    By them images are known again in another folder, and others of the same names are not taken for them.
    """
    hashes = hash_each(key.encode() for key in source.keys)
    if names is not None:
        wanted = [int(name, 16) for name in names if re.fullmatch("[0-9a-f]{16}", name)]  # of a model file
        rows = np.flatnonzero(np.isin(hashes, np.array(wanted, np.uint64)))
    else:
        units = source.units  # what is read together costs as much as one image of it
        near = np.flatnonzero(units.of == units.of[0]) if isinstance(units, Units) else np.arange(len(hashes))
        rows = near[np.argsort(hashes[near], kind="stable")[:SAMPLED]]
    found = {f"{hashes[row]:016x}": source.contents.checksum(row) for row in rows.tolist()}
    return {name: checksum for name, checksum in found.items() if checksum}


COMPARED = 100_000  # items; larger data sets are not searched for duplicates


def choose_held_out(
    contents: Contents,
    targets: np.ndarray | Annotations,
    *,
    fraction: float = 0,
    fold: tuple[int, int] | None = None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Which items are held out, and which seem to be equal to others with other labels: (n,) bool each.

    The split is stratified: of the m distinct images of a class round(``fraction`` x m) are held out; if m > 1, each side
    gets at least one. Of a ``fold`` (k, n) it is the k-th of n parts of all distinct images, whose sizes differ by one at most,
    also in each class. An item with several classes counts for the rarest one. Items of equal content stay on one side,
    if comparing contents is cheap. ``targets`` (n,) int64, (n, K) float32 or annotations are empty for unlabelled data.
    """
    items = len(contents.keys)
    first, seen = np.arange(items), dict[Any, int]()  # (n,) the first item with the same content, possibly itself
    if items <= COMPARED and (fingerprints := contents.fingerprints()) is not None:
        first = np.array([seen.setdefault(value, row) for row, value in enumerate(fingerprints)], np.int64)
    leaders = np.flatnonzero(first == np.arange(len(first)))  # one item per distinct content
    strata = _assign_strata(targets, len(first))[leaders]
    place, sizes = _place_in_class(strata, _rank_items(contents, seed)[leaders])
    held = np.zeros(len(first), bool)
    if fold is None:
        wanted = np.minimum(np.maximum(np.round(fraction * sizes), 1), sizes - 1)
        held[leaders] = place < wanted[strata]
    else:
        held[leaders] = (place + (sizes.cumsum() - sizes)[strata]) % fold[1] == fold[0]
    suspect = np.zeros(len(first), bool)
    if isinstance(targets, np.ndarray) and len(targets):
        differs = (targets != targets[first]).reshape(len(targets), -1).any(1)
        suspect = np.isin(first, first[differs])
    return held[first], suspect


def hold_out(splits: Splits, *, fraction: float = 0, fold: tuple[int, int] | None = None) -> Splits:
    """The data with a part of the training images for validation, see `choose_held_out`; as they were where it has no images."""
    train = splits.train
    if train is None:
        return splits
    held, suspect = choose_held_out(train.contents, train.targets, fraction=fraction, fold=fold, seed=splits.seed)
    splits = replace(splits, suspects=tuple(train.keys[row] for row in np.flatnonzero(suspect & ~held).tolist()))
    if not 0 < held.sum() < len(held):
        return splits
    rest, val = (train.subset(np.flatnonzero(chosen)) for chosen in (~held, held))
    return replace(splits, train=rest, val=val, held_out=True)


def divide_folds(splits: Splits, fold: tuple[int, int] | None) -> Splits:
    """The data with the training and validation images divided anew: ``fold`` as of `choose_held_out` is held out, with None
    nothing. Test images stay.

    Raises `DataError` for splits that `join_sources` does not join or that lie apart, and where a fold or the rest would have no
    images.
    """
    train, val = splits.train, splits.val
    if train is not None and val is not None:
        train = join_sources(train, val)
        if isinstance(train.contents, Joined):  # equal names and images are not found there
            what = "folds divide training and validation images together, and these are in different folders, files or Datasets"
            raise DataError(what, val.contents.to_join)
    whole = replace(splits, train=train, val=None, held_out=False, suspects=())
    if fold is None or train is None:
        return whole
    divided = hold_out(whole, fold=fold)
    if divided.val is None:
        what = f"fold {fold[0]} of {fold[1]} of {len(train):,} images, or the rest, would have no images"
        raise DataError(what, "give fewer folds, or more images")
    return divided


def drop_conflicts(splits: Splits) -> tuple[Splits, tuple[str, ...]]:
    """The splits without the training images that are equal to others with other labels, and their keys, equal ones together.

    Files that are no images are left to those who read them. Nothing is dropped where nothing would be left.
    """
    train, wanted = splits.train, set(splits.suspects)
    if train is None or not wanted:
        return splits, ()
    groups: dict[bytes, list[int]] = {}
    for row in [row for row, key in enumerate(train.keys) if key in wanted]:
        with suppress(BadImage):
            content = train.contents[row]
            if isinstance(content, bytes) and upright_size(content) is None:
                continue
            digest = sha256(content if isinstance(content, bytes) else content.tobytes()).digest()
            groups.setdefault(digest, []).append(row)
    unlike = [rows for rows in groups.values() if len({train.digest_target(row) for row in rows}) > 1]
    dropped = [row for rows in unlike for row in rows]
    rest = np.setdiff1d(np.arange(len(train)), dropped)
    if not len(rest):
        return splits, ()
    return replace(splits, train=train.subset(rest)), tuple(train.keys[row] for row in dropped)


def choose_part(contents: Contents, targets: np.ndarray | Annotations, *, count: int, seed: int) -> np.ndarray:
    """Which ``count`` items a smaller training split has: (n,) bool, True = kept.

    Parts of one seed are nested: a smaller one is contained in a larger one. They are stratified: every class has one item,
    and the others go to the classes in proportion to their sizes, by the method of Sainte-Lague. Of fewer items than
    classes each is of another class, of the largest ones. Items without classes are drawn from all alike.
    """
    strata = _assign_strata(targets, len(contents.keys))
    ranks = _rank_items(contents, seed)
    place, sizes = _place_in_class(strata, ranks)
    turn = (place + 0.5) / sizes[strata]  # the share of a class at which the item is its next one
    kept = np.zeros(len(strata), bool)
    kept[np.lexsort((ranks, turn, place > 0))[:count]] = True
    return kept


def take_part(source: Source, *, count: int, seed: int) -> Source:
    """The items of a source that `choose_part` keeps."""
    return source.subset(np.flatnonzero(choose_part(source.contents, source.targets, count=count, seed=seed)))


def _place_in_class(strata: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of each item among those of its class, by rank: (n,) int64; and the size of each class."""
    sizes = np.bincount(strata)
    place = np.empty(len(strata), np.int64)
    place[np.lexsort((ranks, strata))] = np.arange(len(strata)) - (sizes.cumsum() - sizes).repeat(sizes)
    return place, sizes


def _assign_strata(targets: np.ndarray | Annotations, items: int) -> np.ndarray:
    """The class that each item counts for: (n,) int64."""
    if isinstance(targets, Annotations):
        return targets.strata()
    if targets.ndim == 1:
        return targets if len(targets) else np.zeros(items, np.int64)
    by_rarity = np.argsort(targets.sum(0), kind="stable")  # (K,)
    rarest = by_rarity[(targets[:, by_rarity] > 0).argmax(1)]
    return np.where(targets.any(1), rarest, targets.shape[1])  # items without a label form a separate class


def _rank_items(contents: Contents, seed: int) -> np.ndarray:
    """A number per item, a function of its key and the seed: (n,) uint64."""
    texts = (f"{seed}/{key}".encode("utf-8", "surrogatepass") for key in contents.keys)
    return np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), "<u8")


def read_class_map(file: Path) -> dict[str, list[str]]:
    """Classes of the model by class of the data, from CSV lines ``data class,model class;model class``. Raises `ConfigError`."""
    try:
        rows = [row for row in csv.reader(read_text(file).splitlines()) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"the class map {file} cannot be read: {error}", "give a CSV file") from error
    mapping: dict[str, list[str]] = {}
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            remedy = "write `class of the data,class of the model`; quote names that contain a comma"
            raise ConfigError(f"{file}: row {number} has {len(row)} fields", remedy)
        known = mapping.setdefault(row[0].strip(), [])
        known += [name for part in row[1].split(BETWEEN) if (name := part.strip())]
    return mapping


def map_classes(source: Source, mapping: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Source:
    """The items of ``source`` whose class is in ``mapping``, with targets among ``classes`` of a model.

    Where every class of the data stands for one of the model, items keep one label; else all labels of an item are acceptable.
    Raises `ConfigError` for a class that the model does not have, and `DataError` if no item has a class of the mapping.
    """
    number = index_classes(classes)
    stands_for = np.zeros((len(source.classes), len(classes)), np.float32)  # (D, K)
    for row, name in enumerate(source.classes):
        for wanted in mapping.get(name, ()):
            if wanted not in number:
                raise ConfigError(f"the class map names {wanted!r}, no class of the model", nearest(wanted, classes))
            stands_for[row, number[wanted]] = 1
    mapped = stands_for.sum(1) > 0  # (D,)
    kept = np.flatnonzero((source.labels > 0) @ mapped if source.multi_label else mapped[source.labels])
    if not len(kept):
        remedy = f"name classes of the data in its first column: {', '.join(source.classes[:5])}, ..."
        raise DataError("no image has a class that the class map lists", remedy)
    source = source.subset(kept)
    if source.multi_label:
        targets = (source.labels @ stands_for > 0).astype(np.float32)  # (n, K)
    elif stands_for.sum(1).max() == 1:
        targets = stands_for.argmax(1)[source.labels]  # (n,)
    else:
        targets = stands_for[source.labels]  # (n, K)
    return replace(source, targets=targets, classes=tuple(classes), multi_label=targets.ndim == 2)
