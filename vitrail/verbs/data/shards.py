"""`vitrail data shard` and `index`: a data set as tar shards in the format of webdataset, and the index of those of others.

Contents are copied as they are. Equal data, seed and number of images a shard give equal bytes. In archives of others a sample
is the members that follow one another with the same name up to the first dot of the file name. It has one image, and perhaps a
label: ``.cls``, a field of ``.json``, or ``.txt``.

Axes: n images, K classes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vitrail.data.sample_order import order_of_epoch
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.contents import Strings
from vitrail.data.sources.labels import Labels, format_label, from_numbers, from_texts
from vitrail.data.sources.manifests import LABELS
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, choose_split, list_splits
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.errors import ConfigError, DataError
from vitrail.files import replace_folder, stage_folder
from vitrail.images.decode import EXTENSIONS, FORMATS, BadImage
from vitrail.rows import Records
from vitrail.runtime.progress import LogFunction, ProgressBar
from vitrail.shards.cache import is_remote, list_archives, open_archive
from vitrail.shards.index import BESIDE, FOLDER, KINDS, NEEDED, Shard, Tables, remember_root, write_index
from vitrail.shards.tar import BLOCK, MAX_BYTES, Member, pad, read_members, write_archive
from vitrail.text import plural
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.limits import LABEL_BYTES
from vitrail.untrusted.numbers import to_whole

MAX_SHARDS = 10**6  # whose names have six digits
LABEL_KINDS = ("cls", "json", "txt")  # the first kind that a set has gives its labels
LONGEST_NAME = 64  # characters of a class in a .txt; longer texts are captions
LABEL_KEYS = ("cls", *LABELS)  # in a .json


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The shards of one split."""

    split: str
    path: Path
    shards: int
    images: int
    bytes: int
    classes: int

    @classmethod
    def of(cls, split: str, path: Path, shards: Sequence[Shard], classes: Sequence[str]) -> Shards:
        images, size = (sum(getattr(shard, name) for shard in shards) for name in ("images", "bytes"))
        return cls(split=split, path=path, shards=len(shards), images=images, bytes=size, classes=len(classes))

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}


def write_shards(data: Any, out: Path, *, images: int, seed: int, split: str | None, quiet: bool) -> Records[Shards]:
    """Writes shards and their index to a new folder, each of several splits to a folder of its name.

    The images are dealt to the shards at random, so each shard is a fair sample. A process that is killed leaves no ``out``.
    """
    if images < 1:
        raise ConfigError(f"{images} images a shard", "give 1 or more, e.g. 10000")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already", "give a new folder")
    splits = open_data(data, validation=0, labelled=False)
    chosen = list_splits(splits) if split is None else dict([choose_split(splits, split)])
    for source in chosen.values():
        _refuse_others(source, images)
    with stage_folder(out, {}) as aside, ProgressBar("shards", sum(map(len, chosen.values())), quiet=quiet) as bar:
        written: Records[Shards] = Records()
        for name, source in chosen.items():
            inside = name if len(chosen) > 1 else ""
            (aside / inside).mkdir(exist_ok=True)
            done = sum(each.images for each in written.values())
            shards = _write_split(source, aside / inside, images, seed, bar, done)
            written[name] = Shards.of(name, out / inside, shards, source.classes)
        replace_folder(out, aside)
    return written


def _refuse_others(source: Source, images: int) -> None:
    if source.kind == "arrays":
        raise DataError("the data are arrays in memory, and shards hold files of images", "train on the arrays")
    if isinstance(source.targets, Annotations):
        what = f"the data have classes of {source.counted}, and shards hold classes of images"
        raise DataError(what, "train on the data as they are")
    if not len(source):
        raise DataError("the data have no images", "run `vitrail data check` to see what was found")
    if len(source) > images * MAX_SHARDS:
        what = f"{len(source):,} images are more than {MAX_SHARDS:,} shards of {images:,}"
        raise ConfigError(what, "--images 100000")


