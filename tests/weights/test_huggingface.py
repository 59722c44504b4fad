"""Folders that transformers saved: read whole, or refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.each_row import each_row
from tests.models.theirs import PYRAMIDS, THEIRS, VIT, build, edited, pooled, saved
from tests.slow import slow_except
from vitrail.errors import CheckpointError, VitrailError
from vitrail.tasks.classification.classifier import Classifier
from vitrail.weights import load
from vitrail.weights.huggingface import FAMILIES, read_huggingface
from vitrail.weights.huggingface.family import hidden_width, ratio_of


def silent(line: str) -> None:
    """Takes what `load` says."""


# sizes besides their own, where they take others
SIZES = {
    "swin": [(48, 72), (57, 75)],
    "beit": [(24, 56), (48, 48)],
    "pvt": [],
    "bit": [(48, 64), (37, 51)],
    "pvt_v2": [(64, 96), (61, 83)],
}


@pytest.mark.slow
@each_row("kind", THEIRS)
def test_every_tensor_of_theirs_has_a_name_here_and_answers_are_theirs(kind, tmp_path):
    """The answers of pyramids; inner parts of the others are held to transformers in files of their own."""
    theirs = build(kind)
    tensors = load_file(saved(theirs, tmp_path) / "model.safetensors")
    family = FAMILIES[theirs.config.model_type]
    state, unused = family.to_own_names(tensors)
    model = load(tmp_path, log=silent)
    assert state.keys() == model.backbone.state_dict().keys()
    assert len(unused) < len(tensors) / 2
    has_body = any(name.startswith(f"{family.body}.") for name in tensors)
    written = family.to_transformers_names(state, has_body=has_body)
    outside = f"{family.body}."  # where some of their classes have what others have inside
    again = {name if name in tensors else name.removeprefix(outside): tensor for name, tensor in written.items()}
    assert {*again, *unused} == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.items())
    if kind in PYRAMIDS:
        check_answers(kind, theirs, model)


@torch.no_grad()
def check_answers(kind: str, theirs: Any, model: Classifier) -> None:
    """Bare models pool as ours do."""
    encoder = getattr(theirs, model.config.architecture, theirs) if kind.startswith("masked") else theirs
    sizes = SIZES[theirs.config.model_type] if model.config.patch_size[0] == model.config.patch_size[1] else []
    for size in [model.config.image_size, *sizes]:
        images = torch.randn(2, model.config.in_channels, *size, generator=torch.Generator().manual_seed(1))
        given = encoder(images)
        if kind == "masked beit":
            expected = theirs.layernorm(given.last_hidden_state)[:, 0]
        else:
            expected = given.logits if "logits" in given else pooled(given, model.config)
        assert (model(images) - expected).abs().max() <= 1e-5 * expected.abs().max()


@each_row("family", FAMILIES.values())
def test_no_name_stands_for_two(family):
    for has_body in (False, True):
        table = family.table(has_body)
        assert len(set(table.values())) == len(table)


@pytest.mark.parametrize("way", ["shards", pytest.param("pickled", marks=pytest.mark.slow), "half precision"])
def test_a_folder_may_hold_shards_a_pickle_or_half_precision(way, tmp_path):
    theirs = build("vit")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
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


def test_ignored_tensors_are_named_and_unknown_ones_are_an_error(tmp_path):
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
    assert "numbers after the 1 class names that appear twice" in said[0]
    edited(tmp_path / "config.json", id2label={"0": "LABEL_0"})
    assert load(tmp_path, log=said.append).classes == ("0", "1", "2", "3", "4")
    assert "carries no class names" in said[1]


@pytest.mark.slow
@each_row(
    "kind, changes, words",
    [
        ("vit", {"model_type": "vivit"}, "unsupported model type 'vivit'"),
        ("vit", {"model_type": None}, r"unsupported model type \['ViTForImageClassification'\]"),
        ("vit", {"model_type": 5}, "unsupported model type 5"),
        ("vit", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("vit", {"hidden_act": [1]}, r"hidden_act '\[1\]'|hidden_act \[1\]"),
        ("vit", {"hidden_size": "16"}, "width is '16'"),
        ("vit", {"hidden_size": 10**30}, "too large"),
        ("vit", {"num_attention_heads": 3}, "heads is 3"),
        ("vit", {"num_hidden_layers": 10**9}, "fit the model"),
        ("vit", {"image_size": 33}, "does not divide"),
        ("vit", {"image_size": 8 * 10**15}, "too large|cannot be used"),
        ("vit", {"image_size": {"height": 3}}, "image_size is"),
        ("vit", {"patch_size": [8, 8, 8]}, "patch_size is"),
        ("vit", {"layer_norm_eps": 0}, "norm_eps is 0"),
        ("vit", {"qkv_bias": "yes"}, "qkv_bias is 'yes'"),
        ("vit", {"intermediate_size": 25}, "shape       blocks.0.mlp.fc1.weight is 24x16, the model has 25x16"),
        ("vit", {"num_channels": 4}, "patch_embed.proj.weight"),
        ("swin", {"use_absolute_embeddings": True}, "learned positions"),
        ("swin", {"layer_norm_eps": 1e-6}, "1e-06 in its blocks and 1e-05 between them"),
        ("swin", {"depths": [10**9, 1]}, "fit the model"),
        ("swin", {"window_size": 10**12}, "would be too large"),
        ("bit", {"layer_type": "bottleneck"}, "layer_type 'bottleneck'"),
        ("bit", {"hidden_sizes": [128, 512]}, r"widths of 64 and \[128, 512\]"),
        ("bit", {"width_factor": 2}, "only width_factor 1 is supported"),
        ("bit", {"depths": [1, 1, 1, 1, 1]}, "5 stages"),
        ("bit", {"depths": "12"}, "depths is '12'"),
        ("swin", {"num_heads": [2]}, "one number for each of the 2 stages"),
        ("beit", {"use_shared_relative_position_bias": True}, "both shared and per-block"),
        ("beit", {"image_size": [24, 40]}, "axes transformers swaps"),
        ("beit", {"layer_scale_init_value": "0.1"}, "cannot be built"),
        ("pvt", {"strides": [4, 2, 2, 4]}, "strides after the first must be 2"),
        ("pvt", {"strides": 4}, "strides after the first must be 2"),
        ("pvt", {"patch_sizes": [7, 3, 3, 3]}, "without overlap"),
        ("pvt v2", {"patch_sizes": [4, 2, 2, 2]}, r"2 \* stride - 1"),
        ("pvt v2", {"strides": ["4", 2, 2, 2]}, "cannot be built"),
    ],
)
def test_a_config_that_is_not_of_the_tensors_or_has_no_counterpart_is_refused(tmp_path, kind, changes, words):
    saved(build(kind), tmp_path)
    edited(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path, log=silent)


def test_tables_of_indices_that_older_files_hold_are_left_out(tmp_path):
    for kind, name in (
        ("swin", "swin.encoder.layers.1.blocks.2.attention.self.relative_position_index"),
        ("beit", "beit.encoder.layer.0.attention.attention.relative_position_bias.relative_position_index"),
    ):
        tensors = load_file(saved(build(kind), tmp_path / kind) / "model.safetensors")
        said: list[str] = []
        save_file({**tensors, name: torch.zeros(9, 9, dtype=torch.int64)}, tmp_path / kind / "model.safetensors")
        load(tmp_path / kind, log=said.append)
        assert f"unused   1 tensors: {name}" in said


def test_missing_keys_of_config_json_have_the_defaults_of_transformers(tmp_path):
    saved(build("vit", layer_norm_eps=1e-12, num_attention_heads=12, hidden_size=24), tmp_path)
    edited(tmp_path / "config.json", layer_norm_eps=None, num_attention_heads=None, hidden_act=None, qkv_bias=None)
    config = load(tmp_path, log=silent).config
    assert (config.norm_eps, config.heads, config.gelu, config.qkv_bias) == (1e-12, 12, "exact", True)


@each_row("model_type, family", FAMILIES.items())
def test_the_defaults_are_those_of_transformers(model_type, family):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(model_type).to_dict()
    theirs = theirs.get("vision_config", theirs)  # of a model with a text tower
    assert {name: theirs[name] for name in family.defaults} == family.defaults


def test_ratios_of_mlps_give_their_widths_back():
    for width in (48, 176, 1152):
        for hidden in range(8, 4 * width, 8):
            for gated in (False, True):
                assert hidden_width(width, ratio_of(width, hidden, gated=gated), gated=gated) == hidden


@pytest.mark.slow
def test_no_broken_file_is_half_read(tmp_path):
    """Every tensor in turn is taken away, cut, made integer, flattened or added to: each is refused, by its name."""
    tensors = load_file(saved(build("distilled deit", num_hidden_layers=1), tmp_path) / "model.safetensors")
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


ODD = ("x", "", -1, 0.5, float("nan"), [], {}, True, 10**30, [10**30], ["x"] * 4, [[1]])
PROCESSING = {
    "image_processor_type": "ViTImageProcessor",
    "size": 8,
    "do_center_crop": True,
    "crop_size": 8,
    "rescale_factor": 0.1,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 2,
}


@pytest.mark.parametrize("kind", slow_except(["distilled deit", "swin", "beit", "pvt", "bit"], {"bit"}))
def test_no_odd_value_of_a_field_is_more_than_an_error(kind, tmp_path):
    tensors = load_file(saved(build(kind), tmp_path) / "model.safetensors")
    described = json.loads((tmp_path / "config.json").read_text())
    family = FAMILIES[described["model_type"]]
    odd = [({**described, name: value}, {}) for name in [*family.defaults, "id2label", "vitrail"] for value in ODD]
    odd += [(described, {**PROCESSING, name: value}) for name in PROCESSING for value in ODD]
    refused = 0
    for config, processing in odd:
        try:
            weights = read_huggingface(dict(tensors), config, processing, tmp_path)
            weights.build_model(tmp_path, silent, has_names=True, stated=())
        except VitrailError:
            refused += 1
    assert refused > len(odd) / 2


def test_a_width_of_its_own_needs_no_published_size(tmp_path):
    saved(build("vit", **{**VIT, "hidden_size": 20, "num_attention_heads": 5}), tmp_path)
    assert load(tmp_path, log=silent).config.heads == 5


@each_row("prefix", ["_orig_mod.", "module.", "model."])
def test_prefixes_and_tensors_beside_the_network_are_left_out(prefix, tmp_path):
    model = build("vit")
    tensors = load_file(saved(model, tmp_path) / "model.safetensors")
    held = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    beside = {f"{prefix}projector.0.weight": torch.ones(2), f"{prefix}classifier.0.weight": torch.ones(2)}
    save_file({**held, **beside}, tmp_path / "model.safetensors")
    lines: list[str] = []
    loaded = load(tmp_path, log=lines.append)
    images = torch.randn(2, 3, *loaded.config.image_size)
    torch.testing.assert_close(loaded(images), model(images).logits, atol=1e-5, rtol=1e-5)
    assert lines[-1].startswith("unused   2 tensors: ")
    assert lines[-1].endswith(
        "classifier.0.weight, " + ("" if prefix == "_orig_mod." else prefix) + "projector.0.weight"
    )
    save_file({**held, f"{prefix}vit.encoder.layer.0.gate.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected  vit\.encoder\.layer\.0\.gate\.weight"):
        load(tmp_path)
