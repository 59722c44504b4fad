"""The run directory: its files, its lock, and what survives a crash.

``metrics.jsonl`` holds only what the run's settings determine, so that a resumed run writes the same bytes as one that was
never stopped; what depends on the clock goes to ``timing.jsonl``. Files that grow have a CRC-32 in each line, and their sizes
at the last checkpoint stand in ``records.json``: a file that was cut at the end of a line is damaged too.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, TextIO

import yaml

from vitrail.checksums import add_checksum_to_line, add_checksum_to_text, parse_line
from vitrail.config.parse import build, plain, read_stored
from vitrail.config.schema import Run
from vitrail.data.sources.bad_images import count_damaged_rows
from vitrail.errors import ConfigError, DiskError, InUseError, VitrailError
from vitrail.files import disk_errors, is_gone, read_checksummed, replace_file, settle_folder, write_checksummed
from vitrail.hub import shorten
from vitrail.runs.trackers import Trackers
from vitrail.runtime import fault_injection
from vitrail.runtime.progress import LogFunction

RECORDS = "records.json"
GROWING = ("metrics.jsonl", "timing.jsonl", "bad_images.csv")
State = Literal["running", "finished", "preempted", "interrupted", "diverged", "failed"]


try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]


class RunFolder:
    """One run's folder. Opening it takes the lock; a second process is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.report = path / "report.html"
        self.predictions = path / "predictions.csv"
        self.folds, self.out_of_fold = path / "folds.json", path / "out_of_fold.csv"  # of `vitrail train --folds`
        self.bad_images: Path | None = path / "bad_images.csv"
        self._created = False
        self._lock: TextIO | None = None
        self._metrics: TextIO | None = None
        self._trackers: Trackers | None = None
        self._lost: dict[str, str] | None = None  # by file, when the folder was opened

    def open(self) -> None:
        """Makes the folder and takes its lock. Raises `DiskError` or, if another process trains there, `InUseError`."""
        with disk_errors(self.path):
            self._created = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            self._lock = open(self.path / ".lock", "a+")
        try:
            _take_lock(self._lock)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise InUseError(f"{self.path} is in use by {holder}", "wait for it, or choose another --out") from None
        for folder in (self.path, self.path / "plots"):
            settle_folder(folder)
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._lock.flush()
        self._lost = self._find_lost()  # before it is repaired or written on

    def close(self) -> None:
        lock, metrics, trackers = self._lock, self._metrics, self._trackers
        self._lock = self._metrics = self._trackers = None
        # the files are closed also where an upload is interrupted
        with lock or nullcontext(), disk_errors(self.path), metrics or nullcontext():
            if metrics is not None:
                with suppress(DiskError):  # the error that ended the run is reported, not this one
                    self._write_sizes()
            if trackers is not None:
                status = self.status() if metrics is not None else {}  # without metrics, of an earlier training
                trackers.finish(status.get("state", "failed"), status.get("figures", {}))

    def remove_if_unused(self) -> None:
        """Removes a folder that this object created, if it holds the log of a refused request and nothing else."""
        unused = {".lock", "log.txt", "status.json", "checkpoints"}
        used = {path.name for path in self.path.iterdir() if not fnmatch(path.name, "rank-*.log")} - unused
        if self._created and not used and not any(self.checkpoints.iterdir()):
            shutil.rmtree(self.path)

    def write_config(self, run: Run) -> None:
        replace_file(self.config, add_checksum_to_text(yaml.safe_dump(plain(run), sort_keys=False, allow_unicode=True)))

    def read_config(self) -> Run:
        """The settings of the run. Raises `ConfigError` for a file that is damaged, cut off or empty."""
        settings = read_stored(self.config)
        if not settings:  # without any, those of the recipe would be taken
            raise ConfigError(f"{self.config} is empty or was cut off", "put the original file back")
        return build(Run, settings)

    def write_status(self, state: State, **facts: Any) -> None:
        now = datetime.now().isoformat(timespec="seconds")
        write_checksummed(self.path / "status.json", {"state": state, "time": now, "pid": os.getpid(), **facts})

    def status(self) -> dict[str, Any]:
        """The content of ``status.json``, empty if it is missing or damaged."""
        return read_checksummed(self.path / "status.json") or {}

    def log(self, line: str) -> None:
        """Appends one dated line to ``log.txt``."""
        self._append("log.txt", line)

    def _append(self, name: str, line: str) -> None:
        with disk_errors(self.path), open(self.path / name, "a", encoding="utf-8") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')}  {line}\n")

    def start_trackers(self, run: Run, *, step: int, log: LogFunction) -> None:
        """From here on `write_metrics` also writes to ``run.track.to``. Raises `ConfigError` for one that cannot be used."""
        self._trackers = Trackers(log)
        self._trackers.start(run, self.path, step)

    def start_metrics(self, size: int) -> None:
        """Opens ``metrics.jsonl`` cut back to its first ``size`` bytes: what the checkpoint had seen."""
        with disk_errors(self.path):
            self._metrics = open(self.path / "metrics.jsonl", "a", encoding="utf-8")
            there = os.fstat(self._metrics.fileno()).st_size
            self._metrics.truncate(min(size, there))
            content = (self.path / "metrics.jsonl").read_bytes()
            if content and not content.endswith(b"\n"):  # it was damaged
                self._metrics.write("\n")
        self._lost = {**(self._lost or {}), "metrics.jsonl": _describe_lost("metrics.jsonl", size - there)}
        self._write_sizes()

    def write_metrics(self, record: Mapping[str, Any]) -> int:
        """Appends a record to ``metrics.jsonl``; returns the file's size in bytes."""
        assert self._metrics is not None, "start_metrics comes first"
        with disk_errors(self.path):
            self._metrics.write(add_checksum_to_line(record))
            self._metrics.flush()
        if self._trackers is not None:
            self._trackers.write(record)
        fault_injection.hit("run.after_metrics")
        return os.fstat(self._metrics.fileno()).st_size

    def sync_metrics(self) -> None:
        """Makes what `write_metrics` wrote survive a loss of power; a checkpoint that counts on it comes after."""
        if self._metrics is not None:
            with disk_errors(self.path):
                os.fsync(self._metrics.fileno())
            self._write_sizes()

    def _write_sizes(self) -> None:
        write_checksummed(self.path / RECORDS, {"bytes": {name: _size(self.path / name) for name in GROWING}})

    def write_timing(self, record: Mapping[str, Any]) -> None:
        with disk_errors(self.path), open(self.path / "timing.jsonl", "a", encoding="utf-8") as file:
            file.write(add_checksum_to_line(record))

    def metrics(self) -> list[dict[str, Any]]:
        return _read_lines(self.path / "metrics.jsonl")[0]

    def timing(self) -> list[dict[str, Any]]:
        return _read_lines(self.path / "timing.jsonl")[0]

    def find_damage(self) -> list[str]:
        """Describes what is damaged in the records of the run and left out of what is read, or lost."""
        damaged = {name: _read_lines(self.path / name)[1] for name in ("metrics.jsonl", "timing.jsonl")}
        lines = [f"{name} is damaged and lacks {count} of its lines" for name, count in damaged.items() if count]
        lost = self._find_lost() if self._lost is None else self._lost
        return [*lines, *filter(None, lost.values())]

    def _find_lost(self) -> dict[str, str]:
        """Describes the damage by file: damaged rows of ``bad_images.csv``, and files shorter than `RECORDS` says."""
        rows = count_damaged_rows(self.path / "bad_images.csv")
        lost = {"rows": f"bad_images.csv is damaged and lacks {rows} of its rows" if rows else ""}
        if not (self.path / RECORDS).exists():
            return lost
        stated = (read_checksummed(self.path / RECORDS) or {}).get("bytes")
        if stated is None:
            return {**lost, RECORDS: f"{RECORDS} is damaged"}
        return lost | {name: _describe_lost(name, size - _size(self.path / name)) for name, size in stated.items()}


