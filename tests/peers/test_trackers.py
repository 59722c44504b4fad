"""wandb, mlflow and trackio, without a network: what their own stores hold of a crashed and resumed run equals its metrics."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.runs.test_trackers import crash_after, train
from tests.training.stopping import stopped_after
from vitrail.config.compose import compose_run
from vitrail.config.parse import flatten, plain
from vitrail.errors import ConfigError
from vitrail.runs.folder import RunFolder
from vitrail.runs.trackers import STORED, start_mlflow

pytestmark = [pytest.mark.peers, pytest.mark.slow]
Points = set[tuple[str, int, float]]


class Seen(NamedTuple):
    """What a library holds of a run, by its own reader: metric, step and value; a setting; the state."""

    points: Points
    rate: Any
    state: tuple[str, ...]


def read_records(file: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file: LevelDB's log, in blocks of 32 KiB behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def read_items(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def read_wandb(folder: Path, identifier: str) -> Seen:
    import_module("wandb").teardown()  # its process has then written everything
    points, settings, summary, codes = set(), {}, {}, []
    for file in sorted((folder / "wandb").glob(f"offline-run-*/run-{identifier}.wandb")):
        for record in read_records(file):
            row = read_items(record.history.item)
            points |= {(name, row["step"], value) for name, value in row.items() if name[0] != "_" and name != "step"}
            settings |= read_items(record.run.config.update)
            summary |= read_items(record.summary.update)
            codes += [record.exit.exit_code] if record.WhichOneof("record_type") == "exit" else []
    return Seen(points, settings["optim"]["lr"], (summary["state"], str(codes[-1])))


def read_mlflow(folder: Path, identifier: str) -> Seen:
    from mlflow import MlflowClient

    client = MlflowClient()
    run = client.get_run(identifier)
    assert client.get_experiment(run.info.experiment_id).name == "vitrail"
    assert run.data.params == {
        key: str(value) for key, value in flatten(plain(RunFolder(folder).read_config())).items()
    }
    history = [each for name in run.data.metrics for each in client.get_metric_history(identifier, name)]
    points = {(each.key, each.step, each.value) for each in history}
    return Seen(points, float(run.data.params["optim.lr"]), (run.data.tags["state"], run.info.status))


def read_trackio(folder: Path, identifier: str) -> Seen:
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("vitrail", identifier)
    numbers = [
        (name, row["step"], value) for row in rows for name, value in row.items() if isinstance(value, float | int)
    ]
    points = {point for point in numbers if point[0] != "step"}
    states = [row["state"] for row in rows if "state" in row]
    return Seen(points, SQLiteStorage.get_run_config("vitrail", identifier)["optim"]["lr"], tuple(states[-1:]))


# by library: its reader, and the states of a run that was stopped, crashed, and is finished
READERS: dict[str, tuple[Callable[[Path, str], Seen], list[tuple[str, ...]]]] = {
    "wandb": (read_wandb, [("preempted", "1"), ("failed", "1"), ("finished", "0")]),
    "mlflow": (read_mlflow, [("preempted", "KILLED"), ("failed", "FAILED"), ("finished", "FINISHED")]),
    "trackio": (read_trackio, [("preempted",), ("failed",), ("finished",)]),
}


@pytest.fixture(autouse=True)
def stores(tmp_path, monkeypatch):
    """The libraries write here, and have neither keys nor a network."""
    names = {"WANDB_MODE": "offline", "WANDB_BASE_URL": "http://127.0.0.1:9", "NETRC": tmp_path / "netrc"}
    names |= {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlflow", "MLFLOW_ALLOW_FILE_STORE": "true"}
    names |= {"TRACKIO_DIR": tmp_path / "trackio", "HF_HUB_OFFLINE": "1", "HOME": tmp_path}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    for name in ("WANDB_DIR", "WANDB_API_KEY", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("library", READERS)
def test_a_library_holds_a_crashed_and_resumed_run_as_its_metrics(tmp_path, library):
    pytest.importorskip(library)
    read, states = READERS[library]
    plain_run, tracked, found = tmp_path / "plain", tmp_path / "tracked", []
    ours = train(plain_run)

    def look() -> Seen:
        found.append(read(tracked, json.loads((tracked / STORED).read_text())[library]))
        return found[-1]

    setting = f"track.to=[{library}]"
    with stopped_after(2):
        train(tracked, setting)
    look()
    with pytest.MonkeyPatch.context() as patch:
        crash_after(4, patch)
        with pytest.raises(RuntimeError, match="crash"):
            train(tracked, setting)
    look()
    theirs = train(tracked, setting)
    lines = RunFolder(tracked).metrics()
    points = {(name, line["step"], line[name]) for line in lines for name in line if name != "step"}
    assert look().points == points | {(f"final/{name}", 6, value) for name, value in theirs.figures.items()}
    assert {seen.rate for seen in found} == {RunFolder(tracked).read_config().optim.lr}
    assert [seen.state for seen in found] == states
    assert (tracked / "metrics.jsonl").read_bytes() == (plain_run / "metrics.jsonl").read_bytes()
    weights = (ours.load().state_dict(), theirs.load().state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_library_without_a_login_ends_the_command_before_the_first_step(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # of a process that has read the environment
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(
        ConfigError, match=r"wandb cannot track this run: No API key(.|\n)*hint: run `wandb login`, or set"
    ):
        train(tmp_path / "run", "track.to=[wandb]")
    assert not RunFolder(tmp_path / "run").metrics()
    wandb.teardown()


def test_mlflow_takes_names_of_any_form(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    weights = {"cat, tabby": 2.0, "dog//": 3.0}
    flags = {"data": {"source": "digits" * 2000}, "objective": {"class_weights": weights}}
    tracker = start_mlflow(compose_run(flags=flags)[0], tmp_path, "run", None, 0)
    tracker.write({"map@50": 0.5, "..a/./b/": 0.25}, 3)
    found = MlflowClient().get_run(tracker.id).data
    assert found.metrics == {"map_50": 0.5, "_.a_._b_": 0.25}
    assert found.params["objective.class_weights.cat_ tabby"] == "2.0"
    assert found.params["objective.class_weights.dog__"] == "3.0"
    assert found.params["data.source"] == ("digits" * 2000)[:6000]
