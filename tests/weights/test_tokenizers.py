"""Weights of tokenizers: they come back as they were, are replaced whole, and are told from models and from rubbish."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.each_row import each_row
from tests.models.conftest import shaken
from tests.weights.kinds import a_model
from vitrail.checksums import add_checksum
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError, DiskError
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.weights import load
from vitrail.weights.native import save_model, set_temperature
from vitrail.weights.tokenizers import load_tokenizer, save_tokenizer

PREPROCESSING = Preprocessing(size=(8, 12), mean=(0.1, 0.2), std=(0.3, 0.4))


def silent(line: str) -> None:
    """Takes what loading says."""


def small(**changes: Any) -> Tokenizer:
    """Numbers of some size in every tensor."""
    model = Tokenizer(
        TokenizerConfig(**{"in_channels": 2, "patch_size": (4, 2), "width": 8, "levels": (4, 3), **changes})
    )
    shaken(model)
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path / "tokenizer", small(), PREPROCESSING, {"data": "dögs"})


def described(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edits ``config.json``."""
    description = json.loads((folder / "config.json").read_text())
    edit(description)
    (folder / "config.json").write_text(json.dumps(add_checksum(description)))


def test_a_tokenizer_comes_back_as_it_was(folder):
    again, preprocessing, provenance = load_tokenizer(folder, silent)
    tokenizer = small()
    images = torch.randn(3, 2, 8, 12)
    assert again.config == tokenizer.config
    assert preprocessing == PREPROCESSING
    assert provenance == {"data": "dögs"}
    assert torch.equal(again.encode(images), tokenizer.encode(images))
    assert torch.equal(again(images)[0], tokenizer(images)[0])
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())


@each_row("inside", ["", "model.safetensors"])
def test_a_run_directory_and_a_file_of_the_folder_stand_for_it(tmp_path, inside):
    save_tokenizer(tmp_path / "run" / "model", small(), PREPROCESSING)
    (tmp_path / "run" / "config.yaml").write_text("{}")
    path = tmp_path / "run" / "model" / inside if inside else tmp_path / "run"
    assert load_tokenizer(path, silent).tokenizer.config == small().config


def test_a_folder_is_replaced_whole_and_never_where_it_holds_other_things(folder, tmp_path):
    save_tokenizer(folder, small(levels=(5, 5)), PREPROCESSING)
    assert load_tokenizer(folder, silent).tokenizer.config.levels == (5, 5)
    assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer"]
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"is not a model folder \(thesis\.tex\)"):
        save_tokenizer(folder, small(), PREPROCESSING)


@pytest.mark.parametrize("step", ["files.write_bytes", "files.os.rename", "files.sync_folder"])
def test_a_disk_that_fails_leaves_the_old_or_the_new_one_whole(folder, tmp_path, monkeypatch, step):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(f"vitrail.{step}", full)
        with pytest.raises(DiskError, match="the disk is full"):
            save_tokenizer(folder, small(levels=(5, 5)), PREPROCESSING)
    assert load_tokenizer(folder, silent).tokenizer.config.levels in ((4, 3), (5, 5))
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer"]


def test_a_tokenizer_is_no_model_and_a_model_is_no_tokenizer(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"is a tokenizer(.|\n)*--tokenizer RUN"):
        load(folder, log=silent)
    with pytest.raises(CheckpointError, match="is a tokenizer"):
        set_temperature(folder, 2.0)
    model = save_model(tmp_path / "model", a_model())
    for path in (model, save_model(tmp_path / "model.safetensors", a_model())):
        with pytest.raises(CheckpointError, match=r"is not a tokenizer(.|\n)*--objective tokenizer"):
            load_tokenizer(path, silent)
    with pytest.raises(ConfigError, match="there are no weights"):
        load_tokenizer(tmp_path / "nothing", silent)


def test_weights_that_were_changed_do_not_match(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its SHA-256"):
        load_tokenizer(folder, silent)


@each_row(
    "edit, message",
    [
        (lambda it: it.update(format_version=3), "format version 3"),
        (lambda it: it.pop("sha256"), "does not match its SHA-256"),
        (lambda it: it.pop("config"), "it has no 'config'"),
        (lambda it: it.pop("preprocessing"), "it has no 'preprocessing'"),
        (lambda it: it.update(config=7), "cannot be used"),
        (lambda it: it.update(provenance=7), "cannot be used"),
        (lambda it: it["config"].update(levels=[2] * 99), "cannot be used"),
        (lambda it: it["config"].update(levels="88"), "cannot be used"),
        (lambda it: it["config"].update(depths=1), "no field 'depths'"),
        (lambda it: it["config"].update(depth=10**9), "does not fit the model"),
        (lambda it: it["config"].update(width=2**62), "does not fit the model"),
        (lambda it: it["config"].update(width=9), "does not fit the model"),
        (lambda it: it["preprocessing"].update(mean=[0.5], std=[0.5]), "but its preprocessing 1"),
    ],
)
def test_a_description_that_cannot_be_meant_is_refused(tmp_path, edit, message):
    folder = save_tokenizer(tmp_path / "tokenizer", small(), PREPROCESSING)
    described(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder, silent)


def test_weights_that_are_not_finite_are_reported(tmp_path):
    broken = small()
    with torch.no_grad():
        broken.pixels.bias[0] = torch.nan
    told: list[str] = []
    load_tokenizer(save_tokenizer(tmp_path / "broken", broken, PREPROCESSING), told.append)
    assert told == [
        "warning  broken: NaN or infinity in 1 tensors, such as pixels.bias: its predictions are meaningless"
    ]


def test_the_file_is_plain_safetensors(folder):
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == small().state_dict().keys()


def test_lower_precision_is_used_in_fp32(tmp_path):
    again = load_tokenizer(save_tokenizer(tmp_path / "half", small().bfloat16(), PREPROCESSING), silent).tokenizer
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
