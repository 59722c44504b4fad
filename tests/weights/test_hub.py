"""Models of the hub by name: what is fetched is a folder like any other, and what cannot be fetched is told at once."""

from __future__ import annotations

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError

from tests.each_row import each_row
from tests.weights.hub_cache import fill_cache, use_cache
from tests.weights.hub_mirror import COMMIT
from tests.weights.test_openclip import make_tower, write_folder
from tests.weights.untrusted import sharded, sound, timm_folder
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError
from vitrail.weights import load


@pytest.fixture
def asked(tmp_path, monkeypatch) -> list[dict]:
    """What the hub was asked for; whatever that is, it gives the folder ``fetched``."""
    calls: list[dict] = []

    def snapshot_download(name: str, *, local_files_only: bool = False, dry_run: bool = False, **told: object) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not in the cache")
        if dry_run:
            raise DryRunError("no network")
        calls.append({"name": name, **told})
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    (tmp_path / "fetched").mkdir()
    return calls


def test_a_name_of_the_hub_is_fetched_and_read_as_a_folder(asked, tmp_path):
    timm_folder()(tmp_path / "fetched")
    model = load("hf:owner/name@v1.0", log=lambda line: None)
    assert torch.equal(model.backbone.state_dict()["norm.weight"], sound()["norm.weight"])
    assert [(call["name"], call["revision"]) for call in asked] == [("owner/name", "v1.0")]


def test_shards_are_read_through_the_links_of_the_hubs_cache(asked, tmp_path, monkeypatch):
    blobs, folder = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for path in list(sharded()(tmp_path / "fetched").iterdir()):
        (folder / path.name).symlink_to(path.rename(blobs / path.name))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **told: str(folder))
    model = load("hf:owner/name", log=lambda line: None)
    assert torch.equal(model.backbone.state_dict()["norm.weight"], sound()["norm.weight"])


def test_no_code_is_fetched_and_a_pickle_only_where_there_is_nothing_else(asked, tmp_path):
    with pytest.raises(CheckpointError, match="is not a model"):
        load("hf:owner/name")
    first, second, third = asked
    assert first["allow_patterns"] == ["*.json", "model*.safetensors"]
    assert second["allow_patterns"] == ["*.json", "open_clip_model.safetensors"]
    assert third["allow_patterns"] == ["*.json", "pytorch_model*.bin"]
    assert [call["ignore_patterns"] for call in asked] == [["*/*"]] * 3


def test_files_of_open_clip_are_fetched_where_there_are_none_of_timm_or_transformers(asked, tmp_path):
    write_folder(make_tower(), tmp_path / "fetched", head_width=64)
    model = load("hf:owner/name", log=lambda line: None)
    assert model.provenance["layout"] == "open_clip"
    assert [call["allow_patterns"][1] for call in asked] == ["model*.safetensors", "open_clip_model.safetensors"]
    timm_folder()(tmp_path / "fetched")
    load("hf:owner/name", log=lambda line: None)
    assert len(asked) == 3


def test_files_of_open_clip_in_the_cache_are_read_without_a_network(tmp_path, monkeypatch):
    use_cache(tmp_path, monkeypatch)
    fill_cache(tmp_path, "owner/name")
    folder = tmp_path / "models--owner--name" / "snapshots" / COMMIT
    (folder / "model.safetensors").unlink()
    write_folder(make_tower(), folder, head_width=64)
    assert load("hf:owner/name", log=lambda line: None).provenance["layout"] == "open_clip"


@each_row("name", ["hf:", "hf:name", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b@../c", "hf:a b/c", "hf:a/b@"])
def test_invalid_hub_names_are_refused_before_any_request(asked, name):
    with pytest.raises(ConfigError, match="is not the name of a model on the hub"):
        load(name)
    assert asked == []


def test_a_model_that_the_hub_has_not_is_a_mistake_of_the_command(monkeypatch):
    def snapshot_download(name: str, **told: object) -> str:
        raise huggingface_hub.errors.HFValidationError("no such name\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ConfigError, match="hf:owner/name cannot be downloaded from the hub: no such name") as caught:
        load("hf:owner/name")
    assert "and more" not in str(caught.value)


def test_offline_and_not_fetched_before_is_one_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert run(["predict", "hf:owner/name", __file__]) == 4
    said = capsys.readouterr().err
    assert said.startswith("error: hf:owner/name is not in the local cache of the hub and cannot be downloaded")
    assert "HF_HUB_OFFLINE" in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 3
