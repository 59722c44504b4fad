"""Features of the images of a source, and those that are kept on the disk, so that only images that are new are computed.

A cache has a folder for each way of computing features (weights, preprocessing, precision, versions), and in it a file for
each time that some were missing. The files that were not used for longest are removed beyond `limit`. So a subset of a data set,
or one that has grown, finds what was computed before.

N images of a source, M of them good, D features.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.contents import Arrays, Contents, Files
from vitrail.data.sources.parquet import ParquetImages
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError, DiskError
from vitrail.files import ensure_folder, replace_file, settle_folder
from vitrail.inference.options import InferenceOptions, tune_options
from vitrail.inference.outputs import rows_of_rank, run_model, share_bad_images
from vitrail.models import device_of
from vitrail.models.backbone import eval_mode
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import LogFunction, ProgressBar, to_stderr
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


# by the number of an image in its source: its features (D,), or why it is bad
Found = dict[int, np.ndarray | str]


def stack_features(found: Found) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the good images (M,) in rising order, and their features (M, D) float32."""
    good = sorted((row, value) for row, value in found.items() if not isinstance(value, str))
    rows = np.array([row for row, _ in good], np.int64)
    return rows, np.stack([value for _, value in good]) if good else np.zeros((0, 0), np.float32)


def list_reasons(found: Found) -> dict[int, str]:
    """Returns why images are bad, by their numbers in rising order."""
    return {row: value for row, value in sorted(found.items()) if isinstance(value, str)}


@dataclass(frozen=True)
class FeatureCache:
    """The features that are computed in one way. ``identity`` is the SHA-256 of what decides them, besides the image."""

    root: Path
    identity: str

    def find(self, images: list[bytes]) -> Found:
        """Returns what the cache holds of ``images``, as `identify_images` gives them. A damaged file is removed."""
        found: Found = {}
        for path in sorted((self.root / self.identity).glob("*.safetensors"), key=_last_use, reverse=True):
            if len(found) == len(images):
                break
            kept = _read(path)
            if kept is None:
                path.unlink(missing_ok=True)
                continue
            missing = (row for row in range(len(images)) if row not in found)
            selected = {row: kept[images[row]] for row in missing if images[row] in kept}
            if selected:
                os.utime(path)
                found |= selected
        return found

    def keep(self, images: list[bytes], computed: Found, log: LogFunction) -> None:
        """Writes what was computed for some of ``images``. A disk that is full costs time later, and no more."""
        known = b"".join(images[row] for row in sorted(computed))
        numbered = {number: computed[row] for number, row in enumerate(sorted(computed))}
        rows, values = stack_features(numbered)
        tensors = {
            "images": torch.frombuffer(bytearray(known), dtype=torch.uint8).view(-1, ID_BYTES),
            "rows": torch.from_numpy(rows),
            "features": torch.from_numpy(values),
        }
        content = encode_tensors(tensors, {"bad": json.dumps(list_reasons(numbered))})
        if len(content) > limit():
            size = f"{len(content) / 1e9:.1f} GB"
            return log(f"note     the features are not cached: {size}, more than VITRAIL_CACHE_GB allows")
        target = self.root / self.identity / f"{hashlib.sha256(known).hexdigest()}.safetensors"
        try:
            ensure_folder(target.parent)
            settle_folder(target.parent)
            replace_file(target, content)
        except DiskError as error:
            return log(f"warning  the features could not be cached: {error.what}")
        prune(self.root, log)


def prune(root: Path, log: LogFunction) -> None:
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
        log(f"note     {removed / 1e9:.1f} GB of old features removed from {root}; VITRAIL_CACHE_GB sets its limit")


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


