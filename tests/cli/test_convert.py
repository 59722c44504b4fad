"""`vitrail convert` as a person runs it: what it prints, and its exit codes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from vitrail.cli import run
from vitrail.tasks.classification import create_classifier
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
