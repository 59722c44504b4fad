"""The features of a source's images, what a model's pooling gives to its head: computed once, and kept on the disk.

N good images, D features, K classes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as to_bytes

from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.contents import Arrays, Contents, Files
from vitrail.data.sources.parquet import ParquetImages
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, DataError, DiskError
from vitrail.files import disk_errors, replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import outputs
from vitrail.models import device_of
from vitrail.models.backbone import at_rest
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks.task import Task
from vitrail.weights.tensors import read_tensors

COUNTED = ("vitrail", "torch", "numpy", "pillow")  # packages whose other version may give other features


@dataclass(frozen=True, eq=False)
class Features:
    """The features (N, D) float32 of the good images of ``source``, and which these are: ``rows`` (N,), in its order."""

    source: Source
    rows: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> np.ndarray:
        """(N,) int64, or (N, K) float32; (0,) where the source is unlabelled."""
        return self.source.targets[self.rows] if self.source.labelled else self.source.targets

    @property
    def keys(self) -> list[str]:
        return [self.source.keys[row] for row in self.rows.tolist()]

    def only(self, rows: np.ndarray) -> Features:
        """Those of the images whose numbers in the source are in ``rows``."""
        kept = np.isin(self.rows, rows)
        return Features(self.source, self.rows[kept], self.values[kept])


def default_cache() -> Path:
    """Where features are kept: ``VITRAIL_CACHE``, else ``~/.cache/vitrail/features``."""
    given = os.environ.get("VITRAIL_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail" / "features"


def features_of(
    model: Task,
    source: Source,
    *,
    options: InferenceOptions = InferenceOptions(),
    cache: Path | None = None,
    title: str = "features",
    say: Say = to_stderr,
) -> Features:
    """The features of every good image of ``source``; a bad one is left out, or ends it, by the policy of ``options``.

    Args:
        model: on the device where it is to run; it needs no head.
        cache: a folder. What lies there for the same weights, preprocessing, precision, versions and images is taken as it is,
            bad images included; a damaged file is made anew. Pictures that a user's Dataset gives are never kept.
        title: the words beside the bar.

    Raises:
        DataError: no image is good, or too many are bad.
        CheckpointError: features that are not finite.
    """
    bad = options.record_bad(source)
    images = None if cache is None else stamp(source.contents)
    place = None if cache is None or images is None else cache / f"{_name(model, images, options)}.safetensors"
    kept = None if place is None else _read(place, len(source))
    if kept is not None:
        values, reasons = kept
        for row, reason in reasons.items():
            bad(source.keys[row], reason)
    else:
        values, reasons = _computed(model, source, options, bad, title)
        _check(values, source)
        if place is not None:
            _keep(place, values, reasons, say)
    return Features(source, np.setdiff1d(np.arange(len(source)), list(reasons)), values)


@torch.inference_mode()
def _computed(
    model: Task, source: Source, options: InferenceOptions, bad: BadImages, title: str
) -> tuple[np.ndarray, dict[int, str]]:
    """The features of the good images (N, D), and by number why the others are bad."""
    values, good = [], []
    with at_rest(model), ProgressBar(title, len(source), quiet=options.quiet) as progress:
        for batch, features in outputs(model, source, model.features, options, bad=bad, progress=progress):
            values.append(features.cpu().numpy())
            good.extend(batch.ids[:, 1].tolist())
    if not good:
        raise DataError("no image could be read: the split is empty or all of it is bad", "see `vitrail data check`")
    others = sorted(set(range(len(source))).difference(good))
    return np.concatenate(values), {row: bad.reasons[source.keys[row]] for row in others}


def _check(values: np.ndarray, source: Source) -> None:
    broken = np.flatnonzero(~np.isfinite(values).all(1))
    if len(broken):
        raise CheckpointError(
            f"the model's features of {len(broken):,} of {len(source):,} images are not finite",
            "look for NaN in the weights with `vitrail inspect`, or leave out --precision",
        )


def digest_of(model: Task) -> str:
    """SHA-256 of all that decides what the model makes of a picture: weights, config and preprocessing."""
    hashed = hashlib.sha256(f"{model.config!r}\n{model.preprocessing!r}\n".encode())
    for name, tensor in {**model.backbone.state_dict(), **model.own.state_dict()}.items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def stamp(contents: Contents) -> str | None:
    """SHA-256 of what tells images from others, without reading files; None where nothing does.

    Pixels, where they are in memory; else the names, sizes and dates of the files. Pictures that a Parquet file only names
    are taken to be as old as it is.
    """
    hashed = hashlib.sha256(type(contents).__name__.encode())
    match contents:
        case Arrays(images=images):
            hashed.update(f"{images.shape} {images.dtype}\n".encode())
            hashed.update(np.ascontiguousarray(images).data)
        case Files(root=root, keys=keys):
            _add_files(hashed, root, keys)
        case ParquetImages(root=root, files=files):
            _add_files(hashed, root, files)
            hashed.update(contents.column.encode() + b"\n")
            hashed.update(np.ascontiguousarray(contents.rows).data)
        case _:
            return None
    return hashed.hexdigest()


def _add_files(hashed: hashlib._Hash, root: str, names: Iterable[str]) -> None:
    folder = os.path.abspath(root)
    for name in names:
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
            age = f"{status.st_size} {status.st_mtime_ns}"
        except (OSError, ValueError):  # it will be a bad image
            age = "absent"
        hashed.update(f"{path}\0{age}\n".encode("utf-8", "surrogatepass"))


def _name(model: Task, images: str, options: InferenceOptions) -> str:
    """What the file of such features is called."""
    device = device_of(model).type
    counted = [version for name, version in versions().items() if name in COUNTED]
    whole = json.dumps([digest_of(model), images, options.precision, device, counted])
    return hashlib.sha256(whole.encode()).hexdigest()


def _keep(place: Path, values: np.ndarray, reasons: dict[int, str], say: Say) -> None:
    """Writes a file of the cache; a disk that will not have it costs time later, and no more."""
    told = json.dumps(reasons)
    metadata = {"bad": told, "sha256": _hash(values, told)}
    try:
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, to_bytes({"features": torch.from_numpy(values)}, metadata))
    except DiskError as error:
        say(f"warning  the features could not be kept for the next time: {error.what}")


def _read(place: Path, images: int) -> tuple[np.ndarray, dict[int, str]] | None:
    """What a file of the cache holds; None where it is not there or damaged."""
    if not place.is_file():
        return None
    try:
        tensors, metadata = read_tensors(place)
        values, told = tensors["features"].numpy(), metadata["bad"]
        reasons = {int(row): reason for row, reason in json.loads(told).items()}
        sound = metadata["sha256"] == _hash(values, told) and len(values) + len(reasons) == images
    except (CheckpointError, KeyError, ValueError):
        return None
    return (values, reasons) if sound else None


def _hash(values: np.ndarray, told: str) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes() + told.encode()).hexdigest()
