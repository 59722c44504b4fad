"""Every input of a verb is accounted for: a result, an error, or a count by type; exit code 3 where a named file has none."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.looked_at import shaken
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.weights.native import save_model

GOOD = ("a.png", "b.PPM", "deep/c.jpg", "no extension")
BROKEN = ("0 first.jpg", "b.heic", "cut.png")
OTHERS = ("labels.csv", "notes.txt", "deep/more.txt")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and a folder of images, broken images and other files."""
    monkeypatch.chdir(tmp_path)
    save_model("model", shaken())
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    for name in GOOD:
        kinds = {".png": "PNG", ".ppm": "PPM", ".jpg": "JPEG", "": "JPEG"}
        Image.fromarray(pixels).save(folder / name, kinds[Path(name).suffix.lower()])
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:300])
    (folder / "b.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(30))
    (folder / "0 first.jpg").touch()
    for name in (*OTHERS, ".hidden.jpg"):
        (folder / name).write_text("no image")
    return folder


def test_predict_has_a_row_for_every_image_and_counts_the_other_files(place, capsys):
    assert run(["predict", "model", "photos", "--bad-list", "bad.csv", "--quiet"]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [row["path"] for row in rows] == [f"photos/{name}" for name in sorted((*GOOD, *BROKEN))]
    assert {row["path"][7:]: row["error"] for row in rows if row["error"]} == {
        "0 first.jpg": "the file is empty",
        "b.heic": "HEIC images are not supported; convert it to JPEG or PNG, e.g. with `magick mogrify -format jpg FILE`",
        "cut.png": pytest.approx(rows[4]["error"]),
    }
    assert all(bool(row["label"]) != bool(row["error"]) for row in rows)
    assert "4 predicted, 3 unreadable (listed in bad.csv), 3 of unknown type (.csv 1, .txt 2)" in said.err
    assert len(Path("bad.csv").read_text().splitlines()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "embed", "explain"])
def test_a_named_file_without_an_answer_is_exit_code_3_and_the_others_keep_theirs(place, verb, capsys):
    out = {"predict": "out.jsonl", "embed": "out.jsonl", "explain": "out"}[verb]
    command = [verb, "model", "photos/a.png", "photos/cut.png", "--out", out, "--quiet"]
    assert run(command) == 3
    said = capsys.readouterr()
    assert "1 of the files that were named could not be read; the first: photos/cut.png: " in said.err
    if verb != "explain":
        lines = [json.loads(line) for line in Path(out).read_text().splitlines()]
        assert [line["path"] for line in lines if not line.get("error")] == ["photos/a.png"]
    else:
        assert (place.parent / "out" / "a.attention.png").exists()
    assert run([*command[:2], "photos", "--out", out, "--quiet"]) == 0
    assert run([*command[:2], "photos/cut.png", "--out", out, "--quiet"]) == 3
    assert "the image could not be read: photos/cut.png" in capsys.readouterr().err


def test_in_python_the_failures_stand_beside_the_results(place):
    said: list[str] = []
    answers = vitrail.predict("model", ["photos/a.png", "photos/cut.png"], quiet=True, log=said.append)
    assert [answer.key for answer in answers] == ["photos/a.png"]
    assert list(answers.failed) == ["photos/cut.png"]
    assert said[-1] == "inputs   1 predicted, 1 unreadable"
    with pytest.raises(DataError, match="1 of the files that were named"):
        answers.check()
    with pytest.raises(DataError, match=r"none of 2 images could be read; the first: photos/cut\.png"):
        list(vitrail.embed("model", ["photos/cut.png", "photos/0 first.jpg"], quiet=True))
    assert len(list(vitrail.embed("model", "photos", quiet=True))) == 4


def test_a_list_of_another_time_counts_for_nothing(place, capsys):
    Path("bad.csv").write_text(
        "path,reason\n" + "".join(f"old/{number}.png,broken\n" for number in range(50)) + "photos/a.png,cut\n"
    )
    assert run(["predict", "model", "photos/a.png", "--bad-list", "bad.csv", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].startswith("photos/a.png,") and "unreadable" not in said.err
    assert run(["predict", "model", "photos", "--bad-list", "bad.csv", "--quiet"]) == 0
    assert "4 predicted, 3 unreadable" in capsys.readouterr().err


def test_rows_and_failures_are_all_of_hundreds_of_files(tmp_path, capsys):
    save_model(tmp_path / "model", shaken())
    (tmp_path / "many").mkdir()
    kinds = np.random.default_rng(0).integers(0, 3, 300)
    for number, kind in enumerate(kinds):
        path = tmp_path / "many" / f"{number:04}.{('png', 'png', 'txt')[kind]}"
        Image.new("L", (8, 8), number % 256).save(path) if kind == 0 else path.write_bytes(b"broken")
    assert run(["predict", str(tmp_path / "model"), str(tmp_path / "many"), "--json", "--quiet"]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    good, broken, other = np.bincount(kinds)
    assert (len([row for row in rows if not row["error"]]), len(rows)) == (good, good + broken)
    assert f"{good:,} predicted, {broken:,} unreadable, {other:,} of unknown type (.txt {other:,})" in said.err


@pytest.mark.slow
def test_a_table_that_begins_with_errors_has_its_columns_and_types(place):
    for number in range(1100):
        (place / f"00 {number:04}.png").touch()
    vitrail.predict("model", "photos", out="table.parquet", quiet=True, log=lambda line: None)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table("table.parquet")
    assert table.num_rows == 1107
    assert (str(table.schema.field("score").type), str(table.schema.field("label").type)) == ("double", "string")
    assert table["error"].to_pylist().count("") == 4


@pytest.mark.parametrize("option", [{"mean": [0.1, 0.2, 0.3]}, {"crop": 32}, {"grid": "4x9"}, {"classes": "names.txt"}])
def test_options_that_a_model_in_memory_could_not_follow_are_refused(place, option):
    Path("names.txt").write_text("a\nb\n")
    with pytest.raises(ConfigError, match="model in memory"):
        vitrail.predict(shaken(), ["photos"], quiet=True, **option)
