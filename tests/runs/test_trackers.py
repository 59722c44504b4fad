"""Experiment trackers get what ``metrics.jsonl`` gets, change nothing, and end no training that has begun."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import vitrail
from tests.each_row import each_row
from tests.training.stopping import stopped_after
from vitrail.config.compose import compose_run
from vitrail.errors import ConfigError, DiskError
from vitrail.runs import trackers
from vitrail.runs.folder import RunFolder
from vitrail.runs.trackers import LIBRARIES, Tracker, Trackers
from vitrail.training import loop

IMAGES = np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8), np.arange(200) % 10
SET = ("model.changes.depth=1", "save.log_every=1", "save.evaluations=3", "compute.tune=false")
HOW: dict[str, Any] = {"batch": 16, "steps": 6, "quiet": True}


def train(out: Path, *settings: str) -> vitrail.Result:
    return vitrail.train(IMAGES, out=out, set=[*SET, *settings], **HOW)


def crash_after(steps: int, patch: pytest.MonkeyPatch) -> None:
    """A training raises `RuntimeError` after ``steps`` steps, in which it saves no checkpoint."""
    take_step = loop.take_step

    def crashing(training, batch):
        if training.progress.step == steps:
            raise RuntimeError("crash")
        return take_step(training, batch)

    patch.setattr(loop, "take_step", crashing)


def read_events(folder: Path) -> set[tuple[str, int, float]]:
    """The scalars that a viewer shows: without those that a later start of the session purges."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    seen: set[tuple[str, int, float]] = set()
    for file in sorted(folder.iterdir(), key=lambda path: path.suffix):
        content, place = file.read_bytes(), 0
        while place < len(content):  # a record: length, its checksum, the event, its checksum
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += 16 + length
            if event.session_log.status == SessionLog.START:
                seen = {point for point in seen if point[1] < event.step}
            values = [value for value in event.summary.value if value.HasField("simple_value")]
            seen |= {(value.tag, event.step, value.simple_value) for value in values}
    return seen


def list_points(folder: Path) -> set[tuple[str, int, float]]:
    """The numbers of ``metrics.jsonl`` in single precision."""
    lines = RunFolder(folder).metrics()
    return {(name, line["step"], float(np.float32(line[name]))) for line in lines for name in line if name != "step"}


