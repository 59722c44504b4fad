"""What `vitrail push` uploads is the model, its card as the hub reads it, and nothing about this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, constants

import vitrail
from tests.reports.test_cards import card
from tests.reports.test_cards import run as evaluated_run
from tests.tasks.dense_models import create
from tests.weights.hub_mirror import COMMIT, serve_mirror
from tests.weights.hub_uploads import TOKEN, Uploads, serve_uploads, use_hub
from tests.weights.kinds import a_model
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError
from vitrail.reports.cards import without_folders
from vitrail.tasks.classification.unlikeness import Unlikeness
from vitrail.weights.native import save_model

# of the HTTP library, at how the hub's client calls it
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
BASE = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
HOME = "/home/somebody/secret"
METRICS = {"top1": 0.95, "top1_low": 0.92, "top1_high": 0.98, "nll": 0.14, "images": 153}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    (tmp_path / "hub").mkdir()
    with serve_uploads(tmp_path / "hub") as uploads:
        use_hub(uploads.address, tmp_path / "cache", monkeypatch)
        yield uploads


@pytest.fixture
def a_run(tmp_path: Path) -> Path:
    """The folder of a finished run, whose card and model name folders of this machine."""
    folder = tmp_path / "first"
    origin = {"data": f"{HOME}/photos", "init": f"hf:{BASE}@0123", "layout": "a table of labels (secret.csv); seed 0"}
    save_model(folder / "model", a_model(norm_eps=1e-12, gelu="exact"), metrics=METRICS, provenance=origin)
    facts = {"data": origin["data"], "base": origin["init"], "layout": origin["layout"], "location": str(folder)}
    (folder / "card.md").write_text(card(evaluated_run(classes=("ant", "bee", "cat"), **facts)))
    return folder


def fetch(hub: Uploads, cache: Path, patch: pytest.MonkeyPatch, name: str = "hf:me/bees") -> Any:
    with serve_mirror(hub.root) as (address, _):
        use_hub(address, cache, patch)
        return vitrail.load(name, log=lambda line: None)


def all_text(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.iterdir() if path.suffix in (".md", ".json"))


@pytest.mark.parametrize("layout", ["huggingface", "timm", "native"])
def test_what_is_uploaded_is_the_model_of_the_run_and_names_no_folder_of_it(layout, hub, a_run, tmp_path, monkeypatch):
    pushed = vitrail.push(a_run, "hf:me/bees", layout=layout, message="First")
    assert (pushed.commit, pushed.private, hub.messages) == (COMMIT, False, ["First"])
    folder = hub.root / "me/bees"
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == pushed.files
    text = all_text(folder)
    assert not [word for word in ("secret", "somebody", str(tmp_path), TOKEN) if word in text]
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(
            fetch(hub, tmp_path / "cache", monkeypatch)(images), vitrail.load(a_run)(images), rtol=0, atol=0
        )


def test_the_card_is_what_the_hub_reads(hub, a_run):
    vitrail.push(a_run, "hf:me/bees", licence="apache-2.0")
    page = ModelCard.load(hub.root / "me/bees/README.md")
    data = page.data
    assert (data.license, data.library_name, data.pipeline_tag) == (
        "apache-2.0",
        "transformers",
        "image-classification",
    )
    assert (data.base_model, data.metrics, data.get("datasets")) == (BASE, ["accuracy", "nll"], None)
    found = [
        (each.task_type, each.dataset_name, each.dataset_split, each.metric_type, each.metric_value, each.metric_name)
        for each in data.eval_results
    ]
    of = ("image-classification", "photos", "val")
    assert found == [
        (*of, "accuracy", 0.95, "top-1 accuracy"),
        (*of, "nll", 0.14, "negative log-likelihood"),
    ]
    assert ModelCard(str(page)).data.to_dict() == data.to_dict()
    assert page.text.startswith("\n# bees\n\nAn image classifier with 3 classes")
    assert page.text.count("\n## Usage\n") == 1
    assert "vitrail.load('hf:me/bees')" in page.text and "from_pretrained('me/bees')" in page.text
    assert "This model: apache-2.0." in page.text and "- Source: photos." in page.text


def test_a_model_without_a_run_says_that_nothing_is_known_of_its_training(hub):
    said: list[str] = []
    pushed = vitrail.push(a_model(), "hf:me/bees", layout="timm", log=said.append)
    assert "warning  the card names no licence: give --licence" in said
    assert "nothing is known of its training" in pushed.readme
    assert "from scratch" not in pushed.readme
    data = ModelCard(pushed.readme).data
    assert (data.license, data.library_name, data.eval_results) == ("unknown", "timm", None)


def test_a_model_that_cannot_be_written_keeps_its_provenance():
    model = a_model()
    model.provenance = {"data": f"{HOME}/photos"}
    model.backbone.norm = torch.nn.Identity()
    with pytest.raises(ConfigError, match="the config of the model describes"):
        vitrail.push(model, "hf:me/bees", dry_run=True)
    assert model.provenance == {"data": f"{HOME}/photos"}


def test_data_of_the_hub_are_named_in_the_front_matter(hub, tmp_path):
    model = a_model()
    layout = "hf:datasets/me/photos@0123, without extra (3 files): class folders in train (secret)"
    model.provenance = {"data": "hf:datasets/me/photos/small@main", "init": "vit-ti16", "layout": layout}
    model.provenance["split"] = {"fold": "all", "trained_on": {"0" * 16: "1"}}
    page = ModelCard(vitrail.push(model, "hf:me/bees", dry_run=True).readme)
    assert (page.data.datasets, page.data.base_model) == (["me/photos"], BASE)
    assert "(3 files): class folders in train'" in page.text and "secret" not in page.text
    assert "fold: all" in page.text and "trained_on" not in page.text


@pytest.mark.parametrize("head", ["license: foo: bar", "model-index: 3", "- a list"])
def test_a_card_whose_fields_cannot_be_read_is_an_error(head, a_run):
    (a_run / "card.md").write_text(f"---\n{head}\n---\n# Bees\n")
    with pytest.raises(ConfigError, match="the fields at the head of the card cannot be read"):
        vitrail.push(a_run, "hf:me/bees", dry_run=True)


def test_a_run_that_began_from_another_is_said_to_begin_from_it():
    assert without_folders("runs/first/model") == without_folders("/home/runs/first") == "first"


def test_the_default_layout_loses_nothing_of_the_model(hub):
    said: list[str] = []

    def layout_of(model: Any) -> str:
        return vitrail.push(model, "hf:me/bees", dry_run=True, log=said.append).layout

    assert layout_of(a_model(norm_eps=1e-12, gelu="exact")) == "huggingface"
    assert layout_of(a_model(registers=3)) == "timm"
    assert "not huggingface: " in said[-2]
    assert layout_of(create("detection", classes=("cat", "dog"))) == "native"
    assert "not timm: backbone only" in said[-2]
    stranger = a_model(norm_eps=1e-12, gelu="exact")
    stranger.set_unlikeness(Unlikeness(24, 3), 0.05)
    assert layout_of(stranger) == "native"
    assert "left out: what tells images unlike" in said[-2]


def test_a_dry_run_needs_no_token_and_no_network_and_writes_nothing(a_run, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = sorted(tmp_path.rglob("*"))
    assert run(["push", str(a_run), "hf:me/bees", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("model.safetensors", f"{a_run}/card.md", "# bees", "library_name"))
    assert run(["push", str(a_run), "hf:me/bees", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commit"] is None
    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_other_tools_that_stay_beside_are_named(hub, a_run):
    folder = hub.root / "me/bees"
    folder.mkdir(parents=True)
    for name in ("pytorch_model.bin", "notes.txt", "config.json"):
        (folder / name).write_text("old")
    said: list[str] = []
    vitrail.push(a_run, "hf:me/bees", licence="mit", log=said.append)
    assert [line for line in said if line.startswith("warning")] == [
        "warning  these files stay beside the model, and some tools may open them: pytorch_model.bin"
    ]
    assert (folder / "pytorch_model.bin").read_text() == "old"
    assert json.loads((folder / "config.json").read_text())["model_type"]


def test_a_public_repository_is_not_taken_for_a_private_one(hub, a_run):
    assert vitrail.push(a_run, "hf:me/own", private=True).private
    (hub.root / "me/bees").mkdir()
    with pytest.raises(ConfigError, match="me/bees is public"):
        vitrail.push(a_run, "hf:me/bees", private=True)
    assert list((hub.root / "me/bees").iterdir()) == []
    assert hub.private == {"me/own"}


@pytest.mark.parametrize(
    "name", ["me/bees", "hf:bees", "hf:me/bees@main", "hf:me/be..es", "hf:me/bees.git", "hf:a/b/c"]
)
def test_a_malformed_name_is_refused_at_once(name, tmp_path):
    with pytest.raises(ConfigError, match="not the name of a repository"):
        vitrail.push(tmp_path / "missing", name)


def test_without_a_token_or_a_network_nothing_is_converted(hub, monkeypatch, tmp_path):
    for token, words in ((None, "there is none"), ("hf_\x07abc", "has characters")):
        monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        with pytest.raises(ConfigError, match=words) as refused:
            vitrail.push(tmp_path / "missing", "hf:me/bees")
        assert "hf auth login" in refused.value.remedy and "abc" not in str(refused.value)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        vitrail.push(tmp_path / "missing", "hf:me/bees")


def test_a_refusal_of_the_hub_is_explained_without_the_token(hub, a_run, monkeypatch):
    with pytest.raises(ConfigError, match=r"nothing was uploaded to you/bees: .*the rights") as refused:
        vitrail.push(a_run, "hf:you/bees")
    assert "may write there" in refused.value.remedy
    hub.full = True
    with pytest.raises(ConfigError, match=r"me/bees, which was created and is empty: .*Storage limit"):
        vitrail.push(a_run, "hf:me/bees")
    hub.full = False
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match="nothing was uploaded") as lost:
        vitrail.push(a_run, "hf:me/bees")
    assert TOKEN not in f"{refused.value}{lost.value}"
