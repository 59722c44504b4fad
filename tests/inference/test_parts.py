"""Results in parts: every image exactly once, whoever computes them and whenever they are stopped."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest

import vitrail
from tests.looked_at import picture, shaken
from tests.tasks.dense_models import create
from tests.test_files import run_and_kill
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError, DiskError, Interrupted, Preempted
from vitrail.inference.options import InferenceOptions
from vitrail.inference.parts import compute, ray_engine, write
from vitrail.inference.parts.folder import PartFolder, read_parts
from vitrail.weights.native import save_model

SIZE = 3  # images of a part
BROKEN = {4, 9, 10}  # the whole last part, and one image before it
HOW = {"part_size": SIZE, "batch": 2, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, another one, and a folder of 11 images: 4 parts, the last of which has no good image."""
    folder = tmp_path_factory.mktemp("parts")
    save_model(folder / "model", shaken())
    save_model(folder / "other", shaken(names=tuple("abcdefg")))
    (folder / "images").mkdir()
    for number in range(11):
        path = folder / "images" / f"{number:02}.png"
        path.write_bytes(b"broken") if number in BROKEN else picture(40, 48, seed=number).save(path)
    (folder / "images/notes.txt").write_text("no image")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the parts that are written."""
    numbers, before = [], compute.write_part
    monkeypatch.setattr(compute, "write_part", lambda *given: numbers.append(given[2]) or before(*given))
    return numbers


def predict(out: Path, verb: Callable = vitrail.predict, inputs: object = "images", **options: object) -> list[str]:
    """What was said."""
    lines: list[str] = []
    given = {**HOW, "format": "jsonl", **options}
    assert verb(given.pop("model", "model"), inputs, parts=out, log=lines.append, **given) == out
    return lines


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for part in sorted(out.glob("part-*.jsonl")) for line in part.read_text().splitlines()]


def visible(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.name[0] not in "._")


def test_the_parts_together_are_the_table_with_a_row_for_every_image(tmp_path, counted):
    table = vitrail.predict("model", "images", out=tmp_path / "table.jsonl", quiet=True, log=lambda line: None)
    said = predict(tmp_path / "parts")
    assert counted == [0, 1, 2, 3]
    # batches differ in size, so products are rounded differently
    whole = [json.loads(line) for line in table.read_text().splitlines()]
    assert rows(tmp_path / "parts") == [pytest.approx(row, abs=2e-6) for row in whole]
    assert [bool(row["error"]) for row in rows(tmp_path / "parts")] == [number in BROKEN for number in range(11)]
    assert said[0] == "parts    4 parts; 0 done before"
    assert said[-2] == f"written  {tmp_path / 'parts'}: all parts are done; 11 images"
    assert said[-1] == "inputs   8 predicted, 3 unreadable, 1 of unknown type (.txt 1)"
    assert visible(tmp_path / "parts") == [f"part-000000{number}.jsonl" for number in range(4)]


def test_parquet_parts_have_one_schema_and_are_read_as_one_data_set(tmp_path):
    predict(tmp_path, format=None, top=2)
    whole = pyarrow.dataset.dataset(tmp_path, format="parquet").to_table()
    assert whole.column_names == ["path", "label", "score", "label_2", "score_2", "error"]
    assert [str(kind) for kind in whole.schema.types] == ["string", "string", "double", "string", "double", "string"]
    assert whole["path"].to_pylist() == [f"images/{number:02}.png" for number in range(11)]
    schemas = {str(pyarrow.parquet.read_schema(part)) for part in tmp_path.glob("part-*.parquet")}
    assert len(schemas) == 1


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "npy"])
def test_features_in_parts_are_those_of_embed(tmp_path, kind):
    expected = dict(vitrail.embed("model", "images", quiet=True, log=lambda line: None))
    predict(tmp_path, vitrail.embed, format=kind)
    if kind == "npy":
        listed, values = rows(tmp_path), np.concatenate([np.load(part) for part in sorted(tmp_path.glob("*.npy"))])
    else:
        listed = rows(tmp_path) or pyarrow.dataset.dataset(tmp_path, format="parquet").to_table().to_pylist()
        width = len(next(iter(expected.values())))
        values = np.array([row["features"] or [np.nan] * width for row in listed], np.float32)
    assert [row["path"] for row in listed] == [f"images/{number:02}.png" for number in range(11)]
    for row, features in zip(listed, values, strict=True):
        assert bool(row["error"]) == (row["path"] not in expected)
        np.testing.assert_allclose(features, expected.get(row["path"], np.nan), atol=2e-6)


@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
def test_tables_of_detectors_and_segmenters_come_in_parts(tmp_path, task):
    few = {"threshold": 0.0, "most": 4}
    model = create(task, classes=("background", "cat", "dog"), **({} if task == "segmentation" else few))
    table = vitrail.predict(model, "images", out=tmp_path / "t.jsonl", quiet=True, log=lambda line: None)
    predict(tmp_path / "parts", model=model)
    # batches differ in size, so products are rounded differently
    whole = [json.loads(line) for line in table.read_text().splitlines()]
    assert rows(tmp_path / "parts") == [pytest.approx(row, abs=2e-6) for row in whole]
    predict(tmp_path / "arrow", model=model, format="parquet")
    schema = pyarrow.parquet.read_schema(tmp_path / "arrow/part-0000003.parquet")  # it has no good image
    texts = {"path", "label", "error"}
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        name: "string" if name in texts else "double" for name in rows(tmp_path / "parts")[0]
    }


def test_only_what_is_missing_is_computed_and_the_manifest_follows(tmp_path, counted):
    predict(tmp_path)
    before = rows(tmp_path)
    done = json.loads((tmp_path / "_done.json").read_text())
    assert (done["images"], done["unreadable"], done["rows"]) == (11, 3, 11)
    for part in done["parts"]:
        for name, stated in part["files"].items():
            assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == stated["sha256"]
    (tmp_path / "part-0000001.jsonl").unlink()
    (tmp_path / "_records/0000002.json").write_text("damaged")
    with open(tmp_path / "part-0000003.jsonl", "a") as file:
        file.write("more")
    counted.clear()
    said = predict(tmp_path, workers=1)  # this may change
    assert counted == [1, 2, 3]
    assert said[0] == "parts    4 parts; 1 done before"
    assert rows(tmp_path) == before
    assert vitrail.check_parts(tmp_path).sound


DIFFERENT = {
    "model": ({"model": "other"}, "model  "),
    "images": ({"inputs": ["images/00.png", "images/01.png"]}, "images  11 in the folder, 2 given"),
    "order": ({"inputs": [f"images/{number:02}.png" for number in reversed(range(11))]}, "inputs  "),
    "part size": ({"part_size": 4}, "part_size  3 in the folder, 4 given"),
    "top": ({"top": 2}, "top  5 in the folder, 2 given"),
    "format": ({"format": "parquet"}, "format  jsonl in the folder, parquet given"),
    "verb": ({"verb": vitrail.embed}, "verb  predict in the folder, embed given"),
    "preprocessing": ({"mean": (0.1, 0.1, 0.1)}, "model  "),
}


def test_another_plan_in_the_same_folder_is_refused_with_the_difference(tmp_path):
    predict(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for change, line in DIFFERENT.values():
        with pytest.raises(ConfigError, match="has parts of another plan") as refused:
            predict(tmp_path, **change)
        assert line in refused.value.value, change
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(ConfigError, match=r"has files, such as holiday\.jpg, and no plan"):
        predict(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


REFUSED = {
    "without --parts": ({"parts": None, "shard": "0/2"}, "--shard divides parts"),
    "shards from 1": ({"shard": "2/2"}, "--shard is '2/2'"),
    "words": ({"shard": "first"}, "--shard is 'first'"),
    "no images": ({"part_size": 0}, "--part-size is 0"),
    "a file too": ({"out": "x.csv"}, "--out and --parts"),
    "pictures": ({"overlay": "drawn"}, "--overlay and --parts"),
    "masks": ({"format": "masks"}, "parts are not written as masks"),
    "features": ({"format": "csv"}, "parts are not written as csv"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_options_that_parts_do_not_support_are_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        vitrail.predict("model", "images", **{"parts": tmp_path / "out", "quiet": True, **options})
    assert not (tmp_path / "out").exists()


def test_shards_compute_their_own_parts_and_the_last_one_writes_the_manifest(tmp_path, counted):
    for shard, own in (("2/3", [2]), ("0/3", [0, 3]), ("1/3", [1])):
        assert not (tmp_path / "_done.json").exists()
        predict(tmp_path, shard=shard)
        assert counted == own
        counted.clear()
    assert [row["path"] for row in rows(tmp_path)] == [f"images/{number:02}.png" for number in range(11)]
    assert vitrail.check_parts(tmp_path).sound
    (tmp_path / "_done.json").unlink()
    predict(tmp_path, batch=3, device="cpu")  # these may change
    assert counted == [] and vitrail.check_parts(tmp_path).sound


def test_a_part_that_another_process_computes_is_left_to_it(tmp_path, counted, monkeypatch):
    predict(tmp_path, shard="0/4")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # holds part 2 as a process that computes it would
        os.close(go[1])
        folder = PartFolder.open(tmp_path, read_parts(tmp_path).plan, {})
        os.write(ready[1], b"1" if folder.claim(2) else b"0")
        os.read(go[0], 1)  # until the test closes its end
        os._exit(0)  # without having computed it
    assert os.read(ready[0], 1) == b"1"
    monkeypatch.setattr(write, "WAIT", 0.01)
    release = iter([lambda: (os.close(go[1]), os.waitpid(child, 0))])
    monkeypatch.setattr("vitrail.shared_work.time.sleep", lambda seconds: next(release)())
    counted.clear()
    said = predict(tmp_path)
    for end in release:  # nothing was waited for
        end()
    assert counted == [1, 3, 2]
    assert "waiting  for 1 part that other processes compute" in said
    assert vitrail.check_parts(tmp_path).sound


@pytest.mark.parametrize("verb", ["predict", pytest.param("embed", marks=pytest.mark.slow)])
def test_killed_at_any_operation_on_the_disk_it_is_resumed_whole(tmp_path, verb):
    kind = {"predict": "jsonl", "embed": "npy"}[verb]
    how = {"verb": getattr(vitrail, verb), "format": kind, "part_size": 6}
    predict(tmp_path / "whole", **how)
    expected = {name: (tmp_path / "whole" / name).read_bytes() for name in visible(tmp_path / "whole")}
    kills = 0
    while run_and_kill(lambda: predict(tmp_path / "out", **how), 2 * kills + 1):
        kills += 1  # each process begins where the one before was killed
    assert kills >= 4
    assert {name: (tmp_path / "out" / name).read_bytes() for name in visible(tmp_path / "out")} == expected
    assert vitrail.check_parts(tmp_path / "out").sound
    assert not list(tmp_path.glob("out/.*"))


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in the foreground: a shell starts what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Preempted), (signal.SIGINT, Interrupted)])
def test_a_signal_ends_it_between_whole_parts_and_the_same_call_continues(tmp_path, monkeypatch, ctrl_c, number, error):
    before, handler = compute.list_rows, signal.getsignal(signal.SIGTERM)

    def killed(pairs, *given):
        for row in before(pairs, *given):
            yield row
            if row["path"] == "images/04.png":
                os.kill(os.getpid(), number)
                time.sleep(1)

    with monkeypatch.context() as patch:
        patch.setattr(compute, "list_rows", killed)
        with pytest.raises(error, match="the same command computes the others") as stopped:
            predict(tmp_path)
    assert visible(tmp_path) == ["part-0000000.jsonl"]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not [each for each in threading.enumerate() if each.name.startswith("vitrail-data")], "reading has ended"
    assert stopped.value.code in (75, 130)
    predict(tmp_path)
    assert len(rows(tmp_path)) == 11


def test_a_disk_that_is_full_is_an_error_and_the_same_call_continues(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        before = compute.open_table

        def full(place, *given):
            if "0000002" in place.name:
                raise DiskError("the disk is full")
            return before(place, *given)

        patch.setattr(compute, "open_table", full)
        with pytest.raises(DiskError):
            predict(tmp_path)
    assert [part.state for part in vitrail.check_parts(tmp_path).parts] == ["done", "done", "missing", "missing"]
    predict(tmp_path)
    assert vitrail.check_parts(tmp_path).sound


def test_a_check_names_what_is_missing_damaged_foreign_or_doubled(tmp_path, capsys):
    out = tmp_path / "out"
    predict(out)
    assert run(["check-parts", str(out), "--quiet"]) == 0
    assert "images   11 of 11, 3 of them unreadable\nno problems found" in capsys.readouterr().out
    (out / "part-0000000.jsonl").unlink()
    content = (out / "part-0000001.jsonl").read_bytes()
    (out / "part-0000001.jsonl").write_bytes(content.replace(b"bee", b"eeb", 1).replace(b"ant", b"tna", 1))
    (out / "part-0000002 (copy).jsonl").write_bytes((out / "part-0000002.jsonl").read_bytes())
    (out / "part-0000003.jsonl").write_bytes((out / "part-0000002.jsonl").read_bytes())
    assert run(["check-parts", str(out), "--quiet"]) == 3
    said = capsys.readouterr().out
    assert "missing  part-0000000.jsonl: deleted since it was written" in said
    assert "damaged  part-0000001.jsonl: another SHA-256 than its record" in said
    assert "damaged  part-0000003.jsonl: " in said
    assert "foreign  part-0000002 (copy).jsonl belongs to no part" in said
    found = vitrail.check_parts(out, quiet=True)
    assert [row["state"] for row in found.to_rows()] == ["missing", "damaged", "done", "damaged"]
    for name in ("part-0000001.jsonl", "part-0000003.jsonl", "part-0000002 (copy).jsonl"):
        (out / name).unlink()
    predict(out)
    (out / "_done.json").unlink()
    assert "_done.json is missing" in vitrail.check_parts(out, quiet=True).to_text()
    with pytest.raises(DataError, match=r"_plan\.json does not exist"):
        vitrail.check_parts(tmp_path)


def test_a_named_file_without_an_answer_is_exit_code_3_after_everything_is_written(tmp_path, capsys):
    command = ["predict", "model", "images/00.png", "images/04.png", "--parts", str(tmp_path / "a"), "--quiet"]
    for _ in range(2):  # the second time everything is there
        assert run(command) == 3
        assert "1 of the files that were named could not be read; the first: images/04.png: " in capsys.readouterr().err
    assert vitrail.check_parts(tmp_path / "a").sound
    assert run(["embed", "model", "images/09.png", "--parts", str(tmp_path / "b"), "--format", "npy", "--quiet"]) == 3
    assert "the image could not be read: images/09.png" in capsys.readouterr().err
    assert np.isnan(np.load(tmp_path / "b/part-0000000.npy")).all()
    assert run(["embed", "model", "images"]) == 2
    assert "give --out FILE, --index DIR, or --parts DIR" in capsys.readouterr().err
    assert run(["predict", "model", "imges", "--parts", str(tmp_path / "c")]) == 3
    assert "did you mean 'images'" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_without_ray_its_engine_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ConfigError, match="--engine ray needs Ray") as refused:
        predict(tmp_path, engine="ray")
    assert "pip install 'vitrail[ray]'" in refused.value.remedy
    with pytest.raises(ConfigError, match="in memory"):
        predict(tmp_path, engine="ray", model=shaken())


def test_ray_is_asked_to_try_a_part_four_times():
    asked = {}

    class Parts:
        def map_batches(self, actor, **how):
            asked.update(how)
            return self

        def iter_batches(self, **_):
            return iter(())

    data = SimpleNamespace(ActorPoolStrategy=lambda **_: None, from_items=lambda items, **_: Parts())
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}], data=data)
    job = compute.Job(verb="embed", model="model", options=InferenceOptions())
    assert ray_engine._compute(ray, job, {}, [0, 1], print) == 0
    assert (asked["max_task_retries"], asked["max_restarts"]) == (3, -1)  # of a part, and of an actor without end


ONE = {"CPU": 8.0}
CLUSTERS = {
    "two processors": ([{"CPU": 2.0}], {}, ({"num_cpus": 1}, 1)),
    "one processor": ([{"CPU": 1.0}], {}, ({"num_cpus": 1}, 1)),
    "a processor is left free": ([ONE], {"workers": 1}, ({"num_cpus": 2}, 3)),
    "an actor fits on a machine": ([{"CPU": 4.0}] * 4, {"workers": 8}, ({"num_cpus": 3}, 5)),
    "as many as GPUs": ([{**ONE, "GPU": 2.0}, ONE], {"workers": 1}, ({"num_cpus": 2, "num_gpus": 1}, 2)),
    "no GPU is wanted": ([{**ONE, "GPU": 2.0}], {"device": "cpu"}, ({"num_cpus": 1}, 7)),
}


@pytest.mark.parametrize(("machines", "options", "expected"), CLUSTERS.values(), ids=CLUSTERS)
def test_actors_leave_a_processor_free_and_fit_on_a_machine(machines, options, expected):
    job = compute.Job(verb="embed", model="model", options=InferenceOptions(**options))
    assert ray_engine._choose_actors(machines, job) == expected
