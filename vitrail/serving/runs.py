"""Routes about the runs of a folder. Each request reads from disk, so that runs in progress are shown live.

A request names a run by its entry in the listing, never by a path. Replies contain names and numbers, but no paths. The content
of files is not trusted: links are not followed; broken, incomplete or too large files are ignored.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePath
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field

from vitrail.checksums import is_text_intact, parse_line
from vitrail.files import parse_checksummed, replace_nan
from vitrail.reports.metric_names import SELECTED_BY, curve_of, metric_of
from vitrail.runs.folder import is_abandoned
from vitrail.serving.refusals import Refused
from vitrail.serving.schemas import Schema, errors, replies
from vitrail.untrusted.json_documents import check_unicode
from vitrail.untrusted.yaml_documents import parse_yaml

PROGRESS = "progress.json"  # of a study
MARKS = ("status.json", "config.yaml", ".lock", PROGRESS)  # a folder with one of these files is a run, or a study
MAX_BYTES = 1 << 20  # read at a time; of a status, configuration or progress, in all
MAX_VALUES, MAX_KEPT = 1 << 16, 1 << 20  # of the rows of a file, and of all files, that are kept; see `size_of_rows`
GOING_ON = ("starting", "running")
EVERY, QUIET = 1.0, 15.0  # seconds between two polls of a run, and between two keep-alive comments
SILENCE = 60.0  # seconds after which a study that writes no progress has stopped; it writes every ten
WATCHERS = 64  # maximum number of event streams, for all runs together
RUN_ERRORS = ("unauthorised", "forbidden", "not_found", "invalid")
POSITION = ("step", "epoch", "images")  # columns that locate a row and are not curves

Row = dict[str, float | None]
At = Annotated[int, Query(ge=0, lt=1 << 50, description="byte offset in the metrics: 'at' of the curves or last id")]


class Stamp(NamedTuple):
    """Identity and modification time of a file: the key of the caches."""

    path: str
    inode: int
    size: int
    changed: int


def find_runs(folder: Path) -> dict[str, Path]:
    """Returns the runs directly inside ``folder`` by name, without links and hidden folders."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return {}
    folders = {entry.name: Path(entry.path) for entry in entries if _is_folder(entry)}
    return {name: path for name, path in folders.items() if any(stamp(path / mark) for mark in MARKS)}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()  # a name that is not valid Unicode cannot be requested
        return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
    except (OSError, UnicodeEncodeError):
        return False


