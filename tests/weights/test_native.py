"""vitrail's own format: what comes back is what was saved, whole or refused by name; earlier versions stay readable."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.each_row import each_row
from tests.models.conftest import shaken
from vitrail.checksums import add_checksum
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError, DiskError
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.weights import native
from vitrail.weights.description import FORMAT_VERSION
from vitrail.weights.native import load_model, save_model, set_temperature

SMALL = {"image_size": (16, 24), "patch_size": 8, "width": 24, "depth": 2, "heads": 2, "mlp_width": 40}
OLD = Path(__file__).parent / "formats"


@pytest.fixture
def model() -> Classifier:
    changes = {
        "gelu": "exact",
        "norm_eps": 1e-5,
        "registers": 2,
        "layer_scale": 0.1,
        "drop_path": 0.1,
        "pre_logits": True,
    }
    preprocessing = Preprocessing.timm((16, 24), mean=(0.1, 0.2, 0.3))
    model = create_classifier("vit-ti16", classes=["é", "b b", "c"], preprocessing=preprocessing, **SMALL, **changes)
    model.temperature, model.multi_label = 1.75, True
    return shaken(model).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))


@each_row("name", ["model", "deep/er/model", "model.safetensors"])
def test_loading_gives_what_was_saved(tmp_path, model, images, name):
    path = save_model(tmp_path / name, model, metrics={"top1": 0.5, "map": math.nan}, provenance={"data": "dögs"})
    again = load_model(path)
    assert torch.equal(again(images), model(images))
    for fact in ("classes", "preprocessing", "multi_label", "temperature", "config"):
        assert getattr(again, fact) == getattr(model, fact)
    assert again.provenance == {"data": "dögs"}
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_config_json_is_plain_strict_json(tmp_path, model):
    folder = save_model(tmp_path / "model", model, metrics={"top1": 0.5, "map": math.nan})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    described = json.loads((folder / "config.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert described["format_version"] == 2
    assert described["task"] == "classification"
    assert described["architecture"] == "vit"
    assert described["classes"] == ["é", "b b", "c"]
    assert described["metrics"] == {"top1": 0.5, "map": None}
    assert described["config"]["width"] == 24
    assert described["preprocessing"]["resize"] == "short"


def test_the_provenance_of_loaded_weights_is_kept_when_they_are_saved_again(tmp_path, model):
    first = load_model(save_model(tmp_path / "first", model, provenance={"data": "x"}))
    assert load_model(save_model(tmp_path / "second", first)).provenance == {"data": "x"}


def test_weights_of_lower_precision_are_used_in_fp32(tmp_path, model, images):
    again = load_model(save_model(tmp_path / "model", model.bfloat16()))
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
    assert torch.equal(again(images), model.float()(images))


def test_a_model_folder_is_replaced_whole(tmp_path, model):
    folder = save_model(tmp_path / "model", model)
    model.temperature = 2.5
    save_model(folder, model)
    assert load_model(folder).temperature == 2.5
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model"]
    assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_folder_with_other_things_in_it_is_never_replaced(tmp_path, model):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"is not a model folder \(thesis\.tex\)"):
        save_model(tmp_path, model)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(ConfigError, match="it is a file"):
        save_model(tmp_path / "thesis.tex", model)


@each_row(
    "name, step",
    [
        *(("model", step) for step in ("files.write_bytes", "files.os.rename", "files.sync_folder")),
        *(("model.safetensors", step) for step in ("files.write_bytes", "files.os.replace", "files.sync_folder")),
    ],
)
def test_a_disk_that_fails_at_any_step_leaves_what_was_there(tmp_path, model, monkeypatch, name, step):
    model.temperature = 1.75
    path = save_model(tmp_path / name, model)
    model.temperature = 9.0

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"vitrail.{step}", full)
    with pytest.raises(DiskError, match="the disk is full"):
        save_model(path, model)
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert load_model(path).temperature in ((1.75, 9.0) if step.endswith("sync_folder") else (1.75,))


@each_row("name", ["model", "model.safetensors"])
def test_a_temperature_is_stored_and_nothing_else_changes(tmp_path, model, images, name):
    path = save_model(tmp_path / name, model, metrics={"top1": 0.5}, provenance={"data": "x"})
    written = set_temperature(path, 3.5)
    assert written == (path / "config.json" if name == "model" else path)
    again = load_model(path)
    assert again.temperature == 3.5
    assert again.provenance == {"data": "x"}
    assert torch.equal(again(images), model(images))


def test_foreign_weights_have_no_place_for_a_temperature(tmp_path, model):
    lone = tmp_path / "lone.safetensors"
    lone.write_bytes(native.to_bytes(model.backbone.state_dict()))
    before = lone.read_bytes()
    with pytest.raises(CheckpointError, match="cannot store a temperature"):
        set_temperature(lone, 2.0)
    assert lone.read_bytes() == before


def test_one_flipped_bit_in_the_tensors_of_a_folder_is_refused(tmp_path, model):
    file = save_model(tmp_path / "model", model) / "model.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-5] ^= 1
    file.write_bytes(whole)
    with pytest.raises(CheckpointError, match="does not match its SHA-256"):
        load_model(file.parent)


def changed(folder: Path, **changes: object) -> Path:
    config = folder / "config.json"
    described = {**json.loads(config.read_text()), **changes}
    config.write_text(json.dumps(add_checksum({name: value for name, value in described.items() if value != "gone"})))
    return folder


@each_row(
    "changes, words",
    [
        ({"format_version": 3}, "format version 3; this version of vitrail reads 1 and 2"),
        ({"task": "divination"}, "the task .divination.; this version of vitrail supports classification"),
        ({"format_version": None}, "format version None"),
        ({"architecture": "swim"}, "architecture 'swim'"),
        ({"classes": ["a", "b"]}, "2 class names for 3 outputs"),
        ({"classes": ["a", "b", "a"]}, "repeat"),
        ({"classes": ["a", "b", "\x1b[31mc"]}, r"the class name '\\x1b\[31mc' has control characters"),
        ({"classes": ["a", "b", "\ud800"]}, "a string has a lone surrogate"),
        ({"classes": "gone"}, "it has no 'classes'"),
        ({"config": "gone"}, "it has no 'config'"),
        ({"config": 5}, "cannot be used"),
        ({"config": {"witdh": 24}}, "no field 'witdh'"),
        ({"config": {"width": 1e400}}, "cannot be used"),
        ({"config": {"width": "wide"}}, "width is 'wide'"),
        ({"config": {"depth": 10**9}}, "tensors for 1000000000 blocks"),
        ({"config": {"width": 10**6, "heads": 1}}, "does not fit the model"),
        ({"config": {}}, "does not fit the model"),
        ({"preprocessing": {}}, "cannot be used"),
        ({"preprocessing": {"size": [16, 24], "mean": [0.5], "std": [0.5]}}, "1 channels, the model 3"),
        ({"preprocessing": {"size": [16384, 16384]}}, "images of 16384x16384 pixels, and its network takes 16x24"),
        ({"preprocessing": {"size": [16, 24], "std": [0.5, 0.5, 1e-308]}}, "one positive std of 1e-06 or more"),
        ({"multi_label": "false"}, "multi_label is 'false', and not true or false"),
        ({"multi_label": 1}, "multi_label is 1, and not true or false"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, "could not convert"),
        ({"provenance": 5}, "cannot be used"),
    ],
)
def test_impossible_descriptions_are_refused(tmp_path, model, changes, words):
    folder = save_model(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match=words):
        load_model(changed(folder, **changes))


def test_tensors_that_are_not_the_models_are_all_listed(tmp_path, model):
    folder = save_model(tmp_path / "model", model)
    tensors = load_file(folder / "model.safetensors")
    tensors["extra"] = tensors.pop("cls_token")
    tensors["norm.weight"] = torch.zeros(7)
    (folder / "model.safetensors").write_bytes(native.to_bytes(tensors))
    with pytest.raises(CheckpointError) as caught:
        load_model(changed(folder, sha256=None))
    assert caught.value.value.splitlines() == [
        "missing     cls_token 1x1x24",
        "unexpected  extra 1x1x24",
        "shape       norm.weight is 7, the model has 24",
    ]


def test_the_tensors_of_a_folder_alone_say_what_is_missing(tmp_path, model):
    folder = save_model(tmp_path / "model", model)
    lone = (folder / "model.safetensors").rename(tmp_path / "lone.safetensors")
    with pytest.raises(CheckpointError, match=r"without the config\.json"):
        load_model(lone)


@each_row("version", sorted(path.name for path in OLD.iterdir()))
def test_every_released_format_is_still_read(version):
    model = load_model(OLD / version / "model")
    expected = load_file(OLD / version / "expected.safetensors")
    torch.testing.assert_close(model(expected["images"]), expected["logits"], atol=1e-5, rtol=1e-5)
    facts = json.loads((OLD / version / "expected.json").read_text())
    assert list(model.classes) == facts["classes"]
    assert model.temperature == facts["temperature"]
    assert model.preprocessing.to_dict() == facts["preprocessing"]


def test_the_format_that_is_written_has_its_fixture():
    assert (OLD / f"version-{FORMAT_VERSION}").is_dir()
