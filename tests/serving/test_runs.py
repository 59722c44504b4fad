"""What the server tells of run directories: what is in them and nothing of what lies beside them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.serving.written_runs import client_of, train
from vitrail.config.schema import ModelSettings, ObjectiveSettings
from vitrail.files import write_checksummed
from vitrail.reports.metric_names import curve_of
from vitrail.runs.folder import RunFolder
from vitrail.serving import runs as serving
from vitrail.serving.runs import find_runs, parse_rows


def test_settings_whose_aliases_expand_without_limit_are_not_read(tmp_path):
    train(tmp_path / "good")
    # each level merges the one before nine times: 9 ** 12 keys from 500 bytes
    bomb = "a0: &a0 {x: 1}\n" + "".join(
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 13)
    )
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    (tmp_path / "bad" / "config.yaml").write_text(bomb)
    listed = {run["name"]: run for run in client_of(tmp_path).get("/v1/runs").json()["runs"]}
    assert listed.keys() == {"good", "bad"}


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder of runs beside something that is nobody's business."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "status.json").write_text('{"state": "SECRET"}')
    (tmp_path / "secret" / "metrics.jsonl").write_text('{"step": 1, "SECRET": 1}\n')
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_a_run_is_told_as_the_engine_wrote_it(place):
    train(place / "flowers")
    before = time.time() - 60
    (told,) = client_of(place).get("/v1/runs").json()["runs"]
    assert before < told.pop("updated") < time.time() + 60
    assert told == {
        "name": "flowers", "state": "finished", "step": 6, "steps": 6, "epoch": 2.0, "command": "train", "model": "vit-ti16",
        "data": None, "best": {"name": "val_top1", "value": 0.75},
        "last": {"loss": 2.5 / 6, "top1": 0.6, "lr": 1e-3, "val_top1": 0.75, "val_nll": 0.5},
    }  # fmt: skip


def test_pretraining_and_paths_are_told_without_the_paths(place):
    settings = {"model": ModelSettings(init="/home/someone/weights.npz"), "objective": ObjectiveSettings(name="mae")}
    train(place / "masked", **settings)
    config = place / "masked" / "config.yaml"
    config.write_text(config.read_text().replace("source: null", "source: /home/someone/photos"))
    reply = client_of(place).get("/v1/runs")
    assert (reply.json()["runs"][0]["command"], reply.json()["runs"][0]["model"]) == ("pretrain", "weights.npz")
    assert "someone" not in reply.text
    assert str(place.parent) not in reply.text


def test_a_column_has_the_heading_of_its_chart():
    assert curve_of("val_top1") == ("Accuracy", "validation")
    assert curve_of("train_top1") == ("Accuracy", "unaugmented training")
    assert curve_of("train_brier") == ("Unaugmented training Brier score", "Unaugmented training Brier score")
    assert curve_of("effective_rank") == ("Effective rank", "Effective rank")
    assert curve_of("target_entropy") == ("Target entropy", "Target entropy")
    assert curve_of("val_brier") == ("Validation Brier score", "Validation Brier score")
    assert curve_of("accuracy")[0] != curve_of("knn")[0]  # that of the objective is another one


def test_curves_come_with_what_they_are_and_from_where_one_asks(place):
    train(place / "flowers")
    client = client_of(place)
    told = client.get("/v1/runs/flowers/metrics").json()
    assert [row["step"] for row in told["rows"]] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert told["columns"]["val_top1"] == {"chart": "Accuracy", "label": "validation"}
    assert set(told["columns"]) == {"loss", "top1", "lr", "val_top1", "val_nll"}
    assert told["at"] == (place / "flowers" / "metrics.jsonl").stat().st_size
    later = client.get("/v1/runs/flowers/metrics", params={"after": 4}).json()
    assert later["rows"] == told["rows"][5:]
    assert client.get("/v1/runs/flowers/metrics", params={"after": "x"}).status_code == 422


def test_a_run_that_grows_is_read_anew(place):
    train(place / "flowers", state="running")
    client = client_of(place)
    assert client.get("/v1/runs/flowers/metrics").json()["step"] == 6
    with open(place / "flowers" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": 0.1}\n{"step": 8, "lo')
    told = client.get("/v1/runs/flowers/metrics").json()
    assert (told["step"], told["state"], told["rows"][-1]) == (7, "running", {"step": 7, "loss": 0.1})


NO_ROWS = [
    b"", b"{", b"null", b"3", b'"step"', b"[1]", b"{}", b'{"step": "1"}', b'{"step": true}', b'{"step": 1.5}', b"\xff\xfe",
    b"[" * 100_000, b'{"step": 1' + b"0" * 5_000 + b"}", b'{"step": 2, "loss": 1' + b"0" * 400 + b"}",
]  # fmt: skip


def test_a_line_that_is_no_row_is_passed_over():
    for line in NO_ROWS:
        assert list(parse_rows(line + b'\n{"step": 2}\n')) == [{"step": 2}], line[:80]


def test_values_that_are_no_numbers_are_left_out_and_those_that_json_cannot_say_are_null(place):
    train(place / "flowers")
    line = '{"step": 9, "loss": NaN, "lr": -Infinity, "name": "x", "more": {"a": 1}, "yes": true, "top1": 0.5}\n'
    (place / "flowers" / "metrics.jsonl").write_text(line)
    client = client_of(place)
    told = {
        path: client.get(path).text
        for path in ("/v1/runs", *(f"/v1/runs/flowers/{end}" for end in ("metrics", "events")))
    }
    assert json.loads(told["/v1/runs/flowers/metrics"])["rows"] == [{"step": 9, "loss": None, "lr": None, "top1": 0.5}]
    (run,) = json.loads(told["/v1/runs"])["runs"]
    assert run["last"] == {"loss": None, "lr": None, "top1": 0.5} and math.isfinite(run["updated"])
    assert not re.search("NaN|Infinity", "".join(told.values()))


BROKEN = {
    "status.json": ["", "{", "[]", "null", '{"state": 3, "steps": "many"}', "[" * 100_000, "\x00\xff"],
    "config.yaml": [
        "", "a: [", "- 1", "3", "model: 3", "model: {name: [1]}", "a: &a [*a]", "!!python/object:os.system {}", "[" * 5_000,
    ],
}  # fmt: skip


def test_a_broken_file_hides_no_other_run(place):
    train(place / "good")
    broken = [(name, content) for name, contents in BROKEN.items() for content in contents]
    for number, (name, content) in enumerate(broken):
        shutil.copytree(place / "good", place / f"bad {number}")
        (place / f"bad {number}" / name).write_bytes(content.encode("latin-1"))
    runs = {run["name"]: run for run in client_of(place).get("/v1/runs").json()["runs"]}
    assert runs.keys() == {"good", *(f"bad {number}" for number in range(len(broken)))}
    assert runs["good"]["state"] == "finished"
    assert {run["step"] for run in runs.values()} == {6}
    states = [runs[f"bad {number}"]["state"] for number, (name, _) in enumerate(broken) if name == "status.json"]
    assert states == ["damaged"] * len(states)


def test_a_string_that_is_not_unicode_hides_no_run(place):
    train(place / "good")
    contents = {
        "status.json": b'{"state": "\\ud800"}',
        "config.yaml": b'model: {name: "\\ud800"}',
        "metrics.jsonl": b'{"step": 1, "\\ud800": 1.0}\n{"step": 2, "a\xed\xa0\x80": 1.0}\n{"step": 3, "loss": 1.0}\n',
    }
    for name, content in contents.items():
        shutil.copytree(place / "good", place / name)
        (place / name / name).write_bytes(content)
    runs = {run["name"]: run for run in client_of(place).get("/v1/runs").json()["runs"]}
    assert runs.keys() == {"good", *contents}
    assert (runs["status.json"]["state"], runs["config.yaml"]["model"], runs["metrics.jsonl"]["step"]) == (
        "damaged",
        None,
        3,
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from vitrail.runs.folder import RunFolder

begun, running = (RunFolder(Path(sys.argv[1]) / name) for name in ("begun", "running"))
begun.open()
begun.config.write_text("{}")
running.open()
running.write_status("running", steps=9)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_process_was_killed_is_stopped(place):
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
    tell = lambda: {run["name"]: run["state"] for run in client_of(place).get("/v1/runs").json()["runs"]}  # noqa: E731
    assert tell() == {"begun": "stopped", "running": "stopped"}
    for name in ("begun", "running"):
        lock = place / name / ".lock"
        lock.write_text(lock.read_text().rpartition(" ")[0] + " another-machine")
    assert tell() == {"begun": "starting", "running": "running"}


def test_a_run_that_has_only_begun_is_starting(place):
    folder = RunFolder(place / "new")
    folder.open()
    folder.close()
    (told,) = client_of(place).get("/v1/runs").json()["runs"]
    assert (told["state"], told["step"], told["steps"], told["best"], told["last"]) == ("starting", 0, None, None, {})
    assert client_of(place).get("/v1/runs/new/metrics").json()["rows"] == []


def test_links_lead_nowhere(place):
    (place / "outside").symlink_to(place.parent / "secret")
    train(place / "honest")
    for name in ("status.json", "metrics.jsonl", "config.yaml"):
        (place / "honest" / name).unlink()
        (place / "honest" / name).symlink_to(place.parent / "secret" / name.replace("config.yaml", "status.json"))
    client = client_of(place)
    assert [run["name"] for run in client.get("/v1/runs").json()["runs"]] == ["honest"]
    for path in ("/v1/runs", "/v1/runs/honest/metrics", "/v1/runs/outside/metrics"):
        assert "SECRET" not in client.get(path).text
    assert client.get("/v1/runs/outside/metrics").status_code == 404


def test_pipes_and_folders_in_place_of_files_hold_nothing_up(place):
    train(place / "odd")
    for name in ("metrics.jsonl", "status.json"):
        (place / "odd" / name).unlink()
    os.mkfifo(place / "odd" / "metrics.jsonl")
    (place / "odd" / "status.json").mkdir()
    assert client_of(place).get("/v1/runs").json()["runs"][0]["state"] == "starting"
    assert serving.read(place / "odd" / "metrics.jsonl") == b""


UNLISTED = [
    "missing", "..", "%2e%2e", "..%2fsecret", "..%2f..%2fetc", "%2fetc", "flowers%2f..%2f..%2fsecret",
    "flowers%00", ".hidden", "file",
]  # fmt: skip


def test_a_name_that_was_not_listed_is_no_run(place):
    train(place / "flowers")
    train(place / ".hidden")
    (place / "file").write_text("x")
    client = client_of(place)
    for name in UNLISTED:
        for what in ("metrics", "events"):
            reply = client.get(f"/v1/runs/{name}/{what}")
            assert reply.status_code == 404, name
            assert "SECRET" not in reply.text, name


def test_names_of_runs_are_quoted_in_urls(place):
    names = sorted(["<img src=x onerror=alert(1)>", 'quo"te', "sp ace", "100 %", "émile", "back\\slash"])
    for name in names:
        train(place / name, steps=1)
    client = client_of(place)
    assert [run["name"] for run in client.get("/v1/runs").json()["runs"]] == names
    for name in find_runs(place):
        assert client.get(f"/v1/runs/{quote(name, safe='')}/metrics").json()["name"] == name


def test_a_folder_that_is_gone_holds_no_runs(tmp_path):
    assert client_of(tmp_path / "gone").get("/v1/runs").json() == {"runs": []}


def test_only_new_rows_of_a_growing_file_are_read_and_a_replaced_file_is_read_again(tmp_path, monkeypatch):
    path, seen, real = tmp_path / "metrics.jsonl", [], serving.read

    def told(path, start=0):
        seen.append(start)
        return real(path, start)

    monkeypatch.setattr(serving, "read", told)
    look = lambda: serving.read_rows(tmp_path)  # noqa: E731
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    assert look() == ([{"step": 1}], 12)
    with path.open("ab") as file:
        file.write(b"0}\n")
    assert look() == ([{"step": 1}, {"step": 20}], 25) == look() and seen == [0, 12]
    path.write_bytes(b'{"step": 3}\n')
    assert look() == ([{"step": 3}], 12)
    other = tmp_path / "other.jsonl"
    other.write_bytes(b'{"step": 9}\n')
    other.replace(path)
    assert look() == ([{"step": 9}], 12)


def test_long_metrics_are_read_in_parts_and_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "MAX_BYTES", 200)
    monkeypatch.setattr(serving, "MAX_VALUES", 100)
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {step}, "lr": 1.0}}\n' for step in range(1, 400)]
    lines.insert(200, '{"step": 200, "val_top1": 0.5}\n')
    lines.insert(300, '{"step": 300, "words": ' + "1" * 1000 + "}\n")  # longer than what is read at a time
    path.write_text("".join(lines))
    rows, at = serving.read_rows(tmp_path)
    assert at == path.stat().st_size
    assert serving.size_of_rows(rows) <= 100 and rows[-1]["step"] == 399
    assert [row for row in rows if "lr" not in row] == [{"step": 200, "val_top1": 0.5}]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


def test_rows_are_kept_up_to_a_size_of_all_files(tmp_path, monkeypatch):
    read, starts = serving.read, []
    monkeypatch.setattr(serving, "MAX_KEPT", 40)
    monkeypatch.setattr(serving, "KEPT", {})
    monkeypatch.setattr(
        serving, "read", lambda path, start=0: starts.append((path.parent.name, start)) or read(path, start)
    )
    for number in range(3):  # of 20 values each
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(5)))
        assert serving.size_of_rows(serving.read_rows(tmp_path / str(number))[0]) == 20
    starts.clear()
    for number in (1, 2, 0):  # the first was forgotten for the last
        assert len(serving.read_rows(tmp_path / str(number))[0]) == 5
    assert starts == [("0", 0)]


def test_a_study_is_listed_with_its_trials_and_the_time_left(place):
    study = place / "vit-paper"
    study.mkdir()
    progress = {"state": "running", "done": 12, "trials": 78, "seconds_left": 1500.0}
    write_checksummed(study / "progress.json", progress)
    names = ("name", "command", "state", "step", "steps", "seconds_left")

    def tell():
        (told,) = client_of(place).get("/v1/runs").json()["runs"]
        return tuple(told[name] for name in names)

    assert tell() == ("vit-paper", "study", "running", 12, 78, 1500.0)
    curves = client_of(place).get("/v1/runs/vit-paper/metrics").json()
    assert (curves["rows"], curves["step"], curves["steps"]) == ([], 12, 78)
    # its process was killed
    long_ago = time.time() - 2 * serving.SILENCE
    os.utime(study / "progress.json", (long_ago, long_ago))
    assert tell() == ("vit-paper", "study", "stopped", 12, 78, None)
    write_checksummed(study / "progress.json", {**progress, "state": "finished", "done": 78})
    assert tell()[2:5] == ("finished", 78, 78)
    (study / "progress.json").write_text('{"state": 7, "done": "all"}')
    assert tell()[2:] == ("damaged", 0, None, None)
