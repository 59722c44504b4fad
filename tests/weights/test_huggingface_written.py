"""Folders for transformers: it reads what is written, with the same answers, and our own comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.each_row import each_row
from tests.models.conftest import SMALL, shaken
from tests.models.theirs import edited, pooled
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config, ViTConfig, create_backbone
from vitrail.models.beit import BEiTConfig
from vitrail.models.cait import CaiTConfig
from vitrail.models.pvt import PVTConfig
from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.models.resnet import ResNetConfig
from vitrail.models.swin import SwinConfig
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.weights import load
from vitrail.weights.huggingface import FAMILIES, PROCESSOR, to_huggingface

EXACT = {**SMALL, "gelu": "exact", "position_resize": "bicubic", "classes": 3}
TWO = ("cls", "dist")
SWIN = SwinConfig(image_size=24, classes=3, width=8, depths=(1, 2), heads=(1, 2), window=3)
BEIT = BEiTConfig(image_size=32, classes=3, patch_size=8, width=12, depth=2, heads=3, mlp_width=20)
PYRAMID = {"widths": (8, 12, 12, 16), "depths": (1, 2, 1, 1), "heads": (1, 2, 3, 2), "mlp_ratios": (3, 2, 2, 2)}
PVT = PVTConfig(image_size=32, classes=3, **PYRAMID, reductions=(4, 2, 2, 1), conv_norm_eps=1e-6)
BIT = ResNetConfig(image_size=32, classes=3, depths=(1, 1))
PVT_V2 = PVTv2Config(image_size=64, classes=3, **PYRAMID, reductions=(4, 3, 2, 1), conv_norm_eps=1e-6)
DINO = {**EXACT, "layer_scale": 0.1, "pool": "cls+gap", "mlp_width": 48, "norm_eps": 1e-3}

# what transformers can say, and how many notes it takes
OURS: dict[str, tuple[Config | dict[str, Any], int]] = {
    "ViT": (EXACT, 0),
    "paper's numerics": ({**SMALL, "classes": 3, "qkv_bias": False, "in_channels": 4}, 1),
    "bare": ({**EXACT, "classes": 0}, 1),
    "oblong": ({**EXACT, "image_size": (24, 40), "patch_size": (8, 4)}, 0),
    "padded": ({**EXACT, "pad": True}, 1),
    "computed positions": ({**EXACT, "positions": "sincos2d"}, 1),
    "no positions": ({**EXACT, "positions": "none", "positions_at": "every"}, 0),
    "no position of the class token": ({**EXACT, "prefix_positions": False}, 0),
    "DeiT": ({**EXACT, "prefix": TWO, "norm_eps": 1e-3}, 0),
    "DeiT read by one head": ({**EXACT, "prefix": TWO, "pool": "cls-only", "prefix_positions": False}, 0),
    "bare DeiT": ({**EXACT, "prefix": TWO, "classes": 0}, 1),
    "DINOv2": (DINO, 0),
    "bare DINOv2": ({**DINO, "classes": 0, "pool": "cls"}, 0),
    "registers": ({**DINO, "registers": 2, "position_resize": "bicubic-antialias"}, 0),
    "Swin": (SWIN, 1),
    "bare Swin": (replace(SWIN, classes=0, patch_size=(4, 2), image_size=(24, 36), gelu="tanh"), 1),
    "BEiT": (replace(BEIT, bias_resize="bilinear"), 0),
    "BEiT's own numerics": (replace(BEIT, relative_bias="shared", positions=True, pool="cls", layer_scale=None), 1),
    "bare BEiT": (replace(BEIT, relative_bias="none", classes=0, image_size=(24, 40)), 0),
    "PVT": (PVT, 1),
    "bare PVT": (replace(PVT, classes=0, position_resize="paper", gelu="tanh"), 1),
    "PVT v2": (PVT_V2, 0),
    "BiT": (replace(BIT, standardise="timm"), 0),
    "bare BiT": (replace(BIT, standardise="timm", classes=0, in_channels=1, width_factor=2, depths=(1,)), 0),
    "narrow BiT": (replace(BIT, standardise="timm", stem_width=32, depths=(1,)), 0),
    "bare PVT v2": (replace(PVT_V2, classes=0, linear=True, image_size=(50, 40)), 0),
}
REFUSED: dict[str, Config | dict[str, Any]] = {
    "windows of 3 in a map of 2x3": replace(SWIN, image_size=(16, 24)),
    "norm_eps=1e-06": replace(SWIN, norm_eps=1e-6),
    "relative positions of 3x5 patches": replace(BEIT, image_size=(24, 40)),
    "LayerScale that starts at 0": replace(BEIT, layer_scale=0.0),
    "a patch that is not square": replace(PVT_V2, patch_size=(4, 8)),
    "group_norm_eps=1e-06": replace(BIT, group_norm_eps=1e-6),
    "the stem 'small'": replace(BIT, stem="small"),
    "a stem of convolutions": {"stem": (), "stem_width": 32},
    "3 stages": replace(
        PVT, **{name: getattr(PVT, name)[1:] for name in ("depths", "widths", "heads", "mlp_ratios", "reductions")}
    ),
    "patches that are not 4x4": replace(PVT, patch_size=2),
    "an image that is not square": replace(PVT, image_size=(64, 32)),
    "a CaiT": CaiTConfig(classes=3, depth=1, width=12, heads=3),
    "pool='gap'": {"pool": "gap"},
    "pool='map'": {"pool": "map"},
    r"pool='cls\+gap'": {"pool": "cls+gap"},
    "pool='cls'": {**DINO, "pool": "cls"},
    "LayerScale": {"layer_scale": 0.1, "prefix": TWO},
    "registers": {"registers": 2, "prefix": TWO},
    "registers without LayerScale": {"registers": 2, "pool": "cls+gap"},
    "an MLP 24 wide, no multiple of 16": {**DINO, "mlp_width": 24},
    "relative positions": {"positions": "relative"},
    "learned2d positions, stem": {"positions": "learned2d"},
    "learned positions, every": {"positions_at": "every"},
    "a hidden layer": {"pre_logits": True},
    "blocks without skips": {"skips": False},
    "windows of 2 patches": {"window": 2, "global_blocks": 1},
    "padding": {"pad": True, "image_size": 30},
    r"the prefix \(\)": {"prefix": (), "pool": "gap", "registers": 1, "layer_scale": 0.1},
}


def silent(line: str) -> None:
    """Takes what `load` says."""


def a_classifier(config: Config | dict[str, Any]) -> Classifier:
    """One of ours, of a config or of a ViT's fields."""
    backbone = shaken(create_backbone(ViTConfig(**config) if isinstance(config, dict) else config)).eval()
    config = backbone.config
    mean, std = (tuple(start + place / 8 for place in range(config.in_channels)) for start in (0.4, 0.2))
    preprocessing = Preprocessing(size=config.image_size, mean=mean, std=std)
    names = ["ant", "bee", "Kätzchen"][: config.classes]
    return Classifier(backbone, names, preprocessing, multi_label=True, temperature=2.5, provenance={"run": 7}).eval()


