"""`vitrail convert` as a person runs it: what it prints, and its exit codes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.cli import run
from vitrail.errors import ConfigError
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights import load
from vitrail.weights.native import save_model

SMALL = {"image_size": 16, "patch_size": 4, "width": 24, "depth": 1, "heads": 2, "mlp_width": 40}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    save_model("a", create_classifier("vit-ti16", classes=["ant", "bee"], gelu="exact", **SMALL))
    return tmp_path


def test_it_says_what_it_wrote_what_it_proved_and_what_stands_beside_it(place, capsys):
    assert run(["convert", "a", "b.npz", "--to", "google"]) == 0
    said = capsys.readouterr()
    rows = [line.split(maxsplit=1) for line in said.out.splitlines()]
    assert [name for name, _ in rows] == [
        "model",
        "layout",
        "tensors",
        "proved",
        "described",
        "described",
        "without",
        "written",
    ]
    assert rows[3][1] == "tensors equal bit for bit, outputs differ by 0 of the largest"
    assert rows[4][1] == "beside it: gelu exact, read as tanh"
    assert rows[6][1].startswith("that description outputs differ by ")
    assert said.err == ""


def test_the_sha256_of_a_foreign_source_is_printed(place, capsys):
    run(["convert", "a", "b.npz", "--to", "google"])
    capsys.readouterr()
    assert run(["convert", "b.npz", "c", "--to", "native"]) == 0
    hashed = hashlib.sha256((place / "b.npz").read_bytes()).hexdigest()
    assert f"{hashed} of the source" in capsys.readouterr().out


STATED = ["--mean", "0.485,0.456,0.406", "--std", "0.25", "--resize", "30"]


@pytest.mark.parametrize(("kind", "bare"), [("timm", "bare.safetensors"), ("google", "bare.npz")])
def test_preprocessing_that_the_weights_do_not_state_is_given_and_carried_by_the_copy(place, capsys, kind, bare):
    known = {**SMALL, "width": 192, "heads": 3}  # timm's tensors do not tell the number of heads
    save_model("known", create_classifier("vit-ti16", classes=["ant", "bee"], **known))
    run(["convert", "known", bare, "--to", kind])
    (place / "bare.json").unlink()
    capsys.readouterr()
    assert run(["convert", bare, "b", "--to", "native", *STATED, "--crop", "24"]) == 0
    said = capsys.readouterr().err
    assert "assumed" in said
    assert not any(word in said for word in ("mean", "std", "resize", "crop")), "what is given is not assumed"
    found = load("b").preprocessing
    assert (found.size, found.resize, found.resize_to) == ((24, 24), "short", 30)
    assert (found.mean, found.std) == ((0.485, 0.456, 0.406), (0.25,) * 3)
    assert run(["export", bare, "--to", "timm", "--out", "c", *STATED]) == 0
    assert load("c").preprocessing.mean == found.mean
    assert run(["convert", bare, "d", "--to", "native", "--size", "24", "--crop", "24"]) == 2


def test_a_grid_that_the_weights_do_not_state_is_given_and_carried_by_the_copy(place, capsys):
    known = {**SMALL, "width": 192, "heads": 3, "image_size": (16, 72), "patch_size": 8}
    save_model("known", create_classifier("vit-ti16", classes=["ant", "bee"], **known))
    run(["convert", "known", "bare.safetensors", "--to", "timm"])
    (place / "bare.json").unlink()
    capsys.readouterr()
    assert run(["convert", "bare.safetensors", "b", "--to", "native"]) == 4
    assert "--grid 3x6, or 6x3" in capsys.readouterr().err
    for name, command in {"b": "convert {} b --to native", "c": "export {} --out c --to timm"}.items():
        assert run([*command.format("bare.safetensors").split(), "--grid", "2x9"]) == 0
        assert load(name).config.image_size == (16, 72)
    assert run(["convert", "bare.safetensors", "d", "--to", "native", "--grid", "2,9"]) == 2


def test_a_model_in_memory_is_refused_with_what_saves_it(place):
    model = load("a")
    calls = [
        lambda: vitrail.convert(model, "b", to="native"),
        lambda: vitrail.convert("a", model, diff=True),
        lambda: vitrail.export(model, "b", to="timm"),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"a Classifier in memory\n  hint: .*vitrail\.save"):
            call()


def test_json_is_one_object_on_one_line(place, capsys):
    assert run(["convert", "a", "b", "--to", "timm", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["from"], said["to"], said["difference"], said["unsaid"]) == ("native", "timm", 0, [])


def test_equal_models_leave_with_0_and_others_with_1_and_a_table(place, capsys):
    run(["convert", "a", "b.npz", "--to", "google"])
    assert run(["convert", "--diff", "a", "b.npz"]) == 0
    run(["convert", "a", "c", "--to", "native", "--channels", "1", "--size", "32"])
    capsys.readouterr()
    assert run(["convert", "--diff", "a", "c"]) == 1
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["patch_embed.proj.weight", "24x3x4x4 float32", "24x1x4x4 float32"] in cells
    assert ["config.image_size", "[16, 16]", "[32, 32]"] in cells
    assert run(["convert", "--diff", "a", "c", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["same"], said["shapes"], said["differing"]) == (False, 2, 0)


def test_a_head_for_other_classes_is_one_of_zeros(place, capsys):
    (place / "names.txt").write_text("x\ny\nz\n")
    assert run(["convert", "a", "c", "--to", "native", "--head", "names.txt"]) == 0
    assert json.loads((place / "c" / "config.json").read_text())["classes"] == ["x", "y", "z"]