def stamp(path: Path) -> Stamp | None:
    """Returns the stamp of a regular file, or None if the path is missing or anything else."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return Stamp(str(path), status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def read(path: Path, start: int = 0) -> bytes:
    """Reads a regular file from byte ``start``, at most `MAX_BYTES`; empty for links, pipes and unreadable files."""
    # without O_NONBLOCK, opening a pipe would block until another process opens it for writing
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            file.seek(start)
            return file.read(MAX_BYTES)
    except OSError:
        return b""


@lru_cache(maxsize=512)
def parse_document(file: Stamp) -> Mapping[str, Any]:
    """Returns the content of a checksummed JSON file or of a config.yaml, empty if it is damaged."""
    content = read(Path(file.path))
    try:
        if file.path.endswith(".json"):
            return parse_checksummed(content)
        settings = parse_yaml(content) if is_text_intact(content.decode()) else {}
        check_unicode(settings)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


@dataclass
class Rows:
    """The rows of a file up to byte ``at``, and their `size_of_rows`. Of a file that has grown only the new bytes are read."""

    file: Stamp
    rows: list[Row] = field(default_factory=list)
    size: int = 0
    at: int = 0

    def read_on(self, file: Stamp) -> None:
        """Reads what is new. Of rows larger than `MAX_VALUES` every second one is left out until the rest fits."""
        rewritten = file.size < self.at or (file.size == self.at and file.changed != self.file.changed)
        if rewritten or file.inode != self.file.inode:
            self.rows, self.at = [], 0
        self.file = file
        while self.at < file.size:
            content = read(Path(file.path), self.at)
            self.rows, self.at = [*self.rows, *parse_rows(content)], self.at + complete_bytes(content)
            while (size := size_of_rows(self.rows)) > MAX_VALUES and len(self.rows) > 2:
                self.rows = halve_rows(self.rows)
            self.size = size
            if len(content) < MAX_BYTES:
                break


READING = threading.Lock()
KEPT: dict[str, Rows] = {}  # by path, the one that was requested last at the end


def read_rows(run: Path) -> tuple[list[Row], int]:
    """Returns the rows of a run, which must not be modified, and the byte offset of the next row.

    If the rows of all files are larger than `MAX_KEPT`, those that were requested longest ago are forgotten.
    """
    file = stamp(run / "metrics.jsonl")
    if file is None:
        return [], 0
    with READING:
        known = KEPT[file.path] = KEPT.pop(file.path, None) or Rows(file)
        known.read_on(file)
        while len(KEPT) > 1 and sum(each.size for each in KEPT.values()) > MAX_KEPT:
            KEPT.pop(next(iter(KEPT)))
        return known.rows, known.at


def size_of_rows(rows: list[Row]) -> int:
    """Returns the memory of rows in values; a row itself takes as much as three of them."""
    return sum(len(row) + 3 for row in rows)


def halve_rows(rows: list[Row]) -> list[Row]:
    """Drops every second row of training steps or of evaluations, whichever are more; never the last of a kind."""
    training, evaluations = [row for row in rows if "lr" in row], [row for row in rows if "lr" not in row]
    dropped = {id(row) for row in max(training, evaluations, key=len)[:-1:2]}
    return [row for row in rows if id(row) not in dropped]


def complete_bytes(content: bytes) -> int:
    """Returns the number of bytes up to the end of the last complete line. A line over `MAX_BYTES` is damaged and complete."""
    return content.rfind(b"\n") + 1 or len(content) // MAX_BYTES * MAX_BYTES


def parse_rows(content: bytes) -> Iterator[Row]:
    """Yields the rows of complete lines. Damaged lines, and values that are not numbers, are skipped."""
    for line in content[: complete_bytes(content)].splitlines():
        try:
            record = parse_line(line)
            if type(record.get("step")) is int:
                numbers = {name: value for name, value in record.items() if type(value) in (int, float)}
                yield {sys.intern(str(name)): replace_nan(value) for name, value in numbers.items()}
        except ValueError:
            continue


class RunState(Schema):
    """The progress of a run."""

    name: str
    state: str = Field(description="starting, running, stopped (its process was killed), damaged, or how the run ended")
    step: int
    steps: int | None = Field(description="total number of steps; of a study, of trials")
    seconds_left: float | None = Field(None, description="estimated time left, of a study")


class Summary(RunState):
    epoch: float | None = None
    updated: float = Field(description="seconds since 1970")
    command: str = Field(examples=["train"], description="train, pretrain or study")
    model: str | None
    data: str | None
    best: dict[str, str | float] | None = Field(examples=[{"name": "val_top1", "value": 0.75}])
    last: dict[str, float | None] = Field(description="the latest value of each column")


class Curves(RunState):
    columns: dict[str, dict[str, str]] = Field(examples=[{"val_top1": {"chart": "Accuracy", "label": "validation"}}])
    rows: list[dict[str, float | None]] = Field(description="sorted by step; of a long run every second one")
    at: int = Field(description="byte offset from which the events continue")


def read_state(run: Path) -> dict[str, Any]:
    """Returns ``state``, ``step`` and ``steps`` of a run, and ``seconds_left`` of a study, whose steps are its trials. The state
    is ``stopped`` if the process was killed, and ``damaged`` if the file that has it cannot be read.
    """
    if progress := stamp(run / PROGRESS):
        return _read_study(progress)
    file, (rows, _) = stamp(run / "status.json"), read_rows(run)
    status = parse_document(file) if file else {"state": "starting"}
    state, steps = status.get("state"), status.get("steps")
    state = state if isinstance(state, str) else "damaged"
    return {
        "state": "stopped" if state in GOING_ON and is_abandoned(run) else state,
        "step": rows[-1]["step"] if rows else 0,
        "steps": steps if type(steps) is int else None,
    }


def _read_study(file: Stamp) -> dict[str, Any]:
    progress = parse_document(file)
    state, trials, done, left = (progress.get(name) for name in ("state", "trials", "done", "seconds_left"))
    state = state if isinstance(state, str) else "damaged"
    # the process may run on any machine that sees the folder: only that nothing is written tells that it is gone
    silent = state in GOING_ON and time.time() - file.changed / 1e9 > SILENCE
    return {
        "state": "stopped" if silent else state,
        "step": done if type(done) is int else 0,
        "steps": trials if type(trials) is int else None,
        "seconds_left": replace_nan(left) if isinstance(left, float) and not silent else None,
    }


def summarise(name: str, run: Path) -> dict[str, Any]:
    """Returns the summary of a run, one row of the table."""
    rows, _ = read_rows(run)
    last: Row = {}
    for row in rows[-100:]:
        last |= row
    stamps = {file_name: stamp(run / file_name) for file_name in (*MARKS, "metrics.jsonl")}
    settings = parse_document(file) if (file := stamps["config.yaml"]) else {}
    objective = _text(settings, "objective", "name")
    return {
        "name": name,
        **read_state(run),
        **({"epoch": last["epoch"]} if "epoch" in last else {}),
        "updated": max((mark.changed / 1e9 for mark in stamps.values() if mark), default=0.0),
        "command": "study" if stamps[PROGRESS] else "train" if objective in (None, "supervised") else "pretrain",
        "model": _text(settings, "model", "name") or _last_part(_text(settings, "model", "init")),
        "data": _last_part(_text(settings, "data", "source")),
        "best": find_best(rows),
        "last": {column: value for column, value in last.items() if column not in POSITION},
    }


def _text(settings: Mapping[str, Any], group: str, key: str) -> str | None:
    inside = settings.get(group)
    value = inside.get(key) if isinstance(inside, dict) else None
    return value if isinstance(value, str) else None


def _last_part(path: str | None) -> str | None:
    """Returns the last part of a path, without the folders of this machine."""
    return PurePath(path.replace("\\", "/")).name or None if path else None


def find_best(rows: list[Row]) -> dict[str, Any] | None:
    """Returns the best value of the selection metric so far, or None without evaluations."""
    for name in SELECTED_BY:
        values = [value for row in rows if (value := row.get(name)) is not None]
        if values:
            return {"name": name, "value": max(values) if metric_of(name).higher_is_better else min(values)}
    return None


def runs_routes(folder: Path, draining: Callable[[], bool] = lambda: False) -> APIRouter:
    """Returns the routes under ``/v1/runs`` for the runs in ``folder``. All event streams end once the server is ``draining``."""
    router, watchers = APIRouter(tags=["runs"]), asyncio.Semaphore(WATCHERS)

    def find_run(name: str) -> Path:
        runs = find_runs(folder)
        if name not in runs:
            raise Refused("not_found", "there is no such run", "GET /v1/runs lists the runs")
        return runs[name]

    @router.get(
        "/v1/runs", summary="List the runs", responses=replies(dict[str, list[Summary]], "unauthorised", "forbidden")
    )
    def runs() -> Response:
        return JSONResponse({"runs": [summarise(name, run) for name, run in find_runs(folder).items()]})

    @router.get("/v1/runs/{name}/metrics", summary="Get the curves of a run", responses=replies(Curves, *RUN_ERRORS))
    def metrics(name: str, after: Annotated[int, Query(description="only rows after this step")] = -1) -> Response:
        """Returns the metrics of all steps after `after`."""
        run = find_run(name)
        rows, at = read_rows(run)
        later = [row for row in rows if (row["step"] or 0) > after]
        names = dict.fromkeys(chain.from_iterable(rows))
        curves = {column: curve_of(column) for column in names if column not in POSITION}
        columns = {column: {"chart": chart, "label": line} for column, (chart, line) in curves.items()}
        return JSONResponse({"name": name, **read_state(run), "columns": columns, "rows": later, "at": at})

    @router.get(
        "/v1/runs/{name}/events",
        summary="Follow a run",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}, **errors(*RUN_ERRORS, "queue_full")},
    )
    async def events(name: str, request: Request, at: At = 0) -> Response:
        """Streams server-sent events until the run ends: `row`, a row of the metrics, and `state`."""
        run = await asyncio.to_thread(find_run, name)
        if watchers.locked():
            raise Refused("queue_full", f"{WATCHERS} event streams are open", "try again later", retry_after=10)
        last_id = request.headers.get("last-event-id", "")
        start = int(last_id) if last_id.isdecimal() and len(last_id) < 16 else at

        async def stream() -> AsyncIterator[str]:
            async with watchers:
                async for event in follow_run(run, start, draining):
                    yield event

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    return router


async def follow_run(run: Path, at: int, draining: Callable[[], bool]) -> AsyncIterator[str]:
    """Yields the events of a run from byte ``at`` of its metrics, until the run ends or the server drains.

    The id of a row is the byte offset after it. A resumed run truncates its file and writes the same rows again, so that
    offsets remain valid.
    """
    state, quiet = None, 0.0
    while not draining():
        # read the state before the rows: if it says that the run has ended, no rows can be missing
        now = await asyncio.to_thread(read_state, run)
        content = await asyncio.to_thread(read, run / "metrics.jsonl", at)
        whole = complete_bytes(content)
        for line in content[:whole].splitlines(keepends=True):
            at += len(line)
            for row in parse_rows(line):
                yield f"event: row\nid: {at}\ndata: {json.dumps(row)}\n\n"
        if len(content) == MAX_BYTES:  # there is more
            continue
        if (now["state"], now["steps"]) != state:
            state = now["state"], now["steps"]
            yield f"event: state\ndata: {json.dumps(now)}\n\n"
        if now["state"] not in GOING_ON:
            return
        quiet = 0.0 if whole else quiet + EVERY
        if quiet >= QUIET:
            quiet = 0.0
            yield ": keep-alive\n\n"
        await asyncio.sleep(EVERY)
