"""Folders of transformers: what it saves is read whole, what is written it reads, and our own comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.conftest import SMALL, shaken
from tests.models.theirs import THEIRS, VIT, build, saved
from vitrail.data.images import Preprocessing
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models import ViTConfig, create_backbone
from vitrail.tasks.classification import Classifier
from vitrail.weights import load
from vitrail.weights.huggingface import FAMILIES, PROCESSOR, to_huggingface

EXACT = {**SMALL, "gelu": "exact", "position_resize": "bicubic", "classes": 3}
TWO = ("cls", "dist")
DINO = {**EXACT, "layer_scale": 0.1, "pool": "cls+gap", "mlp_width": 48, "norm_eps": 1e-3}

# what transformers can say, and how many notes it takes
OURS: dict[str, tuple[dict[str, Any], int]] = {
    "ViT": (EXACT, 0),
    "paper's numerics": ({**SMALL, "classes": 3, "qkv_bias": False, "in_channels": 4}, 1),
    "bare": ({**EXACT, "classes": 0}, 1),
    "oblong": ({**EXACT, "image_size": (24, 40), "patch_size": (8, 4)}, 0),
    "padded": ({**EXACT, "pad": True}, 1),
    "computed positions": ({**EXACT, "positions": "sincos2d"}, 0),
    "no positions": ({**EXACT, "positions": "none", "positions_at": "every"}, 0),
    "no position of the class token": ({**EXACT, "prefix_positions": False}, 0),
    "DeiT": ({**EXACT, "prefix": TWO, "norm_eps": 1e-3}, 0),
    "DeiT read by one head": ({**EXACT, "prefix": TWO, "pool": "cls-only", "prefix_positions": False}, 0),
    "bare DeiT": ({**EXACT, "prefix": TWO, "classes": 0}, 1),
    "DINOv2": (DINO, 0),
    "bare DINOv2": ({**DINO, "classes": 0, "pool": "cls"}, 0),
    "registers": ({**DINO, "registers": 2, "position_resize": "bicubic-antialias"}, 0),
}
REFUSED = {
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
    "padding": {"pad": True, "image_size": 30},
    r"the prefix \(\)": {"prefix": (), "pool": "gap"},
}


def silent(line: str) -> None:
    """Takes what `load` says."""


def a_classifier(**changes: Any) -> Classifier:
    backbone = shaken(create_backbone(ViTConfig(**changes))).eval()
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


def edited(file: Path, **changes: Any) -> None:
    """Other values in a JSON file; None takes a key away."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def assert_same(model: Classifier, other: Classifier) -> None:
    assert (model.config, model.classes, model.preprocessing) == (other.config, other.classes, other.preprocessing)
    assert (model.multi_label, model.temperature) == (other.multi_label, other.temperature)
    state = other.backbone.state_dict()
    assert model.backbone.state_dict().keys() == state.keys()
    assert all(torch.equal(each, state[name]) for name, each in model.backbone.state_dict().items())


@pytest.mark.parametrize("kind", THEIRS)
def test_every_tensor_of_theirs_has_a_name_here_or_is_known_to_have_none(kind, tmp_path):
    theirs = build(kind)
    tensors = load_file(saved(theirs, tmp_path) / "model.safetensors")
    family = FAMILIES[theirs.config.model_type]
    state, unused = family.ours(tensors)
    model = load(tmp_path, log=silent)
    assert state.keys() == model.backbone.state_dict().keys()
    assert len(unused) < len(tensors) / 2
    has_body = any(name.startswith(f"{family.body}.") for name in tensors)
    again = family.theirs(state, has_body=has_body)
    assert {*again, *unused} == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.items())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_name_stands_for_two(family):
    for has_body in (False, True):
        table = family.table(has_body)
        assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(("changes", "notes"), OURS.values(), ids=OURS)