def _describe_lost(name: str, lost: int) -> str:
    return f"{name} lacks its last {lost:,} bytes" if lost > 0 else ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _take_lock(file: TextIO) -> None:
    """Raises `BlockingIOError` where another process has it; where the file system knows no locks, there is none."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def is_abandoned(folder: Path) -> bool:
    """Whether the process that opened a run folder is gone; False if it ran on another machine, or where that is unknown.

    The lock itself is not tried, because a training that starts at that moment would be refused.
    """
    try:
        _, process, _, host = (folder / ".lock").read_text().split()
        return host == socket.gethostname() and int(process) != os.getpid() and is_gone(int(process))
    except (OSError, ValueError):
        return False


def find_unfinished(run: Run) -> Path | None:
    """The newest run under ``runs`` on the data of ``run`` with its recipe that was stopped or killed; None without one."""
    newest = sorted(Path("runs").glob("*/status.json"), key=lambda status: status.stat().st_mtime_ns, reverse=True)
    for folder in (RunFolder(status.parent) for status in newest):
        state = folder.status().get("state")
        if state in ("preempted", "interrupted") or (state == "running" and is_abandoned(folder.path)):
            with suppress(VitrailError):  # settings that are damaged, or of another version
                stored = folder.read_config()
                if (stored.data.source, stored.recipe) == (run.data.source, run.recipe):
                    return folder.path
    return None


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a JSON-lines file, and the number of lines that are left out because they are damaged or cut off."""
    records, damaged = [], 0
    with disk_errors(path):
        content = path.read_bytes() if path.exists() else b""
    for line in content.split(b"\n"):
        try:
            if line:
                records.append(parse_line(line))
        except ValueError:
            damaged += 1
    return records, damaged


