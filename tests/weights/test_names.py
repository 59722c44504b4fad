"""Public weights by the names that people know: of our models, of timm, and with a tag."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from tests.each_row import each_row
from tests.weights.hub_cache import fill_cache, use_cache
from tests.weights.hub_mirror import COMMIT
from tests.weights.untrusted import sound
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError
from vitrail.weights.hub import find_cached
from vitrail.weights.public import PUBLIC
from vitrail.weights.resolve import resolve_model

DEFAULT, OTHER = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "timm/vit_tiny_patch16_224.augreg_in21k"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    use_cache(tmp_path / "hub", monkeypatch)
    fill_cache(tmp_path / "hub", DEFAULT, OTHER)
    return tmp_path / "hub"


@each_row(
    "name, repository",
    [
        ("vit-ti16", DEFAULT),
        ("vit-ti16:augreg-in21k", OTHER),
        ("vit_tiny_patch16_224.augreg_in21k", OTHER),
        ("timm/vit_tiny_patch16_224.augreg_in21k", OTHER),
        (f"hf:{DEFAULT}", DEFAULT),
        (f"hf:{DEFAULT}@{COMMIT}", DEFAULT),
    ],
)
def test_a_name_leads_to_the_weights_in_the_cache(cache, name, repository):
    resolved = resolve_model(name)
    assert (resolved.origin, resolved.name) == (f"hf:{repository}@{COMMIT}", repository.partition("/")[2])
    model = vitrail.load(name, log=lambda line: None)
    assert torch.equal(model.backbone.state_dict()["norm.weight"], sound()["norm.weight"])
    assert model.provenance["weights"] == resolved.origin


def test_a_file_of_that_name_comes_first(cache):
    save_file(sound(), "vit-ti16")
    with pytest.raises(CheckpointError, match="vit-ti16 is not a known format"):
        resolve_model("vit-ti16")


@each_row(
    "name, words",
    [
        ("vit-ti16:augrg-in21k", "did you mean 'augreg-in21k'"),
        ("vit_tiny_patch16_224.safetensors", "vitrail weights get vit-ti16 --out vit-ti16.safetensors"),
        ("vit_base_patch16_224.pth", "such as vit-b16"),
        ("somewhere/model.safetensors", "vitrail weights get"),
        ("vit-t16", "did you mean 'vit-ti16'"),
        ("pvt-tiny", "no public weights of pvt-tiny are known"),
    ],
)
def test_missing_weights_are_an_error_that_names_public_ones(cache, name, words):
    with pytest.raises(ConfigError, match=words):
        resolve_model(name)


def test_weights_outside_of_the_cache_need_a_network(cache):
    with pytest.raises(
        CheckpointError, match=r"HF_HUB_OFFLINE is set\n.*vitrail weights get hf:timm/vit_small"
    ) as error:
        resolve_model("vit-s16")
    assert f"--out FILE{'.safetensors'}" in str(error.value)


def test_a_download_that_was_interrupted_is_not_taken_for_the_whole(cache):
    (snapshot,) = cache.glob(f"*{DEFAULT.partition('/')[2]}/snapshots/*")
    (snapshot / "model.safetensors").rename(snapshot / "model-1.safetensors")
    shards = {"weight_map": {"norm.weight": "model-1.safetensors", "head.weight": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(shards))
    assert find_cached(OTHER) is not None
    assert find_cached(DEFAULT) is None
    with pytest.raises(CheckpointError, match="not copied whole"):
        vitrail.load("vit-ti16")


def test_public_weights_become_one_file_for_a_machine_without_a_network(cache, capsys, monkeypatch):
    found = vitrail.get_weights("vit-ti16", out="ti.safetensors", log=lambda line: None)
    assert (found.name, found.model, found.licence) == (f"hf:{DEFAULT}@{COMMIT}", "vit-ti16", "Apache-2.0")
    assert found.path == Path("ti.safetensors")
    monkeypatch.setattr("vitrail.weights.hub.fetch", None)  # nothing is asked of the hub
    model = vitrail.load("ti.safetensors")
    assert torch.equal(model.backbone.state_dict()["norm.weight"], sound()["norm.weight"])
    assert (len(model.classes), model.provenance["weights"]) == (3, found.name)
    assert run(["weights", "get", "vit-ti16", "--out", "ti.safetensors"]) == 2
    assert "ti.safetensors exists" in capsys.readouterr().err


def test_a_repository_may_be_downloaded_by_its_name_and_an_unknown_name_is_refused(cache, capsys):
    assert run(["weights", "get", f"hf:{OTHER}", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model"], facts["classes"]) == ("vit-ti16", 3)
    assert (Path(facts["path"]) / "model.safetensors").exists()
    assert run(["weights", "get", "vit-t16"]) == 2
    assert "did you mean 'vit-ti16'" in capsys.readouterr().err
    assert set(PUBLIC) <= vitrail.list_models().keys()
