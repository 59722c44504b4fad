"""Features of the images of a source, and those that are kept on the disk, so that only images that are new are computed.

A cache has a folder for each way of computing features (weights, preprocessing, precision, versions), and in it a file for
each time that some were missing. The files that were not used for longest are removed beyond `limit`. So a subset of a data set,
or one that has grown, finds what was computed before.

N images of a file or a source, M of them good, D features.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch

from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.contents import Arrays, Contents, Files
from vitrail.data.sources.parquet import ParquetImages
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError, DiskError
from vitrail.files import disk_errors, replace_file, settle_folder
from vitrail.inference.options import InferenceOptions, tune_options
from vitrail.inference.outputs import rows_of_rank, run_model, share_bad_images
from vitrail.models import device_of
from vitrail.models.backbone import at_rest
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks.task import Task
from vitrail.untrusted.json_documents import parse_json
from vitrail.weights.tensors import encode_tensors, read_tensors

ID_BYTES = 16  # of the hash that tells images apart
DEFAULT_LIMIT = 4.0  # GB
OURS = re.compile(r"[0-9a-f]{64}(/[0-9a-f]{64})?\.safetensors")  # the folder may hold other files
COUNTED = ("vitrail", "torch", "numpy", "pillow")  # packages whose other version may give other features


def default_cache() -> Path:
    """Returns the folder of the cache: ``VITRAIL_CACHE``, else ``~/.cache/vitrail/features``."""
    given = os.environ.get("VITRAIL_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail" / "features"


def limit() -> int:
    """Returns the size in bytes that a cache may have: ``VITRAIL_CACHE_GB``, else 4 GB. Raises `ConfigError`."""
    given = os.environ.get("VITRAIL_CACHE_GB", "")
    try:
        gigabytes = float(given or DEFAULT_LIMIT)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < float("inf"):
        raise ConfigError(f"VITRAIL_CACHE_GB is {given!r}", "give a size in gigabytes, such as 4")
    return int(gigabytes * 1e9)


@dataclass(frozen=True, eq=False)
class Found:
    """The features (M, D) of some images of a source: of the good ones, ``rows`` (M,) in rising order; and by row why the
    others are bad.
    """

    rows: np.ndarray
    values: np.ndarray
    reasons: Mapping[int, str]

    @classmethod
    def nothing(cls) -> Found:
        return cls(np.zeros(0, np.int64), np.zeros((0, 0), np.float32), {})

    def at(self, rows: np.ndarray) -> Found:
        """Returns the same for a source in which the images have the numbers ``rows`` (N,)."""
        return Found(rows[self.rows], self.values, {int(rows[row]): why for row, why in self.reasons.items()})

    def join(self, other: Found) -> Found:
        """Returns these and ``other``, which are of the same source."""
        filled = [each for each in (self, other) if len(each.rows)]
        reasons = dict(sorted({**self.reasons, **other.reasons}.items()))
        if not filled:
            return Found(self.rows, self.values, reasons)
        rows = np.concatenate([each.rows for each in filled])
        order = rows.argsort()
        return Found(rows[order], np.concatenate([each.values for each in filled])[order], reasons)


@dataclass(frozen=True)
class FeatureCache:
    """The features that are computed in one way. ``identity`` is the SHA-256 of what decides them, besides the image."""

    root: Path
    identity: str

    def find(self, images: list[bytes]) -> Found:
        """Returns what the cache holds of ``images``, as `identify_images` gives them. A damaged file is removed."""
        found, missing = Found.nothing(), list(range(len(images)))
        for path in sorted((self.root / self.identity).glob("*.safetensors"), key=_last_use, reverse=True):
            if not missing:
                break
            kept = _read(path)
            if kept is None:
                path.unlink(missing_ok=True)
                continue
            selected = _select(*kept, images, missing)
            if len(selected.rows) or selected.reasons:
                os.utime(path)
                found = found.join(selected)
                missing = sorted(set(missing).difference(selected.rows.tolist(), selected.reasons))
        return found

    def keep(self, images: list[bytes], computed: Found, say: Say) -> None:
        """Writes what was computed for some of ``images``. A disk that is full costs time later, and no more."""
        rows = sorted([*computed.rows.tolist(), *computed.reasons])
        known = b"".join(images[row] for row in rows)
        number = {row: position for position, row in enumerate(rows)}
        tensors = {
            "images": torch.frombuffer(bytearray(known), dtype=torch.uint8).view(-1, ID_BYTES),
            "rows": torch.tensor([number[row] for row in computed.rows.tolist()], dtype=torch.int64),
            "features": torch.from_numpy(computed.values),
        }
        reasons = json.dumps({number[row]: why for row, why in computed.reasons.items()})
        content = encode_tensors(tensors, {"bad": reasons})
        if len(content) > limit():
            return say(
                f"note     the features are not cached: {len(content) / 1e9:.1f} GB, more than VITRAIL_CACHE_GB allows"
            )
        target = self.root / self.identity / f"{hashlib.sha256(known).hexdigest()}.safetensors"
        try:
            with disk_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
            settle_folder(target.parent)
            replace_file(target, content)
        except DiskError as error:
            return say(f"warning  the features could not be cached: {error.what}")
        prune(self.root, say)


def prune(root: Path, say: Say) -> None:
    """Removes the files that were not used for longest, until the cache is within its `limit`; says how much it removed."""
    files = sorted(list_files(root), key=_last_use)
    sizes = [path.stat().st_size for path in files]
    excess, removed = sum(sizes) - limit(), 0
    for path, size in zip(files, sizes):
        if removed >= excess:
            break
        path.unlink(missing_ok=True)
        removed += size
    if removed:
        say(f"note     {removed / 1e9:.1f} GB of old features removed from {root}; VITRAIL_CACHE_GB sets its limit")


def describe_cache() -> str:
    """Returns the size of the default cache, its limit and its folder."""
    root = default_cache()
    size = sum(path.stat().st_size for path in list_files(root))
    return f"{size / 1e9:.1f} of {limit() / 1e9:.1f} GB in {root}"


def list_files(root: Path) -> list[Path]:
    """Returns the files of a cache, and no others."""
    return [path for path in root.rglob("*.safetensors") if OURS.fullmatch(path.relative_to(root).as_posix())]


def identify_images(contents: Contents) -> list[bytes] | None:
    """Returns a hash of each image (N,) without reading files; None where nothing distinguishes them.

    Of pixels, where they are in memory; else of the name, size and date of the file. Pictures that a Parquet file only names
    are taken to be as old as it is.
    """
    match contents:
        case Arrays(images=images):
            kind = f"{images.shape[1:]} {images.dtype}\n".encode()
            return [_identify(kind, np.ascontiguousarray(image).data) for image in images]
        case Files(root=root, keys=keys):
            return [_identify(stamp) for stamp in _stamps(root, keys)]
        case ParquetImages(root=root, files=files):
            whole = b"".join([*_stamps(root, files), contents.column.encode()])
            return [_identify(whole, str(row).encode()) for row in contents.rows.tolist()]
        case _:
            return None


def _identify(*contents: bytes | memoryview) -> bytes:
    hashed = hashlib.blake2b(digest_size=ID_BYTES)
    for content in contents:
        hashed.update(content)
    return hashed.digest()


def _stamps(root: str, names: Iterable[str]) -> Iterable[bytes]:
    """Yields the path, size and date of each file."""
    folder = os.path.abspath(root)
    for name in names:
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
            age = f"{status.st_size} {status.st_mtime_ns}"
        except (OSError, ValueError):  # it will be a bad image
            age = "absent"
        yield f"{path}\0{age}\n".encode("utf-8", "surrogatepass")


def _select(known: list[bytes], kept: Found, images: list[bytes], missing: list[int]) -> Found:
    """Returns what a file holds, for its ``known`` images, of the ``missing`` ones of ``images``."""
    number = {image: position for position, image in enumerate(known)}
    position = {row: number[images[row]] for row in missing if images[row] in number}
    good = {int(at): index for index, at in enumerate(kept.rows)}
    rows = [row for row, at in position.items() if at in good]
    reasons = {row: kept.reasons[at] for row, at in position.items() if at not in good}
    return Found(np.array(rows, np.int64), kept.values[[good[position[row]] for row in rows]], reasons)


def _read(path: Path) -> tuple[list[bytes], Found] | None:
    """Returns the images of a file and what it holds for them; None where it is damaged."""
    try:
        tensors, metadata = read_tensors(path)
        if metadata.keys() != {"bad"}:  # a damaged name of the checksum would stand there too, unverified
            return None
        reasons = {int(row): reason for row, reason in parse_json(metadata["bad"]).items()}
        known = [image.tobytes() for image in tensors["images"].numpy()]
        return known, Found(tensors["rows"].numpy(), tensors["features"].numpy(), reasons)
    except (CheckpointError, KeyError, ValueError):
        return None


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it
        return 0.0


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
        return self.source.labels[self.rows] if self.source.labelled else self.source.labels

    @property
    def keys(self) -> list[str]:
        return [self.source.keys[row] for row in self.rows.tolist()]

    def only(self, rows: np.ndarray) -> Features:
        """Returns those of the images whose numbers in the source are in ``rows``."""
        kept = np.isin(self.rows, rows)
        return Features(self.source, self.rows[kept], self.values[kept])


def features_of(
    model: Task,
    source: Source,
    *,
    options: InferenceOptions = InferenceOptions(),
    cache: Path | None = None,
    title: str = "features",
    say: Say = to_stderr,
    ranks: Ranks = SINGLE,
) -> Features:
    """Returns the features of every good image of ``source``; a bad one is left out, or ends it, by the policy of ``options``.

    Args:
        model: on the device where it is to run; it needs no head.
        cache: a folder, see `FeatureCache`. What lies there for the same weights, preprocessing, precision, versions and
            image is taken as it is, bad images included. Pictures that a user's Dataset gives are never kept.
        title: the text beside the bar.
        ranks: each of them calls this, computes some of the batches, and gets all features; the first one uses the cache.

    Raises:
        DataError: no image is good, or too many are bad.
        CheckpointError: features that are not finite.
    """
    options = options.of_rank(ranks)
    bad = options.record_bad(source)
    images = None if cache is None else identify_images(source.contents)
    found, keep = Found.nothing(), None
    if cache is not None and images is not None:
        kept = FeatureCache(cache, _identify_computation(model, options))
        found, keep = ranks.run_on_rank0(lambda: kept.find(images)), partial(kept.keep, images)
    with ranks.share_errors():
        bad.merge({source.keys[row]: reason for row, reason in found.reasons.items()})
    missing = np.setdiff1d(np.arange(len(source)), [*found.rows, *found.reasons])
    if len(missing):
        uncached = source.subset(missing) if len(missing) < len(source) else source
        options = tune_options(options, model, say, images=len(missing), ranks=ranks)
        computed = _compute(model, uncached, options, bad, title, ranks).at(missing)
        with ranks.share_errors():
            if broken := int((~np.isfinite(computed.values).all(1)).sum()):
                what = f"the model's features of {broken:,} of {len(source):,} images are not finite"
                raise CheckpointError(
                    what, "look for NaN in the weights with `vitrail inspect`, or leave out --precision"
                )
        if keep is not None:
            ranks.run_on_rank0(lambda: keep(computed, say))
        found = found.join(computed)
    if not len(found.rows):
        what = "no image could be read: the split is empty or all of it is bad"
        raise ranks.collective_error(DataError(what, "see `vitrail data check`"))
    return Features(source, found.rows, found.values)


@torch.inference_mode()
def _compute(model: Task, source: Source, options: InferenceOptions, bad: BadImages, title: str, ranks: Ranks) -> Found:
    """Returns the features of the images that can be read, and why others cannot; each rank computes some of the batches."""
    rows = rows_of_rank(len(source), options.batch, ranks)
    own = source if ranks.is_single else source.subset(rows)
    noted: dict[str, str] = {}
    values: list[np.ndarray] = []
    good: list[int] = []
    shown = {"processes": ranks.world, "quiet": options.quiet}
    with ranks.share_errors(), at_rest(model), ProgressBar(title, len(source), **shown) as progress:
        how = {"bad": bad if ranks.is_single else noted.__setitem__, "progress": progress}
        for batch, features in run_model(model, own, options, verb=model.features, **how):
            values.append(features.cpu().numpy())
            good.extend(rows[batch.ids[:, 1]].tolist())
    share_bad_images(noted, source, bad, ranks)
    by_rank = [
        Found(np.array(rows, np.int64), np.concatenate(found), {})
        for rows, found in ranks.gather((good, values))
        if rows
    ]
    found = reduce(Found.join, by_rank, Found.nothing())
    others = sorted(set(range(len(source))).difference(found.rows.tolist()))
    return replace(found, reasons={row: bad.reasons[source.keys[row]] for row in others})


def digest_of(model: Task) -> str:
    """SHA-256 of all that decides what the model makes of a picture: weights, config and preprocessing."""
    hashed = hashlib.sha256(f"{model.config!r}\n{model.preprocessing!r}\n".encode())
    for name, tensor in {**model.backbone.state_dict(), **model.own.state_dict()}.items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def _identify_computation(model: Task, options: InferenceOptions) -> str:
    """SHA-256 of all that decides the features of an image, besides the image."""
    device = device_of(model).type
    counted = [version for name, version in versions().items() if name in COUNTED]
    return hashlib.sha256(json.dumps([digest_of(model), options.precision, device, counted]).encode()).hexdigest()
