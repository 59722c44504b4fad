"""The images of a study: split once, small ones decoded once and mapped into the memory of every worker."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.checksums import hash_file
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, choose_held_out, list_splits
from vitrail.errors import DataError, VitrailError
from vitrail.files import disk_errors, read_sealed, replace_file, stage_file, write_sealed
from vitrail.studies.design import Pool
from vitrail.studies.plan import PoolFacts

SHARE = 0.2  # of the images that are left, at most, for a split that the data do not have
DATA = "data"  # the folder of decoded images, inside that of a study
FILES = tuple(
    f"{split}-{kind}" for split in ("train", "val", "test") for kind in ("images.npy", "labels.npy", "keys.txt")
)


def open_images(pool: Pool, data: Any = None, *, channels: int | None = None) -> tuple[Splits, PoolFacts]:
    """Opens the training, validation and test images of a study, small ones decoded, and describes them for its plan.

    Where there is no split of the name ``pool.test``, a fifth of the training images is held out for it; where there is no
    validation split beside it, ``pool.validation`` of them, at most a fifth, are that.

    Args:
        data: anything `open_data` takes, in place of ``pool.source``.

    Raises `DataError` for data without labels, with several labels an image, with too few images, or with a bad small image.
    """
    splits = open_data(pool.source if data is None else data, validation=0.0)
    train, test, val = splits.train, getattr(splits, pool.test), splits.val if pool.test != "val" else None
    if train is None or not len(train):
        raise DataError("the data hold no training images", "give class folders inside of train and test")
    if train.multi_label or train.labels.ndim != 1:
        raise DataError("the images have several labels each", "give images with one class each")
    test_split = f"split {pool.test}"
    if test is None or not len(test):
        train, test = _hold_out(train, SHARE)
        test_split = f"{len(test):,} images held out of training, as there is no split {pool.test}"
    if val is None:
        train, val = _hold_out(train, min(pool.validation / len(train), SHARE))
    if not len(val) or not len(test) or len(train.classes) < 2:
        raise DataError("a study needs two classes or more, and images to train and to test on", "give more images")
    decoded: dict[str, Any] = {
        name: keep_decoded(source, channels=channels)
        for name, source in {"train": train, "val": val, "test": test}.items()
    }
    splits = replace(splits, **decoded, held_out=False)
    size = decoded["train"].images.shape[1:3] if decoded["train"].kind == "arrays" else None
    facts = PoolFacts(
        name=Path(pool.source).name if data is None else "images in memory",
        fingerprint=_hash_images(splits),
        classes=len(train.classes),
        training=len(train),
        validation=len(val),
        test=len(test),
        test_split=test_split,
        size=None if size is None else (int(size[0]), int(size[1])),
    )
    return splits, facts


def _hold_out(train: Source, share: float) -> tuple[Source, Source]:
    held = choose_held_out(train.contents, train.labels, fraction=share, seed=0)
    return train.subset(np.flatnonzero(~held)), train.subset(np.flatnonzero(held))


def _hash_images(splits: Splits) -> str:
    """Returns the SHA-256 of keys, labels and contents of every split: of all small images, and of both ends of larger files."""
    digest = hashlib.sha256()
    for name, source in list_splits(splits).items():
        digest.update(f"{name} {len(source)} {source.keys.digest()} {list(source.classes)}".encode())
        digest.update(np.ascontiguousarray(source.labels).tobytes())
        if source.kind == "arrays":
            digest.update(np.ascontiguousarray(source.images).tobytes())
        else:
            digest.update(repr(source.contents.fingerprints()).encode())
    return digest.hexdigest()


def store_images(folder: Path, splits: Splits, fingerprint: str) -> None:
    """Writes images that are in memory to the study's ``folder``, for its workers on any machine. Raises `DiskError`."""
    sources = list_splits(splits)
    if any(source.kind != "arrays" for source in sources.values()) or not find_damage(folder, fingerprint):
        return
    with disk_errors(folder):
        (folder / DATA).mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        for what, array in (("images", source.images), ("labels", source.labels)):
            with (
                stage_file(folder / DATA / f"{name}-{what}.npy") as path,
                disk_errors(folder),
                open(path, "wb") as file,
            ):
                np.save(file, array)
        replace_file(folder / DATA / f"{name}-keys.txt", "\n".join(source.keys))
    files = {name: _hash_file(folder / DATA / name) for name in FILES}
    write_sealed(
        folder / DATA / "about.json", {"fingerprint": fingerprint, "classes": list(splits.classes), "files": files}
    )


def find_damage(folder: Path, fingerprint: str) -> str:
    """Returns why the stored images of a study cannot be used; empty for whole ones. Reads all of them."""
    about = read_sealed(folder / DATA / "about.json")
    if about is None or about.get("fingerprint") != fingerprint:
        return f"{folder / DATA / 'about.json'} is missing, damaged, or of other images"
    for name in FILES:
        if _hash_file(folder / DATA / name) != about["files"].get(name):
            return f"{folder / DATA / name} does not match its SHA-256"
    return ""


def _hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file; empty where it cannot be read."""
    try:
        return hash_file(path)
    except OSError:
        return ""


def load_images(folder: Path, pool: Pool, facts: PoolFacts, channels: int | None = None) -> Splits:
    """Returns the images of the study in ``folder``: mapped into memory if they are stored whole, else opened and stored again.

    Raises `DataError` where they are not those of the plan, or can no longer be opened.
    """
    damage = find_damage(folder, facts.fingerprint)
    if not damage:
        classes = tuple((read_sealed(folder / DATA / "about.json") or {})["classes"])
        stored: dict[str, Any] = {name: _load_split(folder / DATA, name, classes) for name in ("train", "val", "test")}
        return Splits(**stored, classes=classes, layout=f"decoded images of {facts.name}")
    try:
        splits, found = open_images(pool, channels=channels)
    except VitrailError as error:
        remedy = "run the `vitrail study` that began it again, which stores its images again"
        raise DataError(damage, remedy, value=str(error)) from error
    if found.fingerprint != facts.fingerprint:
        raise DataError(f"the images of {pool.source} are not those of the plan", "put them back, or begin a new study")
    store_images(folder, splits, facts.fingerprint)
    return splits


def _load_split(folder: Path, name: str, classes: tuple[str, ...]) -> Source:
    images, labels = (np.load(folder / f"{name}-{what}.npy", mmap_mode="r") for what in ("images", "labels"))
    keys = Strings((folder / f"{name}-keys.txt").read_text(encoding="utf-8").split("\n"))
    return Source(contents=Arrays(np.asarray(images), keys), targets=np.asarray(labels), classes=classes)
