"""The fingerprint of a run: digests of its images and targets, of the weights that take part, and versions of packages.

``split.json`` has all of it, and ``stamps.npz`` the state of each image, so that a change can be named.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from vitrail.checksums import sha256_of
from vitrail.data.sources.source import Source, Splits, list_splits
from vitrail.errors import CheckpointError, DataError
from vitrail.files import read_checksummed, replace_file, write_checksummed
from vitrail.runs.checkpoint import Checkpoint
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import LogFunction
from vitrail.stamps import Changes, Stamps, find_changes
from vitrail.text import plural
from vitrail.training.data import UNTRAINED, RunData
from vitrail.training.state import Training
from vitrail.weights.resolve import hash_model, resolve_model

RECORD, STAMPS = "split.json", "stamps.npz"
TARGETS = " targets"  # behind the name of a split, the digest of its classes and targets
START_AGAIN = "put them back as they were, or start a new run with another --out (--init takes this one's weights)"


def fingerprint_data(data: RunData) -> dict[str, str]:
    """Digests of the images that each split trains on or is evaluated on, and of their targets as they were opened."""
    used = {name: part.keys.digest() for name, part in list_splits(data.splits).items() if name != UNTRAINED}
    return used | {name + TARGETS: part.digest_targets() for name, part in list_splits(data.opened).items()}


def record_or_check(training: Training, saved: Checkpoint | None, log: LogFunction, *, stamped: bool = True) -> None:
    """Records the fingerprint of a new run, or compares it with the recorded one.

    Files that are damaged are written again if the images and targets are those of the checkpoint.

    Args:
        saved: the checkpoint to resume from, which has the digests too.
        stamped: whether the state of each image is recorded, by which a change can be named.

    Raises:
        DataError: the run began with other images or targets, another teacher or tokenizer, or adapters of other weights.
        CheckpointError: ``split.json`` is damaged, and the checkpoint, of an earlier version, does not have the digests.
    """
    folder, run, data, digests = training.folder, training.run, training.batches.data, training.digests
    record = read_checksummed(folder.path / RECORD)
    if record is None and (folder.path / RECORD).exists() and saved is not None:
        if saved.state.get("images") is None:
            what = f"{folder.path / RECORD} is damaged, and whether the images are still those of the run is unknown"
            raise CheckpointError(what, "start a new run with another --out (--init takes this one's weights)")
        log(f"warning  {RECORD} was damaged; it is written again from the checkpoint and the seed")
        record = {"images": saved.state["images"]}
    named = {"init": run.model.init, "teacher": run.objective.teacher, "tokenizer": run.objective.tokenizer}
    weights = {name: hash_model(resolve_model(path)) for name, path in named.items() if path}
    begun = record or {}
    stamps = _read_stamps(folder, begun)
    if stamped and stamps is None and begun.get("stamps"):
        log(f"warning  {STAMPS} was damaged; names, classes and targets are compared, contents of images are not")
    refused, untrained, unknown = _compare(begun, digests, data.opened, stamps or {})
    needed = ("teacher", "tokenizer", *(("init",) if run.model.adapters.rank else ()))  # to which adapters are added
    refused += _compare_weights(begun, weights, needed)
    changed = [*untrained, *unknown, *_compare_weights(begun, weights, ("init",)), *_compare_versions(begun)]
    if refused:
        raise _changed_data(folder, refused)
    for line in changed:
        log(f"warning  {line}")
    if record is not None and stamps is not None and not changed:
        return
    val = data.splits.val
    record = {
        "seed": data.splits.seed,
        "images": dict(digests),
        "held_out": [str(key) for key in val.keys] if data.splits.held_out and val is not None else [],
        "classes": list(data.opened.classes),
        "weights": weights,
        "versions": begun.get("versions", versions()),
        "stamps": _write_stamps(folder, data.opened) if stamped else None,
    }
    write_checksummed(folder.path / RECORD, record)


def check_finished(folder: RunFolder, data: RunData) -> None:
    """Raises `DataError` where the data of a finished run have changed, so that its report is not of them."""
    begun = read_checksummed(folder.path / RECORD) or {}
    digests = {name + TARGETS: part.digest_targets() for name, part in list_splits(data.opened).items()}
    refused, untrained, _ = _compare(begun, digests, data.opened, _read_stamps(folder, begun) or {})
    if refused or untrained:
        raise _changed_data(folder, refused + untrained)


def _changed_data(folder: RunFolder, lines: list[str]) -> DataError:
    what = f"the data are not those with which the run {folder.path} began"
    return DataError(what, START_AGAIN, value="\n".join(lines))


def _compare(
    begun: Mapping[str, Any], digests: Mapping[str, str], opened: Splits, stamps: Mapping[tuple[str, str], Stamps]
) -> tuple[list[str], list[str], list[str]]:
    """Returns a line for each change of the data that a run trains or is evaluated on, for each change of other data, and for
    each split with files whose content may have changed.
    """
    before, parts = begun.get("images", {}), list_splits(opened)
    changes: dict[str, list[str]] = {}
    unsure = []
    for name, part in parts.items():
        changes[name], unknown = _compare_split(name, part, before, digests, stamps)
        if unknown:
            unsure.append(f"of {plural(unknown, 'image')} of {name} only the length was compared")
    if known := {key.removesuffix(TARGETS) for key in before if key.endswith(TARGETS)}:  # earlier versions have none
        changes |= {name: [f"{name}: the split is gone"] for name in known - parts.keys()}
        changes |= {name: [f"{name}: the split is new"] for name in parts.keys() - known}
    classes = tuple(begun.get("classes", opened.classes))
    if classes != opened.classes:
        changes["classes"] = [f"classes: {_shorten(classes)} then, {_shorten(opened.classes)} now"]
    untrained = changes.pop(UNTRAINED, [])
    return [line for lines in changes.values() for line in lines], untrained, unsure


def _compare_split(
    name: str,
    part: Source,
    before: Mapping[str, str],
    digests: Mapping[str, str],
    stamps: Mapping[tuple[str, str], Stamps],
) -> tuple[list[str], int]:
    """Returns a line for each change of a split, and the number of its files whose content may have changed."""
    now = part.stamp() if any(split == name for split, _ in stamps) else {}
    found = {what: find_changes(stamps[name, what], now[what]) for what in now if (name, what) in stamps}
    if found.keys() == {"images", "targets"}:  # targets come and go with their images
        found["targets"] = Changes(changed=found["targets"].changed)
    lines = [f"{name} {what}: {words}" for what, changes in found.items() if (words := changes.describe())]
    keys = {name, name + TARGETS} & digests.keys()
    if not lines and any(before.get(key, digests[key]) != digests[key] for key in keys):
        lines = [f"{name}: other images, classes or targets"]
    return lines, sum(len(changes.unknown) for changes in found.values())


def _compare_weights(begun: Mapping[str, Any], weights: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    before = begun.get("weights", weights)
    return [f"{name}: other weights than then" for name in names if before.get(name) != weights.get(name)]


def _compare_versions(begun: Mapping[str, Any]) -> list[str]:
    now = versions()
    before = {**now, **begun.get("versions", {})}
    changed = [f"{name} {now[name]} in place of {before[name]}" for name in now if before[name] != now[name]]
    return [f"{', '.join(changed)}: from here on the run may differ in the last bits"] if changed else []


def _shorten(classes: Sequence[str]) -> str:
    return f"{len(classes)} ({', '.join(classes[:8])}{', ...' if len(classes) > 8 else ''})"


def _write_stamps(folder: RunFolder, opened: Splits) -> str:
    """Writes the state of each image and target; returns the SHA-256 of the file."""
    arrays: dict[str, Any] = {
        f"{name} {what} {field.name}": getattr(stamps, field.name)
        for name, part in list_splits(opened).items()
        for what, stamped in part.stamp().items()
        for stamps in [stamped.record()]
        for field in fields(Stamps)
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    replace_file(folder.path / STAMPS, buffer.getvalue())
    return sha256_of(buffer.getbuffer())


def _read_stamps(folder: RunFolder, begun: Mapping[str, Any]) -> dict[tuple[str, str], Stamps] | None:
    """Returns the recorded state of each image and target, by split and kind; None if it is missing or damaged."""
    try:
        content = (folder.path / STAMPS).read_bytes()
    except OSError:
        return None
    if sha256_of(content) != begun.get("stamps"):
        return None
    arrays = np.load(io.BytesIO(content), allow_pickle=False)
    named = {tuple(key.split(" ")) for key in arrays}
    return {
        (name, what): Stamps(**{field.name: arrays[f"{name} {what} {field.name}"] for field in fields(Stamps)})
        for name, what, _ in named
    }
