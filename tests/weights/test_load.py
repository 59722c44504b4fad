"""What MODEL may be, how a wrong one is answered, and weights made ready for other classes and sizes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.each_row import each_row
from tests.models.conftest import shaken
from vitrail import weights
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models.positions import resize
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.weights import adapt, load
from vitrail.weights.native import save_model, set_temperature
from vitrail.weights.resolve import resolve_model

SMALL = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "heads": 2, "mlp_width": 40}


@pytest.fixture
def model() -> Classifier:
    model = create_classifier(
        "vit-ti16", classes=["ant", "bee", "cat"], **SMALL, pre_logits=True, position_resize="bicubic"
    )
    return shaken(model).eval()


@pytest.fixture
def run(tmp_path, monkeypatch, model) -> Path:
    """A finished run under ./runs, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return finished(tmp_path / "runs" / "20260101-digits", model, time=100)


def finished(folder: Path, model: Classifier, *, time: int, state: str = "finished") -> Path:
    save_model(folder / "model", model)
    status = folder / "status.json"
    status.write_text(json.dumps({"state": state}))
    os.utime(status, (time, time))
    return folder


def test_a_model_is_named_by_its_run_its_folder_or_any_file_of_it(run, model):
    images = torch.randn(1, 3, 32, 32)
    names = [run, str(run), run / "model", run / "model" / "config.json", run / "model" / "model.safetensors"]
    for name in [*names, Path("runs/20260101-digits"), "latest"]:
        assert torch.equal(load(name)(images), model(images))
    assert not load(run).training


def test_latest_is_the_run_that_finished_last(run, model):
    model.temperature = 2.0
    newer = finished(run.parent / "newer", model, time=200)
    finished(run.parent / "newest-but-broken-off", model, time=300, state="running")
    (run.parent / "odd").mkdir()
    (run.parent / "odd" / "status.json").write_text("{")
    assert load("latest").temperature == 2.0
    assert resolve_model("latest").path.samefile(newer / "model")
    assert set_temperature("latest", 4.0).samefile(newer / "model" / "config.json")
    assert load(newer).temperature == 4.0


def test_without_a_finished_run_latest_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no finished run under .*runs"):
        load("latest")


@each_row(
    "name, words",
    [
        ("runs/20260101-digit", "did you mean 'runs/20260101-digits'"),
        ("rns/20260101-digits", "did you mean 'runs'"),
        ("latets", "did you mean 'latest'"),
        ("pvt-tiny", "no public weights of pvt-tiny are known"),
        ("nothing/like/it", "give a run directory"),
        ("runs/20260101-digits/modle", "did you mean 'runs/20260101-digits/model'"),
    ],
)
def test_a_mistyped_path_names_what_lies_near(run, name, words):
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert words in str(caught.value)
    assert caught.value.code == 2


@each_row(
    "name, words", [("photo.jpg", "is not a known format of weights"), ("manifest.json", "part of a run's checkpoint")]
)
def test_a_file_that_cannot_be_read_is_refused_without_opening_it(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / name)
    assert not Path("ran").exists()


@each_row(
    "config, words",
    [
        (None, "is not a model: it contains notes.txt"),
        (
            {"model_type": "vit", "architectures": ["ViT"]},
            r"no weights that can be read: it contains config\.json, notes\.txt",
        ),
        ({"colour": "blue"}, "does not describe a known model"),
        ({"architecture": "vit_tiny"}, r"no weights that can be read: it contains config\.json, notes\.txt"),
        ({"format_version": 1, "architecture": "vit"}, "model.safetensors cannot be read: No such file"),
    ],
)
def test_a_folder_that_is_not_a_model_is_described(tmp_path, config, words):
    (tmp_path / "notes.txt").write_text("")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path)


def test_a_run_that_has_not_finished_says_its_state(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "status.json").write_text('{"state": "preempted"}')
    with pytest.raises(CheckpointError, match="has no model yet; its state is 'preempted'"):
        load(tmp_path)


def test_names_of_classes_come_from_a_file(run, tmp_path):
    (tmp_path / "names.txt").write_bytes("\ufeffAmeise\nBiene \n\nKätzchen\n".encode())
    assert load(run, classes_file=tmp_path / "names.txt").classes == ("Ameise", "Biene", "Kätzchen")
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    with pytest.raises(ConfigError, match="2 class names for 3 outputs"):
        load(run, classes_file=tmp_path / "names.txt")
    with pytest.raises(ConfigError, match=r"gone\.txt cannot be read"):
        load(run, classes_file=tmp_path / "gone.txt")


