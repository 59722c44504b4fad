"""The result of a cell: one small sealed file, and what judging reads of all of them. Nothing here imports torch.

N judged images.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vitrail.config.parse import plain
from vitrail.files import disk_errors, read_sealed, write_sealed
from vitrail.untrusted.numbers import to_whole

FORMAT = 1
CELLS = "cells"  # the folder of the results, inside that of a study
State = Literal["done", "diverged", "failed"]
KEY = re.compile(r"[0-9a-f]{64}")  # SHA-256 of what decides a cell; it becomes the name of a file


class Place(NamedTuple):
    """Where a cell stands in an experiment; ``levels`` are those of the factors by dotted path, in the experiment's order."""

    arm: str
    levels: tuple[tuple[str, Any], ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What one training leaves: kilobytes, whatever its network.

    Args:
        key: see `plan.Cell`.
        kind: ``final``, judged on the test split, or ``tuning``, judged on validation images.
        settings: that decided the result, by dotted path.
        rate: the learning rate that was used.
        limit: training images, ``steps`` updates, and ``images`` seen by them.
        right: which of the judged images are right, (N,) bool; (0,) for a cell that diverged or failed.
        test: ``accuracy`` and ``nll`` as ``validation`` and ``train``, 1,000 of its own images without augmentation.
        curve: at 8 points ``step``, ``validation_accuracy``, ``validation_nll`` and ``train_accuracy``.
        flops: executed by the whole training; ``macs6`` is 6 x the multiply-adds of a forward pass x images seen.
        findings: of the measures that the experiment asks for.
        error: why it failed, or where it diverged.
        seconds: wall clock, as the fields after it never part of a figure.
    """

    key: str
    kind: Literal["final", "tuning"]
    state: State
    settings: Mapping[str, Any]
    seed: int
    rate: float
    limit: int = 0
    steps: int = 0
    images: int = 0
    right: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    test: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    train: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[Mapping[str, float], ...] = ()
    flops: float = 0.0
    macs6: float = 0.0
    parameters: int = 0
    findings: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    host: str = ""
    device: str = ""
    version: str = ""
    commit: str = ""
    attempts: int = 1


def write_result(folder: Path, result: CellResult) -> None:
    """Keeps a result in the study's ``folder``, whole or not at all. Raises `DiskError`."""
    tree = {item.name: getattr(result, item.name) for item in fields(result) if item.name != "right"}
    bits = base64.b64encode(np.packbits(result.right).tobytes()).decode()
    with disk_errors(folder):
        (folder / CELLS).mkdir(exist_ok=True)
    write_sealed(place_of(folder, result.key), {"format": FORMAT, **plain(tree), "right": [len(result.right), bits]})


def read_result(folder: Path, key: str) -> CellResult | None:
    """The result of a cell; None where it is missing, damaged or of another format, and has to be computed."""
    return parse_result(read_sealed(place_of(folder, key)))


def parse_result(tree: Mapping[str, Any] | None) -> CellResult | None:
    """Returns the result in a file that was read, or None if it is not one of this format."""
    if tree is None or tree.get("format") != FORMAT or not KEY.fullmatch(str(tree.get("key"))):
        return None
    try:
        count, bits = tree["right"]
        packed = np.frombuffer(base64.b64decode(bits), np.uint8)
        if len(packed) != -(-to_whole(count, "the number of judged images") // 8):
            return None
        known = {item.name for item in fields(CellResult)}
        kept: dict[str, Any] = {name: value for name, value in tree.items() if name in known}
        kept |= {"right": np.unpackbits(packed, count=count).astype(bool), "curve": tuple(tree["curve"])}
        return CellResult(**kept)
    except (LookupError, TypeError, ValueError):
        return None


def place_of(folder: Path, key: str) -> Path:
    """Returns the file of a cell. Raises `ValueError` for a key that is no SHA-256, and so may be a path."""
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not the key of a cell")
    return folder / CELLS / f"{key}.json"


@dataclass(frozen=True)
class Results:
    """The results in the ``folder`` of a study by their place in its experiments, for judging; `Plan.results` makes it."""

    folder: Path
    places: Mapping[str, Mapping[Place, str]]  # experiment -> place -> key

    def of(self, experiment: str) -> dict[Place, CellResult]:
        """The results of an experiment that there are, in the order of the plan."""
        found = {place: read_result(self.folder, key) for place, key in self.places[experiment].items()}
        return {place: result for place, result in found.items() if result is not None}