def _read(path: Path) -> dict[bytes, np.ndarray | str] | None:
    """Returns what a file holds for its images; None where it is damaged."""
    try:
        tensors, metadata = read_tensors(path)
        if metadata.keys() != {"bad"}:  # a damaged name of the checksum would stand there too, unverified
            return None
        known = [image.tobytes() for image in tensors["images"].numpy()]
        kept: dict[bytes, np.ndarray | str] = {known[int(row)]: why for row, why in parse_json(metadata["bad"]).items()}
        good = zip(tensors["rows"].tolist(), tensors["features"].numpy(), strict=True)
        return kept | {known[row]: value for row, value in good}
    except (CheckpointError, KeyError, ValueError, IndexError):
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
    verb: Callable[[Tensor], Tensor] | None = None,
    title: str = "features",
    bad: BadImages | None = None,
    log: LogFunction = to_stderr,
    ranks: Ranks = SINGLE,
) -> Features:
    """Returns the features of every good image of ``source``; a bad one is left out, or ends it, by the policy of ``options``.

    Args:
        model: on the device where it is to run; it needs no head.
        cache: a folder, see `FeatureCache`. What lies there for the same weights, preprocessing, precision, versions and
            image is taken as it is, bad images included. Pictures that a user's Dataset gives are never kept.
        verb: computes other values (B, D) of images, which are not cached; by default the features.
        title: the text beside the bar.
        bad: where bad images are recorded; by default they are only counted.
        ranks: each of them calls this, computes some of the batches, and gets all features; the first one uses the cache.

    Raises:
        DataError: no image is good, or too many are bad.
        CheckpointError: features that are not finite.
    """
    options = options.of_rank(ranks)
    bad = options.record_bad(source) if bad is None else bad
    images = None if cache is None else identify_images(source.contents)
    found: Found = {}
    kept = None
    if cache is not None and images is not None:
        kept = FeatureCache(cache, _identify_computation(model, options))
        found = ranks.run_on_rank0(partial(kept.find, images))
    with ranks.share_errors():
        bad.merge({source.keys[row]: why for row, why in list_reasons(found).items()})
    missing = [row for row in range(len(source)) if row not in found]
    if missing:
        uncached = source.subset(np.array(missing)) if found else source
        options = tune_options(options, model, log, images=len(missing), ranks=ranks)
        computed = {
            missing[row]: value for row, value in _compute(model, uncached, verb, options, bad, title, ranks).items()
        }
        with ranks.share_errors():
            good = [value for value in computed.values() if not isinstance(value, str)]
            if broken := sum(not np.isfinite(value).all() for value in good):
                what = f"the model's features of {broken:,} of {len(source):,} images are not finite"
                remedy = "look for NaN in the weights with `vitrail inspect`, or leave out --precision"
                raise CheckpointError(what, remedy)
        if kept is not None and images is not None:
            ranks.run_on_rank0(partial(kept.keep, images, computed, log))
        found |= computed
    rows, values = stack_features(found)
    if not len(rows):
        what = "no image could be read: the split is empty or all of it is bad"
        raise ranks.collective_error(DataError(what, "see `vitrail data check`"))
    return Features(source, rows, values)


@torch.inference_mode()
def _compute(
    model: Task,
    source: Source,
    verb: Callable[[Tensor], Tensor] | None,
    options: InferenceOptions,
    bad: BadImages,
    title: str,
    ranks: Ranks,
) -> Found:
    """Returns the features of the images that can be read, and why others cannot; each rank computes some of the batches."""
    rows = rows_of_rank(len(source), options.batch, ranks)
    own = source if ranks.is_single else source.subset(rows)
    noted: dict[str, str] = {}
    found: Found = {}
    shown = {"processes": ranks.world, "quiet": options.quiet}
    with ranks.share_errors(), eval_mode(model), ProgressBar(title, len(source), **shown) as progress:
        how = {"bad": bad if ranks.is_single else noted.__setitem__, "progress": progress}
        for batch, features in run_model(model, own, options, verb=verb or model.features, **how):
            found.update(zip(rows[batch.ids[:, 1]].tolist(), features.cpu().numpy()))
    share_bad_images(noted, source, bad, ranks)
    for good, values in ranks.gather(stack_features(found)):
        found.update(zip(good.tolist(), values))
    return found | {row: bad.reasons[source.keys[row]] for row in range(len(source)) if row not in found}


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
