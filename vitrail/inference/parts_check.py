"""Whether a folder of parts holds each image exactly once: every part is there, whole, and nothing else is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.files import read_sealed
from vitrail.inference.parts import DONE, PartFolder, list_visible, read_parts, state_of, summarize
from vitrail.rows import Rows
from vitrail.runtime.progress import ProgressBar

SHOWN = 20  # lines of each kind that `PartsCheck.to_text` shows


@dataclass(frozen=True, kw_only=True)
class PartState:
    """One part: ``reason`` says what is wrong with one that is missing or damaged; numbers are those of its record."""

    name: str
    state: Literal["done", "missing", "damaged"]
    reason: str = ""
    images: int = 0
    unreadable: int = 0
    rows: int = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class PartsCheck(Rows):
    """What was found in a folder of parts.

    Args:
        folder: its path.
        images: number of images of the plan.
        parts: the state of each part.
        others: files that belong to no part, such as a copy; a reader of the folder would take them for data.
        manifest: what is wrong with ``_done.json``; empty if it agrees with the parts.
    """

    folder: str
    images: int
    parts: tuple[PartState, ...]
    others: tuple[str, ...]
    manifest: str

    @property
    def sound(self) -> bool:
        """Whether every image is there exactly once."""
        return not (self.others or self.manifest) and all(part.state == "done" for part in self.parts)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if any(part.state == "damaged" for part in self.parts):
            return "delete the damaged parts, then run the same command, which computes what is missing"
        if self.others:
            return "remove what belongs to no part"
        return "run the same command, which computes what is missing"

    def to_dict(self) -> dict[str, Any]:
        """The result in JSON types."""
        return asdict(self) | {"sound": self.sound}

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each part: ``name``, ``state``, ``reason``, ``images``, ``unreadable``, ``rows``."""
        return [asdict(part) for part in self.parts]

    def __repr__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """The result as lines of text. Long lists are shortened; `to_rows` has them in full."""
        done = [part for part in self.parts if part.state == "done"]
        images, unreadable = sum(part.images for part in done), sum(part.unreadable for part in done)
        lines = [
            f"parts    {len(done):,} of {len(self.parts):,} in {self.folder}",
            f"images   {images:,} of {self.images:,}, {unreadable:,} of them unreadable",
        ]
        found = [f"{part.state:<8} {part.name}: {part.reason}" for part in self.parts if part.state != "done"]
        found += [f"foreign  {name} belongs to no part" for name in self.others]
        found += [f"manifest {self.manifest}"] if self.manifest else []
        lines += found[:SHOWN] + ([f"and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else [])
        return "\n".join([*lines, "no problems found" if self.sound else "problems found, see above"])


def verify_parts(path: Path, *, quiet: bool = False) -> PartsCheck:
    """Reads every file of a folder of parts and compares it with its record. Changes nothing.

    Raises:
        DataError: the folder has no plan, or a damaged one.
    """
    folder = read_parts(path)
    states = []
    with ProgressBar("checking", folder.plan.count, quiet=quiet) as progress:
        for number in range(folder.plan.count):
            states.append(_check_part(folder, number))
            progress.update(number + 1)
    expected = {name for number in range(folder.plan.count) for name in folder.plan.files(number)}
    others = tuple(name for name in list_visible(path) if name not in expected)
    manifest = _check_manifest(folder) if all(part.state == "done" for part in states) else ""
    return PartsCheck(
        folder=str(path), images=folder.plan.images, parts=tuple(states), others=others, manifest=manifest
    )


def _check_part(folder: PartFolder, number: int) -> PartState:
    names = folder.plan.files(number)
    record = folder.read_record(number)
    if record is None:
        there = [name for name in names if (folder.path / name).is_file()]
        reason = f"{there[0]} is there, but no record of it" if there else "not computed"
        return PartState(name=names[-1], state="missing", reason=reason)
    counts = {name: record[name] for name in ("images", "unreadable", "rows")}
    for name, stated in record["files"].items():
        if not (folder.path / name).is_file():
            return PartState(name=name, state="missing", reason="deleted since it was written")
        found = state_of(folder.path / name)
        if found["bytes"] != stated["bytes"]:
            reason = f"{found['bytes']:,} bytes, its record says {stated['bytes']:,}"
            return PartState(name=name, state="damaged", reason=reason, **counts)
        if found["sha256"] != stated["sha256"]:
            return PartState(name=name, state="damaged", reason="another SHA-256 than its record", **counts)
    return PartState(name=names[-1], state="done", **counts)


def _check_manifest(folder: PartFolder) -> str:
    """What is wrong with the manifest of a folder whose parts are all done."""
    records = [record for number in range(folder.plan.count) if (record := folder.read_record(number))]
    found = read_sealed(folder.path / DONE)
    if found is None:
        return f"{DONE} is missing or damaged; the same command writes it"
    return "" if found == summarize(records, folder.digest) else f"{DONE} is not that of these parts"