def _write_split(source: Source, folder: Path, images: int, seed: int, bar: ProgressBar, done: int) -> list[Shard]:
    count = len(source)
    starts, lengths, checksums = (np.zeros(count, kind) for kind in (np.int64, np.int32, np.uint32))
    order, position, shards = order_of_epoch(seed, 0, count, source.units), 0, []
    for first in range(0, count, images):
        rows = order[first : first + images]
        path = folder / f"shard-{first // images:06d}.tar"
        members, size, digest = write_archive(path, _list_members(source, rows, checksums))
        pictures = members[:: 2 if source.labelled else 1]
        starts[rows] = [position + picture.offset for picture in pictures]
        lengths[rows] = [picture.size for picture in pictures]
        shards.append(Shard(name=path.name, bytes=size, sha256=digest, images=len(rows)))
        position += size
        bar.update(done + first + len(rows))
    keys, targets = Strings.join([source.keys]), source.labels if source.labelled else None
    tables = Tables(
        starts=starts,
        lengths=lengths,
        checksums=checksums,
        names=np.frombuffer(keys.blob, np.uint8),
        name_ends=keys.ends,
        stored=order.astype(np.int32),
        targets=targets.astype(np.uint8) if targets is not None and source.multi_label else targets,
    )
    (folder / FOLDER).mkdir()
    write_index(folder / FOLDER, root=BESIDE, shards=shards, classes=source.classes, tables=tables)
    return shards


def _list_members(source: Source, rows: np.ndarray, checksums: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Yields each image as ``NUMBER.jpg``, then its label: ``NUMBER.cls``, or ``NUMBER.json`` where it may have several."""
    for row in rows.tolist():
        try:
            item = source.read(row)
        except BadImage as bad:
            remedy = "repair or remove it; `vitrail data check` lists all bad images"
            raise DataError(f"the image {source.keys[row]} cannot be read: {bad.reason}", remedy) from bad
        if not isinstance(item.content, bytes):
            raise DataError("the images of a Dataset have no files that could be copied", "train on the Dataset")
        if len(item.content) > MAX_BYTES:
            what = f"the image {item.key} has {len(item.content):,} bytes; the limit is {MAX_BYTES:,}"
            raise DataError(what, "resize or re-encode it, or leave it out")
        checksums[row] = zlib.crc32(item.content)
        yield f"{row:08d}.{_extension(item.key, item.content)}", item.content
        if source.multi_label:
            names = [source.classes[number] for number in np.flatnonzero(item.target)]
            yield f"{row:08d}.json", json.dumps({"label": names}, ensure_ascii=False).encode()
        elif source.labelled:
            yield f"{row:08d}.cls", str(item.target).encode()


def _extension(key: str, content: bytes) -> str:
    """By the name, else by the content; webdataset decodes what has the extension of an image."""
    if (ending := key.rpartition(".")[2].lower()) in EXTENSIONS:
        return ending
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            return (image.format or "").lower().replace("jpeg", "jpg")
    except Exception:  # Pillow raises many types for a broken file, which is copied nevertheless
        return "bin"


@dataclass
class Found:
    """The samples that were found in the archives so far."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("i"))
    checksums: array[int] = field(default_factory=lambda: array("I"))
    names: bytearray = field(default_factory=bytearray)
    name_ends: array[int] = field(default_factory=lambda: array("q"))
    labels: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in LABEL_KINDS})
    without: int = 0  # samples without an image

    def drop_last(self) -> str:
        """Removes the last sample and returns the name of its image."""
        for values in (self.starts, self.lengths, self.checksums, self.name_ends, *self.labels.values()):
            values.pop()
        end = self.name_ends[-1] if self.name_ends else 0
        name = self.names[end:].decode()
        del self.names[end:]
        return name

    def tables(self, targets: np.ndarray | None) -> Tables:
        return Tables(**{name: np.frombuffer(getattr(self, name), KINDS[name]) for name in NEEDED}, targets=targets)


class Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        content = self.file.read(size)
        self.digest.update(content)
        return content


def index_shards(
    folder: str, out: Path | None = None, *, classes: Sequence[str] | None = None, quiet: bool = False, log: LogFunction
) -> Records[Shards]:
    """Writes the index of the archives ``*.tar`` in a folder or at a URL, or in folders of splits there."""
    if is_remote(folder) and out is None:
        raise ConfigError(f"an index cannot be written to {folder}", "give a folder for it, after the URL")
    folder = folder.rstrip("/") if is_remote(folder) else os.path.abspath(os.path.expanduser(folder))
    archives = _find_archives(folder)
    places = [Path(out or folder, inside.removeprefix(folder).lstrip("/")) for inside, _ in archives.values()]
    for place in places:
        if (place / FOLDER).exists():
            remedy = "remove that folder first; an index of `vitrail data shard` has names that archives lack"
            raise ConfigError(f"there is an index already: {place / FOLDER}", remedy)
    total = sum(size for _, sizes in archives.values() for size in sizes.values())
    written: Records[Shards] = Records()
    with ProgressBar("archives (MB)", total // 10**6, quiet=quiet) as bar:
        done = 0
        for place, (split, (inside, names)) in zip(places, archives.items()):
            found, shards = Found(), []
            for name in names:
                shards.append(_read_archive(inside, name, found, sum(shard.bytes for shard in shards), log))
                done += shards[-1].bytes
                bar.update(done // 10**6)
            if not found.starts:
                what = f"the archives in {inside} have no images"
                raise DataError(what, "give archives with images of JPEG, PNG, ...")
            labels = _read_labels(found.labels, classes, inside)
            _write_found(place, inside, shards, found, labels)
            if found.without:
                log(f"warning: {plural(found.without, 'sample')} in {inside} without an image, not used")
            written[split] = Shards.of(split, place, shards, labels.names if labels else ())
    return written


def _find_archives(folder: str) -> dict[str, tuple[str, dict[str, int]]]:
    """Returns the folders with archives, by split, and the bytes of the archives in each, by name."""
    if not is_remote(folder) and not os.path.isdir(folder):
        raise DataError(f"{folder} is not a folder", "give a folder with .tar archives")
    if names := list_archives(folder):
        return {"train": (folder, names)}
    inside = SPLIT_ORDER if is_remote(folder) else [name for name in os.listdir(folder) if name.lower() in SPLITS]
    found = {SPLITS[name.lower()]: (f"{folder}/{name}", list_archives(f"{folder}/{name}")) for name in inside}
    if not any(names for _, names in found.values()):
        raise DataError(f"there are no .tar archives in {folder}", "give the folder that they are in")
    return {split: found[split] for split in SPLIT_ORDER if split in found and found[split][1]}


def _write_found(place: Path, folder: str, shards: list[Shard], found: Found, labels: Labels | None) -> None:
    targets = None
    if labels is not None:
        assert isinstance(labels.values, np.ndarray)
        targets = labels.values.astype(np.uint8) if labels.multi else labels.values
    root = BESIDE if str(place) == folder else folder
    with stage_folder(place / FOLDER, {}) as aside:
        names = labels.names if labels else ()
        write_index(aside, root=root, shards=shards, classes=names, tables=found.tables(targets))
        replace_folder(place / FOLDER, aside)
    if is_remote(root):
        remember_root(root)


def _read_archive(folder: str, name: str, found: Found, position: int, log: LogFunction) -> Shard:
    """Adds the samples of an archive that starts at ``position``."""
    before, end = len(found.starts), 0
    with open_archive(f"{folder}/{name}") as file:
        hashed = Hashed(file)
        for sample in _group(read_members(hashed, name), name):
            _add(sample, name, position, found)
            last, _ = next(reversed(sample.values()))
            end = last.offset + last.size + len(pad(last.size))
        size = file.tell()
    if size < end + BLOCK and len(found.starts) > before:
        what = f"{name} is cut off: it ends at byte {size:,}, without the mark of its end"
        log(f"warning: {what}; its last image, {found.drop_last()}, is not used")
    return Shard(name=name, bytes=size, sha256=hashed.digest.hexdigest(), images=len(found.starts) - before)


Sample = dict[str, tuple[Member, bytes]]  # the members by what follows the first dot of the file name


def _group(members: Iterator[tuple[Member, bytes]], archive: str) -> Iterator[Sample]:
    """Yields the samples of an archive."""
    key, sample, seen = "", Sample(), set()
    for member, content in members:
        folder, _, file = member.name.rpartition("/")
        name, _, ending = file.partition(".")
        if (folder, name) != key and sample:
            yield sample
            sample = {}
        key = (folder, name)
        if member.name in seen:
            what = f"{archive} has the member {member.name!r} twice"
            raise DataError(what, "write the archive anew; archives that were appended to are not read")
        seen.add(member.name)
        sample[ending.lower()] = member, content
    if sample:
        yield sample


def _add(sample: Sample, archive: str, position: int, found: Found) -> None:
    images = [ending for ending in sample if ending in EXTENSIONS]
    images = images or [ending for ending in sample if ending.rpartition(".")[2] in EXTENSIONS]
    if not images:
        found.without += 1
        return
    if len(images) > 1:
        names = ", ".join(repr(sample[ending][0].name) for ending in images)
        raise DataError(f"a sample of {archive} has several images: {names}", "leave all but one out of the archives")
    member, content = sample[images[0]]
    found.starts.append(position + member.offset)
    found.lengths.append(member.size)
    found.checksums.append(zlib.crc32(content))
    found.names += f"{archive}/{member.name}".encode()
    found.name_ends.append(len(found.names))
    for kind, labels in found.labels.items():
        labels.append(_read_label(kind, *sample[kind]) if kind in sample else "")


def _read_label(kind: str, member: Member, content: bytes) -> str:
    """Returns one label or several as text; empty for none."""
    if len(content) < member.size or member.size > LABEL_BYTES:
        return ""
    try:
        text = content.decode("utf-8-sig").strip()
        if kind != "json":
            return text
        described = parse_json(text)
    except ValueError as error:
        raise DataError(f"the member {member.name!r} is no label: {error}", "repair or remove it") from error
    fields = {name.lower(): value for name, value in described.items()} if isinstance(described, dict) else {}
    return next((format_label(fields[name]) for name in LABEL_KEYS if fields.get(name) is not None), "")


def _read_labels(by_kind: dict[str, list[str]], classes: Sequence[str] | None, where: str) -> Labels | None:
    """Labels of the first kind that any sample has; None if none does, or if texts look like captions."""
    for kind, texts in by_kind.items():
        if not any(texts) or (kind == "txt" and _are_captions(texts)):
            continue
        if missing := sum(not text for text in texts):
            what = f"{missing:,} of {len(texts):,} samples in {where} have no label (.{kind})"
            raise DataError(what, "give every image a label, or none")
        if all(text.isascii() and text.isdecimal() for text in texts):
            try:
                numbers = np.array([to_whole(text, "the number of a class") for text in texts])
            except ValueError as error:
                raise DataError(
                    f"the labels in {where} cannot be read: {error}", "number the classes from 0"
                ) from error
            return from_numbers(numbers, classes, where=f"the archives in {where}")
        if classes is not None:
            what = f"the labels in {where} are names, such as {texts[0]!r}, and names of classes are given"
            raise ConfigError(what, "leave --classes out")
        return from_texts(texts)
    return None


def _are_captions(texts: list[str]) -> bool:
    """Returns whether texts are long or nearly all different, as names of classes are not."""
    return any("\n" in text or len(text) > LONGEST_NAME for text in texts) or 2 * len(set(texts)) > len(texts)