def written(classifier: Classifier, folder: Path) -> Path:
    tensors, config, preprocessor, _ = to_huggingface(classifier)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / PROCESSOR).write_text(json.dumps(preprocessor))
    return folder


def assert_same(model: Classifier, other: Classifier) -> None:
    assert (model.config, model.classes, model.preprocessing) == (other.config, other.classes, other.preprocessing)
    assert (model.multi_label, model.temperature) == (other.multi_label, other.temperature)
    state = other.backbone.state_dict()
    assert model.backbone.state_dict().keys() == state.keys()
    assert all(torch.equal(each, state[name]) for name, each in model.backbone.state_dict().items())


@pytest.mark.slow
@each_row("kind", OURS)
def test_transformers_reads_what_is_written(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    config, notes = OURS[kind]
    model = a_classifier(config)
    folder = written(model, tmp_path)
    described = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, described["architectures"][0])
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    theirs, found = kind.from_pretrained(folder, output_loading_info=True)
    assert not found["unexpected_keys"] and not found["mismatched_keys"]
    assert all(name.startswith("pooler.") or name.endswith("mask_token") for name in found["missing_keys"])
    images = torch.randn(
        2, model.config.in_channels, *model.config.image_size, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        given, expected = theirs.eval()(images), model(images)
    answer = given.logits if model.classes else pooled(given, model.config)
    torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5)
    if model.classes:
        assert theirs.config.id2label == dict(enumerate(model.classes))
        assert theirs.config.problem_type == "multi_label_classification"
    assert len(to_huggingface(model).notes) == notes + 1  # and the temperature
    # and once transformers has saved it again, it is still what it was
    theirs.save_pretrained(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again", log=silent)(images), model(images))


@pytest.mark.slow
@each_row("kind", OURS)
def test_written_models_are_read_back_without_assumptions(kind, tmp_path):
    model = a_classifier(OURS[kind][0])
    said: list[str] = []
    again = load(written(model, tmp_path), log=said.append)
    assert_same(again, model)
    assert said == []
    assert again.provenance == {"weights": tmp_path.name, "layout": "Hugging Face"}


@each_row("words", REFUSED)
def test_models_without_a_transformers_counterpart_are_refused(words):
    config = REFUSED[words]
    model = a_classifier({**SMALL, "classes": 3, **config} if isinstance(config, dict) else config)
    with pytest.raises(CheckpointError, match=f"no counterpart of {words}"):
        to_huggingface(model)


def test_a_model_with_too_many_stages_is_refused():
    with pytest.raises(CheckpointError, match="no counterpart of 5 stages that halve the map"):
        FAMILIES["bit"].write(replace(BIT, depths=(1,) * 5))


def test_each_difference_at_other_sizes_is_noted():
    notes = to_huggingface(a_classifier({**SMALL, "classes": 0, "pad": True})).notes
    assert [len([note for note in notes if word in note]) for word in ("'paper' in vitrail", "padded", "pooler")] == [
        1
    ] * 3
    assert notes[-1] == "the temperature 2.5 is not applied by transformers"


@each_row("rule", ["bit", "vit"])
def test_kernels_are_written_standardised_for_another_rule_than_theirs(rule, tmp_path):
    model = a_classifier(replace(BIT, standardise=rule))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert f"kernels are written standardised by {rule!r}" in to_huggingface(model).notes[0]
    again = load(written(model, tmp_path), log=silent)
    assert again.config.standardise == rule
    torch.testing.assert_close(again(images), model(images), atol=1e-4, rtol=1e-4)
    kernel = again.backbone.state_dict()["stages.0.blocks.0.conv2.weight"]
    torch.testing.assert_close(kernel.flatten(1).var(1, correction=0), torch.ones(64), atol=1e-3, rtol=0)


WITHOUT_IT = "vitrail's description in config.json"


@each_row(
    "change",
    [
        lambda described: described.update(layer_norm_eps=1e-3),
        lambda described: described["vitrail"]["config"].update(gelu="tanh"),
        lambda described: described["vitrail"]["config"].update(image_size=[16 * 10**12, 32]),
        lambda described: described["vitrail"]["config"].update(prefix=["cls", "dist"]),
        lambda described: described["vitrail"].update(architecture="resnet"),
        lambda described: described["vitrail"].update(format_version=3),
        lambda described: described["vitrail"].update(temperature=-1),
        lambda described: described["vitrail"].update(temperature="hot"),
        lambda described: described["vitrail"].update(digest="0"),
        lambda described: described["vitrail"].pop("preprocessing"),
        lambda described: described.update(vitrail=[1]),
    ],
)
def test_our_description_counts_only_if_it_matches_the_weights(tmp_path, change: Callable[[dict], Any]):
    model = a_classifier({**EXACT, "positions": "sincos2d"})
    described = json.loads((written(model, tmp_path) / "config.json").read_text())
    change(described)
    (tmp_path / "config.json").write_text(json.dumps(described))
    said: list[str] = []
    again = load(tmp_path, log=said.append)
    assert len(said) == 1 and WITHOUT_IT in said[0]
    assert (again.config.positions, again.temperature, again.classes) == ("learned", 1.0, model.classes)
    assert again.config.norm_eps == described["layer_norm_eps"]


def test_weights_that_were_trained_further_are_not_what_we_described(tmp_path):
    model = a_classifier({**EXACT, "positions": "sincos2d"})
    tensors = load_file(written(model, tmp_path) / "model.safetensors")
    tensors["vit.embeddings.position_embeddings"] += 0.1
    save_file(tensors, tmp_path / "model.safetensors")
    said: list[str] = []
    again = load(tmp_path, log=said.append)
    assert WITHOUT_IT in said[0]
    assert torch.equal(again.backbone.pos_embed, tensors["vit.embeddings.position_embeddings"])


def test_other_names_and_another_preprocessing_win_over_what_we_said(tmp_path):
    folder = written(a_classifier(EXACT), tmp_path)
    edited(folder / "config.json", id2label={"0": "a", "1": "b", "2": "c"}, problem_type=None)
    edited(folder / PROCESSOR, image_mean=[0.1, 0.2, 0.3])
    again = load(folder, log=silent)
    assert (again.classes, again.multi_label, again.temperature) == (("a", "b", "c"), False, 2.5)
    assert again.preprocessing.mean == (0.1, 0.2, 0.3)
    (folder / PROCESSOR).unlink()
    assert load(folder, log=silent).preprocessing.mean == (0.4, 0.525, 0.65)


def test_two_values_of_eps_become_one_with_a_note():
    told = to_huggingface(create_classifier(replace(PVT_V2, conv_norm_eps=1e-5), classes=PVT_V2.classes))
    assert told.config["layer_norm_eps"] == PVT_V2.norm_eps
    assert any("the eps 1e-06 in transformers, not 1e-05" in note for note in told.notes)