def test_transformers_reads_what_is_written(changes, notes, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = a_classifier(**changes)
    folder = written(model, tmp_path)
    described = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, described["architectures"][0])
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    theirs, found = kind.from_pretrained(folder, output_loading_info=True)
    assert not found["unexpected_keys"] and not found["mismatched_keys"]
    assert all(name.startswith("pooler.") or name.endswith("mask_token") for name in found["missing_keys"])
    images = torch.randn(2, model.config.in_channels, *model.config.image_size)
    with torch.no_grad():
        given, expected = theirs.eval()(images), model(images)
    answer = given.logits if model.classes else given.last_hidden_state[:, : len(model.config.prefix)].flatten(1)
    torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5)
    if model.classes:
        assert theirs.config.id2label == dict(enumerate(model.classes))
        assert theirs.config.problem_type == "multi_label_classification"
    assert len(to_huggingface(model).notes) == notes + 1  # and the temperature
    # and once transformers has saved it again, it is still what it was
    theirs.save_pretrained(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again", log=silent)(images), model(images))


@pytest.mark.parametrize("kind", OURS)
def test_what_is_written_comes_back_as_it_was_and_nothing_is_assumed(kind, tmp_path):
    model = a_classifier(**OURS[kind][0])
    said: list[str] = []
    again = load(written(model, tmp_path), log=said.append)
    assert_same(again, model)
    assert said == []
    assert again.provenance == {"weights": tmp_path.name, "layout": "Hugging Face"}


@pytest.mark.parametrize("words", REFUSED)
def test_what_transformers_cannot_say_is_not_written(words):
    with pytest.raises(CheckpointError, match=f"no counterpart of {words}"):
        to_huggingface(a_classifier(**{**SMALL, "classes": 3, **REFUSED[words]}))


def test_each_difference_at_other_sizes_is_noted():
    notes = to_huggingface(a_classifier(**{**SMALL, "classes": 0, "pad": True})).notes
    assert [len([note for note in notes if word in note]) for word in ("'paper' here", "filled up", "pooler")] == [
        1
    ] * 3
    assert notes[-1] == "the temperature 2.5 is not applied there"


WITHOUT_IT = "what vitrail once said of it"


@pytest.mark.parametrize(
    "change",
    [
        lambda described: described.update(layer_norm_eps=1e-3),
        lambda described: described["vitrail"]["config"].update(gelu="tanh"),
        lambda described: described["vitrail"]["config"].update(image_size=[16 * 10**12, 32]),
        lambda described: described["vitrail"]["config"].update(prefix=["cls", "dist"]),
        lambda described: described["vitrail"].update(architecture="resnet"),
        lambda described: described["vitrail"].update(format_version=2),
        lambda described: described["vitrail"].update(temperature=-1),
        lambda described: described["vitrail"].update(temperature="hot"),
        lambda described: described["vitrail"].update(digest="0"),
        lambda described: described["vitrail"].pop("preprocessing"),
        lambda described: described.update(vitrail=[1]),
    ],
)
def test_what_we_said_counts_only_while_it_is_true(tmp_path, change: Callable[[dict], Any]):
    model = a_classifier(**{**EXACT, "positions": "sincos2d"})
    described = json.loads((written(model, tmp_path) / "config.json").read_text())
    change(described)
    (tmp_path / "config.json").write_text(json.dumps(described))
    said: list[str] = []
    again = load(tmp_path, log=said.append)
    assert len(said) == 1 and WITHOUT_IT in said[0]
    assert (again.config.positions, again.temperature, again.classes) == ("learned", 1.0, model.classes)
    assert again.config.norm_eps == described["layer_norm_eps"]


def test_weights_that_were_trained_further_are_not_what_we_described(tmp_path):
    model = a_classifier(**{**EXACT, "positions": "sincos2d"})
    tensors = load_file(written(model, tmp_path) / "model.safetensors")
    tensors["vit.embeddings.position_embeddings"] += 0.1
    save_file(tensors, tmp_path / "model.safetensors")
    said: list[str] = []
    again = load(tmp_path, log=said.append)
    assert WITHOUT_IT in said[0]
    assert torch.equal(again.backbone.pos_embed, tensors["vit.embeddings.position_embeddings"])


def test_other_names_and_another_preprocessing_win_over_what_we_said(tmp_path):
    folder = written(a_classifier(**EXACT), tmp_path)
    edited(folder / "config.json", id2label={"0": "a", "1": "b", "2": "c"}, problem_type=None)
    edited(folder / PROCESSOR, image_mean=[0.1, 0.2, 0.3])
    again = load(folder, log=silent)
    assert (again.classes, again.multi_label, again.temperature) == (("a", "b", "c"), False, 2.5)
    assert again.preprocessing.mean == (0.1, 0.2, 0.3)
    (folder / PROCESSOR).unlink()
    assert load(folder, log=silent).preprocessing.mean == (0.4, 0.525, 0.65)


@pytest.mark.parametrize("way", ["shards", pytest.param("pickled", marks=pytest.mark.slow), "half precision"])
def test_a_folder_may_hold_shards_a_pickle_or_half_precision(way, tmp_path):
    theirs = build("vit")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs(images).logits
    saved(
        theirs.half() if way == "half precision" else theirs,
        tmp_path,
        max_shard_size="4KB" if way == "shards" else "1GB",
    )
    if way == "pickled":
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == (way == "shards")
    rounding = {"atol": 1e-2, "rtol": 1e-2} if way == "half precision" else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(load(tmp_path, log=silent)(images), expected, **rounding)


def test_what_has_no_place_is_named_and_what_is_not_known_is_an_error(tmp_path):
    saved(build("mae"), tmp_path)
    said: list[str] = []
    model = load(tmp_path, log=said.append)
    assert model.classes == ()
    assert any(line.startswith("unused") and "decoder.decoder_embed.bias" in line for line in said)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "vit.gate": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected  vit\.gate 2"):
        load(tmp_path, log=silent)


def test_names_of_outputs_are_read_and_those_that_stand_twice_get_their_number(tmp_path):
    cranes = {"0": "crane", "1": "dog", "2": "crane", "3": "eel", "4": "fox"}
    saved(build("vit", id2label=cranes, problem_type="multi_label_classification"), tmp_path)
    said: list[str] = []
    model = load(tmp_path, log=said.append)
    assert model.classes == ("crane (0)", "dog", "crane (2)", "eel", "fox")
    assert model.multi_label
    assert "numbers after the 1 class names that stand twice" in said[0]
    edited(tmp_path / "config.json", id2label={"0": "LABEL_0"})
    assert load(tmp_path, log=said.append).classes == ("0", "1", "2", "3", "4")
    assert "carries no class names" in said[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "vivit"}, "of the model type 'vivit'"),
        ({"model_type": None}, r"of the model type \['ViTForImageClassification'\]"),
        ({"model_type": 5}, "of the model type 5"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_act": [1]}, r"hidden_act '\[1\]'|hidden_act \[1\]"),
        ({"use_swiglu_ffn": True}, "SwiGLU"),
        ({"hidden_size": "16"}, "width is '16'"),
        ({"hidden_size": 10**30}, "too large"),
        ({"num_attention_heads": 3}, "heads is 3"),
        ({"num_hidden_layers": 10**9}, "fit the model"),
        ({"image_size": 33}, "does not divide"),
        ({"image_size": 8 * 10**15}, "too large|cannot be used"),
        ({"image_size": {"height": 3}}, "image_size is"),
        ({"patch_size": [8, 8, 8]}, "patch_size is"),
        ({"layer_norm_eps": 0}, "norm_eps is 0"),
        ({"qkv_bias": "yes"}, "qkv_bias is 'yes'"),
        ({"intermediate_size": 25}, "shape       blocks.0.mlp.fc1.weight is 24x16, the model has 25x16"),
        ({"num_channels": 4}, "patch_embed.proj.weight"),
    ],
)
def test_a_config_that_is_not_of_the_tensors_is_refused_in_words(tmp_path, changes, words):
    saved(build("vit"), tmp_path)
    edited(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path, log=silent)


