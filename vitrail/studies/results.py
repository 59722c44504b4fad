"""The result of a trial: one small sealed file. Nothing here imports torch.

N evaluated images.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.config.parse import plain
from vitrail.files import disk_errors, read_sealed, write_sealed
from vitrail.untrusted.numbers import to_whole

FORMAT = 2  # of plans, of trials and of numbers.json
TRIALS, RUNS = "trials", "runs"  # inside the folder of a study: results, and trainings that are under way
KEY = re.compile(r"[0-9a-f]{64}")  # SHA-256 of what decides a trial; it becomes the name of a file


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What one training leaves: kilobytes, whatever its network.

    Args:
        key: see `plan.Trial`.
        kind: ``final``, evaluated on the test split, or ``tuning``, evaluated on validation images.
        settings: that decided the result, by dotted path.
        rate: the learning rate that was used.
        limit: training images, ``steps`` updates, and ``images`` seen by them.
        right: which of the evaluated images are right, (N,) bool; (0,) for a trial that diverged or failed.
        test: ``accuracy`` and ``nll`` as ``validation`` and ``train``, 1,000 of its own images without augmentation.
        curve: at 8 points ``step``, ``validation_accuracy``, ``validation_nll`` and ``train_accuracy``.
        flops: executed by the whole training; ``macs6`` is 6 x the multiply-adds of a forward pass x images seen.
        findings: of the measures that the study asks for.
        error: why it failed, or where it diverged.
        seconds: wall clock, as the fields after it never part of a figure.
    """

    key: str
    kind: Literal["final", "tuning"]
    state: Literal["done", "diverged", "failed"]
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


def write_result(folder: Path, result: TrialResult) -> None:
    """Keeps a result in the study's ``folder``, whole or not at all. Raises `DiskError`."""
    tree = {item.name: getattr(result, item.name) for item in fields(result) if item.name != "right"}
    bits = base64.b64encode(np.packbits(result.right).tobytes()).decode()
    with disk_errors(folder):
        (folder / TRIALS).mkdir(exist_ok=True)
    path = folder / TRIALS / f"{result.key}.json"
    write_sealed(path, {"format": FORMAT, **plain(tree), "right": [len(result.right), bits]})


def read_result(folder: Path, key: str) -> TrialResult | None:
    """Reads the result of a trial; None where it is missing, damaged or of another format, and has to be computed.

    Raises `ValueError` for a key that is no SHA-256, and so may be a path.
    """
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not the key of a trial")
    tree = read_sealed(folder / TRIALS / f"{key}.json")
    if tree is None or tree.get("format") != FORMAT or tree.get("key") != key:
        return None
    try:
        count, bits = tree["right"]
        packed = np.frombuffer(base64.b64decode(bits), np.uint8)
        if len(packed) != -(-to_whole(count, "the number of evaluated images") // 8):
            return None
        known = {item.name for item in fields(TrialResult)}
        kept: dict[str, Any] = {name: value for name, value in tree.items() if name in known}
        kept |= {"right": np.unpackbits(packed, count=count).astype(bool), "curve": tuple(tree["curve"])}
        return TrialResult(**kept)
    except (LookupError, TypeError, ValueError):
        return None
