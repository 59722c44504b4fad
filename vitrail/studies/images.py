"""The images of a study, split in the same way in every process. Small ones are decoded once and shared by all workers."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, choose_held_out, list_splits
from vitrail.errors import ConfigError, DataError
from vitrail.studies.design import Study
from vitrail.studies.plan import PoolFacts

DATA = "data"  # the folder of decoded images, inside that of a study
SHARE = 0.2  # of the images that are left, at most, for a split that the data do not have


def open_images(study: Study, shared: Path | None = None) -> tuple[Splits, PoolFacts]:
    """Opens the images of a study, small ones decoded into the folder ``shared`` of all workers, and describes them for its plan.

    Where there is no test split, a fifth of the training images is held out for it; where there is no validation split,
    ``pool.validation`` of them, at most a fifth, are that.

    Raises `ConfigError` without any, and `DataError` for data without labels, with several labels an image, with too few images,
    or with a bad small image.
    """
    pool = study.pool
    if not pool.source:
        raise ConfigError(f"the study {study.name!r} names no images", "vitrail study DATA")
    splits = open_data(pool.source, validation=0.0)
    train, val, test = splits.train, splits.val, splits.test
    if train is None or not len(train):
        raise DataError("the data hold no training images", "give class folders inside of train and test")
    if train.multi_label or train.labels.ndim != 1:
        raise DataError("the images have several labels each", "give images with one class each")
    test_split = "split test"
    if test is None or not len(test):
        train, test = _hold_out(train, SHARE)
        test_split = f"{len(test):,} images held out of training, as there is no split test"
    if val is None:
        train, val = _hold_out(train, min(pool.validation / len(train), SHARE))
    if not len(val) or not len(test) or len(train.classes) < 2:
        raise DataError("a study needs two classes or more, and images to train and to test on", "give more images")
    how = {"channels": study.base.get("data.channels"), "shared": shared}
    train, val, test = (keep_decoded(source, **how) for source in (train, val, test))
    splits = replace(splits, train=train, val=val, test=test, held_out=False)
    facts = PoolFacts(
        name=Path(pool.source).name,
        fingerprint=_hash_images(splits),
        classes=len(train.classes),
        training=len(train),
        validation=len(val),
        test=len(test),
        test_split=test_split,
    )
    return splits, facts


def _hold_out(train: Source, share: float) -> tuple[Source, Source]:
    held, _ = choose_held_out(train.contents, train.labels, fraction=share, seed=0)
    return train.subset(np.flatnonzero(~held)), train.subset(np.flatnonzero(held))


def _hash_images(splits: Splits) -> str:
    """Returns the SHA-256 of keys, labels and contents of every split: of all small images, and of both ends of larger files."""
    digest = hashlib.sha256()
    for name, source in list_splits(splits).items():
        digest.update(f"{name} {len(source)} {source.keys.digest()} {list(source.classes)}".encode())
        digest.update(np.ascontiguousarray(source.labels).data)
        if source.kind == "arrays":
            digest.update(np.ascontiguousarray(source.images).reshape(-1).data)
        else:
            digest.update(repr(source.contents.fingerprints()).encode())
    return digest.hexdigest()


def load_images(folder: Path, study: Study, facts: PoolFacts) -> Splits:
    """Returns the images of the study in ``folder``. Raises `DataError` where they are not those of the plan."""
    splits, found = open_images(study, folder / DATA)
    if found.fingerprint != facts.fingerprint:
        what = f"the images of {study.pool.source} are not those of the plan"
        raise DataError(what, "put them back, or begin a new study")
    return splits