@each_row("size", [48, (32, 64)])
def test_at_another_size_positions_follow_the_rule_of_the_config(run, model, size):
    larger = load(run, image_size=size)
    grid = larger.config.grid
    positions, before = larger.backbone.pos_embed, model.backbone.pos_embed
    assert larger.config.image_size == ((48, 48) if size == 48 else size)
    assert torch.equal(positions[:, :1], before[:, :1])
    assert torch.equal(positions[:, 1:], resize(before[:, 1:], (4, 4), grid, "bicubic"))
    images = torch.randn(2, 3, *larger.config.image_size, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(larger(images), model(images))  # the same as resizing on the way
    assert larger.preprocessing.size == larger.config.image_size
    assert larger.classes == model.classes
    assert larger.temperature == model.temperature


def test_a_size_that_does_not_divide_is_refused(run):
    with pytest.raises(ConfigError, match="does not divide"):
        load(run, image_size=30)


def test_the_resize_before_the_crop_keeps_its_proportion(model):
    model.preprocessing = Preprocessing.timm(32, crop_fraction=0.8)
    assert adapt(model, image_size=64).preprocessing == Preprocessing.timm(64, crop_fraction=0.8)


def test_other_classes_get_a_zero_head_and_every_other_weight_is_kept(run, model):
    other = load(run, classes=["dog", "emu"])
    assert other.classes == ("dog", "emu")
    assert not other(torch.randn(2, 3, 32, 32)).any()
    kept = {name: each for name, each in other.backbone.state_dict().items() if not name.startswith("head")}
    assert all(torch.equal(each, model.backbone.state_dict()[name]) for name, each in kept.items())
    assert len(kept) == len(model.backbone.state_dict()) - 4  # two linear layers went (paper, appendix B.1.1)
    assert not other.config.pre_logits
    assert other.config.classes == 2


def test_the_same_classes_keep_their_head_and_forget_their_calibration(model):
    model.temperature = 3.0
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    again = adapt(model, classes=["ant", "bee", "cat"])
    torch.testing.assert_close(again.eval()(images), model(images))
    assert again.temperature == 1.0
    assert adapt(model, image_size=32).temperature == 3.0
    assert not adapt(model, classes=["bee", "ant", "cat"])(images).any()
    assert not adapt(model, classes=["ant", "bee", "cat"], arguments={"multi_label": True})(images).any()


def test_an_adapted_model_is_an_independent_copy_in_training_form(model):
    before = {name: each.clone() for name, each in model.state_dict().items()}
    other = adapt(model, classes=["dog", "emu"], image_size=64, drop_path=0.2, arguments={"multi_label": True})
    assert other.training
    assert other.multi_label
    assert other.config.drop_path == 0.2
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert model.config.drop_path == 0
    assert model.classes == ("ant", "bee", "cat")


@each_row("channels", [1, 2, 4, 5, 6, 7])
def test_an_image_of_equal_channels_is_seen_as_before_whatever_their_number(model, channels):
    grey = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    other = adapt(model, in_channels=channels).eval()
    assert other.config.in_channels == other.preprocessing.channels == channels
    expected = model(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(other(grey.expand(-1, channels, -1, -1)), expected, atol=1e-5, rtol=1e-5)


@each_row("channels, mean", [(1, (0.4,)), (2, (0.5, 0.2)), (3, (0.1, 0.2, 0.9)), (5, (0.1, 0.2, 0.9, 0.1, 0.2))])
def test_channels_are_dealt_round_and_mean_and_std_with_them(model, channels, mean):
    std = tuple(1 - each for each in (0.1, 0.2, 0.9))
    model.preprocessing = replace(model.preprocessing, mean=(0.1, 0.2, 0.9), std=std)
    red, green, blue = model.backbone.get_parameter("patch_embed.proj.weight").detach().unbind(1)
    hands = {1: [red + green + blue], 2: [red + blue, green], 3: [red, green, blue]}
    hands[5] = [red / 2, green / 2, blue, red / 2, green / 2]
    other = adapt(model, in_channels=channels)
    torch.testing.assert_close(
        other.backbone.get_parameter("patch_embed.proj.weight").detach(), torch.stack(hands[channels], 1)
    )
    assert other.preprocessing.mean == pytest.approx(mean)
    assert other.preprocessing.std == pytest.approx(tuple(1 - each for each in mean))


def test_weights_are_loaded_for_other_channels_and_their_number_must_be_one(tmp_path, model):
    folder = save_model(tmp_path / "model", model)
    assert load(folder, in_channels=5)(torch.randn(1, 5, 32, 32)).shape == (1, 3)
    assert torch.equal(load(folder, in_channels=3)(torch.ones(1, 3, 32, 32)), model(torch.ones(1, 3, 32, 32)))
    with pytest.raises(ConfigError, match="in_channels is 0"):
        load(folder, in_channels=0)


def test_changes_that_need_other_tensors_are_refused_with_their_names(model):
    with pytest.raises(CheckpointError, match="does not fit the model") as caught:
        adapt(model, registers=2)
    assert "missing     reg_token 1x2x24" in str(caught.value)
    with pytest.raises(ConfigError, match="no field 'dropuot'"):
        adapt(model, dropuot=0.1)


def test_a_vitrail_file_is_told_from_a_bare_one_by_its_header(tmp_path, model):
    said: list[str] = []
    images = torch.randn(1, 3, 32, 32)
    own = save_model(tmp_path / "own.safetensors", model)
    assert torch.equal(load(own, log=said.append)(images), model(images))
    assert said == []
    wide = create_classifier("vit-ti16", classes=2, image_size=32, depth=1)
    save_file(wide.backbone.state_dict(), tmp_path / "bare.safetensors")
    bare = load(tmp_path / "bare.safetensors", log=said.append)
    assert bare.config.gelu == "exact"
    assert len(said) == 2
    assert "outputs are numbered" in said[0]
    assert bare.provenance == {"weights": "bare.safetensors", "layout": "timm", "numbered_classes": True}


def test_assumptions_go_to_stderr_unless_they_are_asked_for(tmp_path, capsys):
    wide = create_classifier("vit-ti16", classes=2, image_size=32, depth=1)
    save_file(wide.backbone.state_dict(), tmp_path / "bare.safetensors")
    load(tmp_path / "bare.safetensors")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "exact GELU" in printed.err


def test_a_folder_of_weights_survives_being_moved(run, tmp_path, model):
    moved = run.rename(tmp_path / "elsewhere")
    array = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    assert weights.load(moved).predict(array) == model.predict(array)
