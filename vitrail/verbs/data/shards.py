"""`vitrail data shard`: a data set as tar shards in the format of webdataset, with an index.

Contents are copied as they are. Equal data, seed and number of images a shard give equal bytes.

Axes: n images, K classes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.sample_order import order_of_epoch
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, choose_split, list_splits
from vitrail.errors import ConfigError, DataError
from vitrail.files import replace_folder, stage_folder
from vitrail.images.decode import EXTENSIONS, FORMATS, BadImage
from vitrail.rows import Records
from vitrail.runtime.progress import ProgressBar
from vitrail.shards.index import BESIDE, FOLDER, Shard, Tables, write_index
from vitrail.shards.tar import MOST_BYTES, write_archive

MOST_SHARDS = 10**6  # whose names have six digits


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The shards of one split."""

    split: str
    path: Path
    shards: int
    images: int
    bytes: int
    classes: int

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
            shards = _write_split(
                source, aside / inside, images, seed, bar, sum(each.images for each in written.values())
            )
            written[name] = Shards(
                split=name,
                path=out / inside,
                shards=len(shards),
                images=len(source),
                bytes=sum(shard.bytes for shard in shards),
                classes=len(source.classes),
            )
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
    if len(source) > images * MOST_SHARDS:
        raise ConfigError(
            f"{len(source):,} images are more than {MOST_SHARDS:,} shards of {images:,}", "--images 100000"
        )


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
    keys = source.keys.load()
    tables = Tables(
        starts=starts,
        lengths=lengths,
        checksums=checksums,
        names=np.frombuffer(keys.blob, np.uint8),
        name_ends=keys.ends,
        stored=order.astype(np.int32),
        targets=_pack_targets(source),
    )
    (folder / FOLDER).mkdir()
    write_index(folder / FOLDER, root=BESIDE, shards=shards, classes=source.classes, tables=tables)
    return shards


def _pack_targets(source: Source) -> np.ndarray | None:
    if not source.labelled:
        return None
    return source.labels.astype(np.uint8) if source.multi_label else source.labels


def _list_members(source: Source, rows: np.ndarray, checksums: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Each image as ``NUMBER.jpg``, followed by its label: ``NUMBER.cls``, or ``NUMBER.json`` where it may have several."""
    for row in rows.tolist():
        try:
            item = source.read(row)
        except BadImage as bad:
            remedy = "repair or remove it; `vitrail data check` lists all bad images"
            raise DataError(f"the image {source.keys[row]} cannot be read: {bad.reason}", remedy) from bad
        if not isinstance(item.content, bytes):
            raise DataError("the images of a Dataset have no files that could be copied", "train on the Dataset")
        if len(item.content) > MOST_BYTES:
            raise DataError(
                f"the image {item.key} has {len(item.content):,} bytes, over {MOST_BYTES:,}", "make it smaller"
            )
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