def test_what_config_json_leaves_out_is_as_transformers_has_it(tmp_path):
    saved(build("vit", layer_norm_eps=1e-12, num_attention_heads=12, hidden_size=24), tmp_path)
    edited(tmp_path / "config.json", layer_norm_eps=None, num_attention_heads=None, hidden_act=None, qkv_bias=None)
    config = load(tmp_path, log=silent).config
    assert (config.norm_eps, config.heads, config.gelu, config.qkv_bias) == (1e-12, 12, "exact", True)


@pytest.mark.parametrize(("model_type", "family"), FAMILIES.items(), ids=FAMILIES)
def test_the_defaults_are_those_of_transformers(model_type, family):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(model_type).to_dict()
    assert {name: theirs[name] for name in family.defaults} == family.defaults


@pytest.mark.parametrize("kind", ["distilled deit", "dinov2 with registers"])
def test_no_broken_file_is_half_read(kind, tmp_path):
    """Every tensor in turn is taken away, cut, made integer, flattened or added to: each is refused, by its name."""
    tensors = load_file(saved(build(kind, num_hidden_layers=1), tmp_path) / "model.safetensors")
    path, refused = tmp_path / "model.safetensors", 0
    for name, tensor in tensors.items():
        if name.endswith("mask_token"):
            continue
        others = {key: each for key, each in tensors.items() if key != name}
        changed = [tensor[..., :-1].clone(), tensor.int(), tensor.reshape(-1)[:1].clone().reshape(())]
        for broken in (
            others,
            *({**others, name: each} for each in changed),
            {**tensors, f"{name}.more": tensor.clone()},
        ):
            save_file(broken, path)
            with pytest.raises(VitrailError):
                load(tmp_path, log=silent)
            refused += 1
    assert refused > 100


def test_a_width_of_its_own_needs_no_published_size(tmp_path):
    saved(build("vit", **{**VIT, "hidden_size": 20, "num_attention_heads": 5}), tmp_path)
    assert load(tmp_path, log=silent).config.heads == 5