def test_tensorboard_shows_a_crashed_and_resumed_run_as_its_metrics(tmp_path):
    pytest.importorskip("tensorboardX")
    plain, tracked = tmp_path / "plain", tmp_path / "tracked"
    ours = train(plain)
    with stopped_after(2):
        train(tracked, "track.to=[tensorboard]")
    with pytest.MonkeyPatch.context() as patch:
        crash_after(4, patch)
        with pytest.raises(RuntimeError, match="crash"):
            train(tracked, "track.to=[tensorboard]")
    assert max(step for _, step, _ in read_events(tracked / "tensorboard")) == 4  # beyond the checkpoint
    theirs = train(tracked, "track.to=[tensorboard]")
    assert (tracked / "metrics.jsonl").read_bytes() == (plain / "metrics.jsonl").read_bytes()
    weights = (ours.load().state_dict(), theirs.load().state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    final = {(f"final/{name}", 6, float(np.float32(value))) for name, value in theirs.figures.items()}
    assert read_events(tracked / "tensorboard") == list_points(tracked) | final
    assert (tracked / "log.txt").read_text().count(f"tracker  tensorboard: {tracked / 'tensorboard'}") == 3


class Recorder:
    """Stands for a library: keeps what it gets, draws random numbers everywhere, and raises in ``fails``."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, []

    def take(self, call: str, *values: Any) -> None:
        random.random(), np.random.rand(), torch.rand(1)
        self.calls.append((call, *values))
        if call == self.fails:
            raise OSError("no\nnetwork")

    def start(self, run: Any, folder: Path, name: str, known: str | None, step: int) -> Tracker:
        self.take("start", name, known, step)
        return Tracker("an-id", "http://there", lambda *v: self.take("write", *v), lambda *v: self.take("finish", *v))


@pytest.fixture
def record(monkeypatch):
    """Puts a `Recorder` in the place of a library, which then needs nothing to be installed."""

    def put(library: str, fails: str = "") -> Recorder:
        recorder = Recorder(fails)
        monkeypatch.setitem(LIBRARIES, library, (recorder.start, "sys", "", "do this"))
        return recorder

    return put


def compose(*settings: str) -> Any:
    return compose_run(flags={"data": {"source": "digits"}}, settings=settings)[0]


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_a_library_that_fails_is_named_once_and_the_others_and_random_numbers_go_on(tmp_path, record):
    broken, works, log = record("wandb", fails="write"), record("mlflow"), []
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    folder = tmp_path / "run" / "folds" / "1"
    folder.mkdir(parents=True)
    tracking = Trackers(log.append)
    tracking.start(compose("track.to=[wandb, mlflow]"), folder, 3)
    for step in (3, 4):
        tracking.write({"step": step, "loss": 0.5, "kind": "text"})
    tracking.finish("finished", {"top1": 0.75})
    after = draw()
    random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])
    assert after == draw()
    assert [call[0] for call in broken.calls] == ["start", "write"]
    assert works.calls == [
        ("start", "run/folds/1", None, 3),
        *(("write", {"loss": 0.5}, step) for step in (3, 4)),
        *(("write", {"final/top1": 0.75}, 4), ("finish", "finished", 4)),
    ]
    assert log == [
        *(f"tracker  {library}: http://there" for library in ("wandb", "mlflow")),
        "warning  wandb is switched off: OSError: no network; do this, then resume",
    ]


def test_a_training_reports_its_state_and_continues_its_run(tmp_path, record):
    works = record("wandb")
    with stopped_after(2):
        train(tmp_path / "run", "track.to=[wandb]")
    broken = record("mlflow", fails="start")
    with pytest.raises(ConfigError, match=r"mlflow cannot track this run: no\n.*\n  hint: do this"):
        train(tmp_path / "run", "track.to=[wandb, mlflow]")
    train(tmp_path / "run", "track.to=[wandb]")
    starts = [call for call in works.calls if call[0] == "start"]
    assert starts == [("start", "run", None, 0), *[("start", "run", "an-id", 3)] * 2]
    assert [call[1] for call in works.calls if call[0] == "finish"] == ["preempted", "failed", "finished"]
    assert broken.calls == [("start", "run", None, 3)]
    (tmp_path / "run" / trackers.STORED).write_text("{}")
    log: list[str] = []
    Trackers(log.append).start(compose("track.to=[wandb]"), tmp_path / "run", 0)
    assert log[0] == "warning  trackers.json is damaged: the trackers start new runs"
    assert works.calls[-1] == ("start", "run", None, 0)


def test_a_longer_training_that_cannot_start_is_no_finished_one(tmp_path, record, monkeypatch):
    train(tmp_path / "run")
    works = record("wandb")
    record("mlflow", fails="start")

    def extend(libraries: str) -> None:
        vitrail.train(IMAGES, out=tmp_path / "run", set=[*SET, f"track.to=[{libraries}]"], **{**HOW, "steps": 8})

    with pytest.raises(ConfigError, match="mlflow cannot track this run"):
        extend("wandb, mlflow")

    def fail(*_: Any, **__: Any) -> None:
        raise DiskError("the disk is full")

    monkeypatch.setattr(RunFolder, "write_status", fail)
    with pytest.raises(DiskError):
        extend("wandb")
    assert [call[:2] for call in works.calls if call[0] != "start"] == [("finish", "failed")] * 2


def test_figures_of_a_training_without_a_further_step_are_those_of_its_last(tmp_path, record):
    works, tracking = record("wandb"), Trackers(print)
    tracking.start(compose("track.to=[wandb]"), tmp_path, 101)
    tracking.finish("finished", {"top1": 0.5})
    assert works.calls[1:] == [("write", {"final/top1": 0.5}, 100), ("finish", "finished", 100)]


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_run_folder_is_released_where_an_upload_is_interrupted(tmp_path, monkeypatch):
    tracker = Tracker("an-id", "http://there", print, interrupt)
    monkeypatch.setitem(LIBRARIES, "wandb", (lambda *_: tracker, "sys", "", ""))
    folder = RunFolder(tmp_path)
    folder.open()
    folder.start_trackers(compose("track.to=[wandb]"), step=0, log=print)
    folder.start_metrics(0)
    with pytest.raises(KeyboardInterrupt):
        folder.close()
    folder.open()  # not in use
    folder.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_run_folder_is_released_where_the_disk_is_full(tmp_path):
    folder = RunFolder(tmp_path)
    folder.open()
    folder._metrics = open("/dev/full", "w")
    with pytest.raises(DiskError):
        folder.write_metrics({"step": 1})
    with pytest.raises(DiskError):
        folder.close()
    folder.open()  # not in use
    folder.close()


@each_row(
    "setting, message",
    [
        (
            "save.tensorboard=true",
            "unknown setting 'save.tensorboard'\n  hint: .* 'track.to' .*: track.to=.tensorboard.",
        ),
        ("track.to=[wand]", "track.to is 'wand'\n  hint: did you mean 'wandb'"),
        ("track.to=wandb", "track.to is 'wandb'\n  hint: give a list: .wandb."),
    ],
)
def test_a_tracker_that_is_named_otherwise_is_answered_with_its_name(setting, message):
    with pytest.raises(ConfigError, match=message):
        compose(setting)


def test_a_missing_library_is_named_before_anything_is_read_or_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="needs wandb, which is not installed\n  hint: pip install wandb"):
        vitrail.train(tmp_path / "nothing", model="vit-ti16", out=tmp_path / "run", set=["track.to=[wandb]"])
    assert not (tmp_path / "run").exists()


@each_row("before, after", [("false", ()), ("true", ("tensorboard",))])
def test_the_settings_of_a_run_of_an_earlier_version_are_read(before, after, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config(compose())
    tree = yaml.safe_load(folder.config.read_text())
    del tree["track"]
    tree["save"]["tensorboard"] = before == "true"
    folder.config.write_text(yaml.safe_dump(tree))
    assert folder.read_config().track.to == after
    assert compose_run(resume=tmp_path)[0].track.to == after
    assert compose_run(config=folder.config)[0].track.to == after
