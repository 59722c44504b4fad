"""A folder of results for many images: parts that processes compute in any order, each whole or not there.

``_plan.json`` states what is computed of which images; part 17 has the images from 17 times the part size on.
``part-0000017.parquet`` is written aside and renamed, and ``_records/0000017.json`` states its size and SHA-256: a part is done
when its record is there. ``_done.json`` has all records when all parts are done. Readers of whole folders (Arrow, Spark) pass
over names that start with an underscore.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.checksums import FIELD, add_checksum, digest_file
from vitrail.errors import ConfigError, DataError
from vitrail.files import disk_errors, document_errors, ensure_folder, make_folder, read_checksummed, write_checksummed
from vitrail.rows import Rows
from vitrail.runtime.progress import ProgressBar
from vitrail.shared_work import Claims
from vitrail.untrusted.numbers import to_whole

FORMAT_VERSION = 1
PLAN, DONE, RECORDS, CLAIMS = "_plan.json", "_done.json", "_records", "_claims"
SUFFIXES = {"parquet": (".parquet",), "jsonl": (".jsonl",), "npy": (".jsonl", ".npy")}  # the files of a part by format
MAX_PARTS = 1_000_000
COUNTS = ("images", "unreadable", "rows")  # of a record
SHOWN = 20  # lines of each kind that `PartsCheck.to_text` shows
POLL = 0.1  # seconds between two looks at what another process does


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is computed of which images. Equal plans give equal parts, up to the rounding of the machine.

    Args:
        verb: ``predict`` or ``embed``.
        model: SHA-256 of the weights, config, preprocessing and classes.
        inputs: SHA-256 of the names of the images, in their order.
        images: their number.
        part_size: images of a part; the last one may have fewer.
        format: one of `SUFFIXES`.
        columns: of tables by name, ``text``, ``number`` or ``numbers``.
        width: number of features of an image.
        settings: what else decides the results.
    """

    verb: str
    model: str
    inputs: str
    images: int
    part_size: int
    format: str
    columns: Mapping[str, str]
    width: int
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        to_whole(self.images, "the number of images", most=2**40)
        to_whole(self.part_size, "the number of images of a part", least=1, most=2**40)
        if self.format not in SUFFIXES:
            raise ValueError(f"the format is {self.format!r}")
        if self.count > MAX_PARTS:
            raise ValueError(f"{self.images:,} images are {self.count:,} parts, at most {MAX_PARTS:,} are written")

    @property
    def count(self) -> int:
        """Number of parts."""
        return -(-self.images // self.part_size)

    @property
    def digest(self) -> str:
        return add_checksum(asdict(self))[FIELD]

    def span(self, number: int) -> range:
        """The images of a part, by their places in the inputs."""
        return range(self.images)[number * self.part_size : (number + 1) * self.part_size]

    def files(self, number: int) -> list[str]:
        """The names of the files of a part."""
        return [f"part-{number:07d}{suffix}" for suffix in SUFFIXES[self.format]]

    def compare(self, other: Plan) -> list[str]:
        """Where ``other``, which is given now, differs from this one: a line for each difference."""
        ours, theirs = ({**asdict(plan), **plan.settings} for plan in (self, other))
        return [
            f"{name}  {_shorten(ours.get(name))} in the folder, {_shorten(theirs.get(name))} given"
            for name in {**ours, **theirs}
            if name != "settings" and ours.get(name) != theirs.get(name)
        ]


def _shorten(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else str(value)


class PartFolder:
    """The parts of one plan. Several processes may have the folder open at a time."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan, self.digest = path, plan, plan.digest
        self._claims: Claims | None = None

    @classmethod
    def open(cls, path: Path, plan: Plan, about: Mapping[str, Any]) -> PartFolder:
        """Begins a folder, or continues one of the same plan.

        Args:
            about: plain facts for people, which stand in ``_plan.json`` beside the plan.

        Raises:
            ConfigError: the folder has another plan, or files but no plan.
            DataError: its plan is damaged.
            DiskError: it cannot be written.
        """
        if not (path / PLAN).exists() and (others := list_visible(path)):
            what = f"{path} has files, such as {others[0]}, and no plan of parts"
            raise ConfigError(what, "give a new folder")
        make_folder(path)
        ensure_folder(path / RECORDS)
        folder = cls(path, plan)
        folder._claims = claims = Claims(path / CLAIMS)
        try:
            while not claims.take(0):  # of the plan; number + 1 is the claim of a part
                time.sleep(POLL)
            if not (path / PLAN).exists():
                write_checksummed(path / PLAN, {"format_version": FORMAT_VERSION, "plan": asdict(plan), "about": about})
            if lines := _read_plan(path).compare(plan):
                what = f"{path} has parts of another plan"
                raise ConfigError(what, "give the same inputs and options, or a new folder", value="\n".join(lines))
            claims.release(0)
        except BaseException:
            folder.close()
            raise
        return folder

    def close(self) -> None:
        """Ends all claims."""
        if self._claims is not None:
            self._claims.close()
            self._claims = None

    def claim(self, number: int) -> bool:
        """Takes a part that is not done and that no process computes; False if there is nothing to do now."""
        assert self._claims is not None, "only an open folder is written"
        return self._claims.take_open(number + 1, lambda: self.is_done(number))

    def commit(self, number: int, facts: Mapping[str, Any]) -> None:
        """States that the files of a claimed part are complete, and ends the claim.

        Args:
            facts: ``images``, ``unreadable`` and ``rows`` as numbers, and others.
        """
        assert self._claims is not None, "only an open folder is written"
        files = {name: _digest_file(self.path / name) for name in self.plan.files(number)}
        record = {"part": number, "plan": self.digest, **facts, "files": files}
        write_checksummed(self._record(number), record)
        self._claims.release(number + 1)

    def read_record(self, number: int) -> dict[str, Any] | None:
        """What `commit` wrote on a part of this plan; None if it is missing or damaged."""
        record = read_checksummed(self._record(number)) or {}
        files = record.get("files")
        is_own = (
            record.get("plan") == self.digest
            and all(type(record.get(name)) is int for name in COUNTS)
            and isinstance(files, dict)
            and files.keys() == set(self.plan.files(number))  # these and no others: names become paths
            and all(isinstance(stated, dict) and {"bytes", "sha256"} <= stated.keys() for stated in files.values())
        )
        return record if is_own else None

    def is_done(self, number: int) -> bool:
        """Whether a part has its record, and its files have the sizes that stand in it."""
        record = self.read_record(number)
        return record is not None and all(
            _size(self.path / name) == stated["bytes"] for name, stated in record["files"].items()
        )

    def count_images(self, numbers: Iterable[int]) -> int:
        """Images of some parts."""
        return sum(len(self.plan.span(number)) for number in numbers)

    def list_missing(self, numbers: Iterable[int]) -> list[int]:
        """Those of the parts that are not done."""
        return [number for number in numbers if not self.is_done(number)]

    def finish(self) -> dict[str, Any] | None:
        """Writes ``_done.json`` and returns it, if all parts are done."""
        if not all(map(self.is_done, range(self.plan.count))):
            (self.path / DONE).unlink(missing_ok=True)  # of a part that was deleted since
            return None
        done = self.summarize()
        if read_checksummed(self.path / DONE) != done:
            write_checksummed(self.path / DONE, done)
        return done

    def summarize(self) -> dict[str, Any]:
        """The content of ``_done.json``: sums over all parts, and of each its numbers, sizes and hashes."""
        records = filter(None, map(self.read_record, range(self.plan.count)))
        parts = [{name: record[name] for name in ("part", *COUNTS, "files")} for record in records]
        totals = {name: sum(part[name] for part in parts) for name in COUNTS}
        return {"format_version": FORMAT_VERSION, "plan": self.digest, **totals, "parts": parts}

    def _record(self, number: int) -> Path:
        return self.path / RECORDS / f"{number:07d}.json"


def hash_names(names: Iterable[str]) -> str:
    """SHA-256 of the names of images, in their order."""
    hashed = hashlib.sha256()
    for name in names:
        hashed.update(f"{name}\n".encode())
    return hashed.hexdigest()


def _read_plan(path: Path) -> Plan:
    found = read_checksummed(path / PLAN)
    if found is None:
        state = "is damaged" if (path / PLAN).exists() else "does not exist"
        raise DataError(f"{path / PLAN} {state}", "give the folder that --parts named, or begin a new one")
    if found.get("format_version") != FORMAT_VERSION:
        what = f"{path / PLAN} has format version {found.get('format_version')}"
        raise DataError(what, f"this version of vitrail reads {FORMAT_VERSION}; begin a new folder")
    with document_errors(path / PLAN, "begin a new folder"):
        return Plan(**found["plan"])


def read_parts(path: Path) -> PartFolder:
    """A folder of parts, to be looked at. Raises `DataError` if there is none, or its plan is damaged."""
    return PartFolder(path, _read_plan(path))


def read_precision(path: Path) -> str | None:
    """Returns the precision in which the parts of a folder are computed; None if there is no plan yet.

    Raises `DataError` if the plan is damaged.
    """
    return _read_plan(path).settings.get("precision") if (path / PLAN).exists() else None


def list_visible(path: Path) -> list[str]:
    """The files that readers of the whole folder take for data."""
    return sorted(each.name for each in path.iterdir() if each.name[0] not in "._") if path.is_dir() else []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _digest_file(path: Path) -> dict[str, Any]:
    with disk_errors(path):
        return digest_file(path)


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
    counts = {name: record[name] for name in COUNTS}
    for name, stated in record["files"].items():
        if not (folder.path / name).is_file():
            return PartState(name=name, state="missing", reason="deleted since it was written")
        found = _digest_file(folder.path / name)
        if found["bytes"] != stated["bytes"]:
            reason = f"{found['bytes']:,} bytes, its record says {stated['bytes']:,}"
            return PartState(name=name, state="damaged", reason=reason, **counts)
        if found["sha256"] != stated["sha256"]:
            return PartState(name=name, state="damaged", reason="another SHA-256 than its record", **counts)
    return PartState(name=names[-1], state="done", **counts)


def _check_manifest(folder: PartFolder) -> str:
    """What is wrong with the manifest of a folder whose parts are all done."""
    found = read_checksummed(folder.path / DONE)
    if found is None:
        return f"{DONE} is missing or damaged; the same command writes it"
    return "" if found == folder.summarize() else f"{DONE} is not that of these parts"
