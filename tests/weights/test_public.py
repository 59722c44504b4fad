"""Public weights by the names of the models: every name leads to its model, and what is downloaded is verified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import GatedRepoError

import vitrail
from tests.each_row import each_row
from tests.weights.hub_mirror import COMMIT, serve_mirror
from tests.weights.untrusted import sound, timm_folder
from vitrail import weights
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import MODELS
from vitrail.models.family import translate_model
from vitrail.weights import resolve as hub
from vitrail.weights.public import PUBLIC, find_public, list_public

REPOSITORY = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def test_every_repository_is_one_of_its_model_and_every_tag_is_unique():
    for model, repositories in PUBLIC.items():
        assert model in MODELS
        assert len(list_public(model)) == len(repositories), "two repositories have one tag"
        for repository in repositories:
            size = "-384" if model.startswith("swin") and model.endswith("384") else ""
            named = translate_model(repository)
            assert "dinov2" in repository or named == model or f"{named}{size}" == model, repository


def test_tags_name_the_training_and_the_size_where_it_is_another():
    assert list(list_public("vit-ti16")) == ["augreg-in21k-ft-in1k", "augreg-in21k-ft-in1k-384", "augreg-in21k"]
    assert list(list_public("vit-l32")) == ["orig-in21k-ft-in1k-384", "google-384", "google-in21k"]
    assert list(list_public("cait-xs24")) == ["fb-dist-in1k"]  # 384 is its own size
    assert find_public("vit-b14", "dinov2-registers").repository == "facebook/dinov2-with-registers-base"
    licences = {find_public(*name).licence for name in (("swin-t",), ("vit-b16", "mae"), ("vit-b16",))}
    assert licences == {"MIT", "CC-BY-NC-4.0", "Apache-2.0"}


@each_row(
    "arguments, words",
    [
        ({"name": "vit-b16", "pretrained": "augreg"}, "did you mean 'augreg-in1k'"),
        ({"name": "pvt-tiny", "pretrained": True}, "no public weights of pvt-tiny are known"),
        ({"name": "vit-b61", "pretrained": True}, "did you mean 'vit-b16'"),
        ({"name": "vit-b16", "pretrained": True, "widht": 3}, "did you mean 'width'"),
        ({"name": MODELS["vit-b16"], "pretrained": True}, "give the name of a model"),
        (
            {"name": "vit_base_patch16_224.augreg_in21k", "pretrained": True},
            r"create_model\('vit-b16', pretrained='augreg-in21k'\)",
        ),
    ],
)
def test_a_mistake_is_refused_before_anything_is_downloaded(arguments, words, monkeypatch):
    monkeypatch.setattr(weights, "resolve_model", None)
    with pytest.raises(ConfigError, match=words):
        vitrail.create_model(**arguments)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """The folder of a mirror with one repository: a small ViT in timm's layout."""
    folder = tmp_path / "mirror" / REPOSITORY
    folder.mkdir(parents=True)
    timm_folder()(folder)
    return tmp_path / "mirror"


PROGRAM = """
import json, sys, vitrail
from vitrail.errors import VitrailError
for line in sys.stdin:
    try:
        model = vitrail.create_model(pretrained=True, **json.loads(line))
    except VitrailError as error:
        told = {"error": str(error)}
    else:
        state = model.backbone.state_dict()
        told = {"norm": state["norm.weight"].tolist(), "outputs": len(model.classes), "training": model.training,
                "head": float(state["head.weight"].abs().max())}
    print(json.dumps(told), flush=True)
"""


@pytest.mark.slow
def test_weights_come_from_a_mirror_once_and_are_verified_afterwards(mirror, tmp_path):
    home = tmp_path / "home"

    def ask(**arguments: object) -> dict:
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with serve_mirror(mirror) as (address, asked), open(tmp_path / "said", "w+") as said:
        environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_ENDPOINT": address, "HF_HOME": str(home)}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        first = ask(name="vit-ti16")
        assert "error" not in first, first
    with process:
        assert first["norm"] == pytest.approx(sound()["norm.weight"].tolist())
        assert (first["outputs"], first["training"]) == (3, True)
        assert any("model.safetensors" in path for path in asked)
        (blob,) = [path for path in home.rglob("model*.safetensors") if COMMIT in str(path)]
        told = (tmp_path / "said").read_text()
        assert f"hf:{REPOSITORY}, licence Apache-2.0" in told
        assert f"SHA-256  {blob.resolve().name}" in told
        offline = ask(name="vit-ti16", classes=["ant", "bee"])
        assert (offline["outputs"], offline["head"], offline["norm"]) == (2, 0.0, first["norm"])
        content = bytearray(blob.read_bytes())
        content[-1] ^= 1
        blob.resolve().write_bytes(content)
        assert "does not match the SHA-256 of the hub" in ask(name="vit-ti16")["error"]
        missing = ask(name="vit-s16")["error"]
        assert "is not in the local cache of the hub and cannot be downloaded" in missing


def test_gated_weights_show_it_and_without_access_the_remedy_and_no_traceback(monkeypatch, capsys):
    assert run(["models", "dinov3-s16"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "dinov3-" in line and "hf:" in line]
    assert [line.endswith("DINOv3 License, gated") for line in shown] == ["facebook/" in line for line in shown]

    def refuse(*arguments: object, **keywords: object) -> None:
        raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr("vitrail.weights.hub.find_cached", lambda *arguments: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    for words in (
        ["embed", "hf:facebook/dinov3-vits16-pretrain-lvd1689m@main", "x.png", "--out", "x.csv"],
        ["weights", "get", "dinov3-s16:facebook-lvd1689m"],
    ):
        assert run(words) == 2
        told = capsys.readouterr().err
        assert "accept its licence on its page of the hub" in told and "hf auth login" in told
        assert "hf:timm/vit_small_patch16_dinov3.lvd1689m" in told and "Traceback" not in told


def test_a_damaged_file_of_the_cache_is_named(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir()
    folder.mkdir()
    (blobs / ("0" * 64)).write_bytes(b"something else")
    (folder / "model.safetensors").symlink_to(blobs / ("0" * 64))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **given: str(folder))
    with pytest.raises(CheckpointError, match=r"does not match the SHA-256 of the hub, 0{64}") as error:
        hub.fetch("hf:owner/name")
    assert str(blobs / ("0" * 64)) in str(error.value)


def test_a_new_head_and_other_sizes_are_adapted(tmp_path, monkeypatch):
    folder, resolve = timm_folder()(tmp_path), weights.resolve_model
    monkeypatch.setattr(weights, "resolve_model", lambda source: resolve(folder))
    lines: list[str] = []
    model = vitrail.create_model("vit-ti16", pretrained=True, classes=5, image_size=64, in_channels=1, log=lines.append)
    assert lines[0] == f"weights  hf:{REPOSITORY}, licence Apache-2.0"
    assert model.classes == tuple("01234") and not model.backbone.state_dict()["head.weight"].any()
    assert model(torch.zeros(1, 1, 64, 64)).shape == (1, 5)
    assert torch.equal(model.backbone.state_dict()["norm.weight"], sound()["norm.weight"])
    several = vitrail.create_model("vit-ti16", pretrained=True, classes=["a", "b"], multi_label=True, log=lines.append)
    assert several.multi_label
