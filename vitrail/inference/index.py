"""The index of `vitrail embed --index`: the features of images in one file, and how they were computed in another.

N images, D features.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.checksums import digest_file
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import (
    document_errors,
    make_folder,
    move_files,
    read_checksummed,
    settle,
    stage_folder,
    write_checksummed,
)
from vitrail.inference.features import digest_of
from vitrail.inference.outputs import Embedding
from vitrail.inference.results import Results
from vitrail.tables import save_array
from vitrail.tasks.task import Task
from vitrail.text import plural

NAME, FEATURES, FORMAT = "index.json", "features.npy", "vitrail index 1"
AGAIN = "make it again: vitrail embed MODEL IMAGES --index FOLDER"


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureIndex:
    """An index that was read.

    Args:
        features: (N, D) float32 of length 1, mapped from their file.
        paths: the N images, as they were named.
        folder: the one that relative paths start from.
        model: where the weights are, as `vitrail.load` takes it; empty for a model in memory.
        digest: of the model, by `digest_of`.
        precision: in which the features were computed.
        options: what weights do not state, as `embed` was given it.
    """

    features: Tensor
    paths: list[str]
    folder: str
    model: str
    digest: str
    precision: str
    options: Mapping[str, Any]

    def locate(self, path: str) -> str:
        """Returns the absolute path of an image of the index."""
        return os.path.normpath(os.path.join(self.folder, path))


def is_index(folder: Path) -> bool:
    settle(folder / NAME)
    return (folder / NAME).is_file() and (folder / FEATURES).is_file()


def find_root(results: Results[Embedding]) -> str:
    """Returns the folder that the paths of results start from: that of a table, else the working directory."""
    return os.path.abspath(getattr(results.images.source.contents, "root", ""))


def write_index(
    out: Path, results: Results[Embedding], task: Task, *, model: str, precision: str, options: Mapping[str, Any]
) -> str:
    """Writes the features of ``task`` as an index; arguments as of `FeatureIndex`. Returns a line that says so.

    Both files take their places when all is computed, or neither.

    Raises:
        ConfigError: ``out`` has other files than those of an index.
        CheckpointError: features that are not finite.
        DiskError: the disk is full or cannot be written.
    """
    make_folder(out)
    if not is_index(out) and any(not path.name.startswith(".") for path in out.iterdir()):
        raise ConfigError(f"{out} has files that are not those of an index", "give a new folder")
    values = np.empty((len(results.images.source), task.width), np.float32)
    root, paths, repeated = find_root(results), dict[str, str](), 0  # by absolute path
    for key, features in results:
        values[len(paths)] = features / max(float(np.linalg.norm(features)), 1e-12)
        repeated += paths.setdefault(os.path.normpath(os.path.join(root, key)), key) is not key
    values = values[: len(paths)]
    check_finite(values)
    facts = {"format": FORMAT, "model": model, "model_sha256": digest_of(task), "precision": precision}
    facts |= {"options": options, "folder": root, "paths": list(paths.values())}
    with stage_folder(out / NAME, {}) as aside:
        save_array(aside / FEATURES, values)
        write_checksummed(aside / NAME, {**facts, "features": digest_file(aside / FEATURES)})
        move_files(out / NAME, aside)
    twice = f"; {plural(repeated, 'repeated path')} left out" if repeated else ""
    return f"index of {plural(len(paths), 'image')} in {out}, {values.shape[1]} features of each{twice}"


def check_finite(values: np.ndarray) -> None:
    """Raises `CheckpointError` for features (N, D) that are not finite."""
    if broken := len(values) - int(np.isfinite(values).all(1).sum()):
        what = f"the model's features of {broken:,} of {len(values):,} images are not finite"
        raise CheckpointError(what, "look for NaN in the weights with `vitrail inspect`, or leave out --precision")


def read_index(folder: Path) -> FeatureIndex:
    """Reads an index. Raises `DataError` if there is none in ``folder``, or it is damaged."""
    if not is_index(folder):
        raise DataError(f"there is no index of images in {folder}", AGAIN.replace("it again", "one"))
    found = read_checksummed(folder / NAME)
    if found is None or found.get("format") != FORMAT:
        raise DataError(f"{folder / NAME} is damaged, or not that of an index of images", AGAIN)
    with document_errors(folder, AGAIN):
        if digest_file(folder / FEATURES) != found["features"]:
            raise DataError(f"{folder / FEATURES} was changed after vitrail wrote it", AGAIN)
        values = np.asarray(np.load(folder / FEATURES, mmap_mode="c", allow_pickle=False))
        if len(values) != len(found["paths"]):
            raise ValueError(f"{len(values):,} features of {len(found['paths']):,} images")
        if not np.isfinite(values.sum()):
            raise ValueError(f"{FEATURES} has values that are not finite")
        return FeatureIndex(
            features=torch.from_numpy(values),
            digest=found["model_sha256"],
            **{name: found[name] for name in ("paths", "folder", "model", "precision", "options")},
        )