def default_folder(run: Run) -> Path:
    """Returns ``runs/<date>-<time>-<data>-<model>``, made unique."""
    data, model = shorten(run.data.source), run.model.name or Path(run.model.init or run.recipe).stem
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{data}-{model}"
    later = (stem.with_name(f"{stem.name}-{count}") for count in itertools.count(2))
    return next(path for path in itertools.chain([stem], later) if not path.exists())


def why_stopped(error: BaseException) -> State:
    """The state that an error leaves a run in."""
    names: dict[int, State] = {75: "preempted", 130: "interrupted", 5: "diverged"}
    return names.get(error.code, "failed") if isinstance(error, VitrailError) else "failed"


class FollowerFolder(RunFolder):
    """The folder of a rank other than the first: it is read, and of all that is written there is only the rank's own log."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path)
        self.rank = rank
        self.bad_images = None

    def open(self) -> None:
        """Makes sure that the first rank's folder is the one seen here. Raises `ConfigError`."""
        if not self.checkpoints.is_dir():
            what = f"rank {self.rank} does not see the run directory {self.path.resolve()}"
            raise ConfigError(what, "all machines of a training need the same file system there: choose another --out")

    def close(self) -> None: ...

    def remove_if_unused(self) -> None: ...

    def write_config(self, run: Run) -> None: ...

    def write_status(self, state: State, **facts: Any) -> None: ...

    def log(self, line: str) -> None:
        self._append(f"rank-{self.rank}.log", line)

    def start_metrics(self, size: int) -> None: ...

    def write_metrics(self, record: Mapping[str, Any]) -> int:
        return 0

    def write_timing(self, record: Mapping[str, Any]) -> None: ...


def speed(folder: RunFolder, *, waiting: bool = True) -> float | None:
    """Images per second over the whole run, or of its time without ``waiting`` for data, where any were counted."""
    laps = [lap for lap in folder.timing() if "images_per_second" in lap]
    busy = sum(lap["seconds"] * (1 if waiting else 1 - lap["data_wait"]) for lap in laps)
    return sum(lap["images_per_second"] * lap["seconds"] for lap in laps) / busy if busy else None


def busy_seconds(folder: RunFolder) -> float:
    """Seconds of all steps and evaluations that were timed."""
    return sum(lap.get("seconds", 0.0) + lap.get("evaluation_seconds", 0.0) for lap in folder.timing())


def join_records(folder: RunFolder) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` with what ``timing.jsonl`` says of the same step."""
    clock = {lap["step"]: lap for lap in folder.timing() if "images_per_second" in lap}
    return [{**clock.get(record["step"], {}), **record} if "loss" in record else record for record in folder.metrics()]
