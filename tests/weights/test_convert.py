"""Conversion: round trips change no bit, what a layout cannot say is kept beside it or refused, and nothing unproved is left."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.models.tiny import TINY
from vitrail.data.images import Preprocessing
from vitrail.errors import CheckpointError, ConfigError, DiskError, VitrailError
from vitrail.models import MODELS, ViTConfig
from vitrail.tasks.classification import Classifier, create_model
from vitrail.weights import convert as module
from vitrail.weights import load
from vitrail.weights.arrays import read_npz
from vitrail.weights.convert import Written, convert
from vitrail.weights.description import describe
from vitrail.weights.difference import compare, equal_bits
from vitrail.weights.native import save_model
from vitrail.weights.timm import as_timm, preprocessing_of
from vitrail.weights.timm.vit import architecture_of, arguments_of

SMALL: dict[str, Any] = {"image_size": 16, "patch_size": 4, "width": 24, "depth": 2, "heads": 2, "mlp_width": 41}
DEIT3 = {"layer_scale": 0.1, "prefix_positions": False, "gelu": "exact", "position_resize": "bicubic"}
# changes of the config, and the layouts that have words for such a model
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "the paper's": ({}, ("google", "timm")),
    "exact GELU, another norm and resize": (
        {"gelu": "exact", "norm_eps": 1e-5, "position_resize": "bicubic"},
        ("google",),
    ),
    "mean": ({"pool": "gap", "prefix": ()}, ("google", "timm")),
    "mean, then the norm": ({"pool": "gap", "pool_norm": True}, ("timm",)),
    "attention pooling": ({"pool": "map", "prefix": ()}, ("google", "timm")),
    "attention pooling of all tokens": ({"pool": "map", "registers": 1}, ("timm",)),
    "two heads": ({"prefix": ("cls", "dist")}, ("timm",)),
    "registers": ({"registers": 3}, ("timm",)),
    "registers, positions on patches": ({"registers": 3, "prefix_positions": False}, ("timm",)),
    "DeiT III": (DEIT3, ("timm",)),
    "positions on patches": ({"prefix_positions": False}, ("google", "timm")),
    "no biases of q, k, v": ({"qkv_bias": False}, ("timm",)),
    "grey": ({"in_channels": 1}, ("google", "timm")),
    "five channels": ({"in_channels": 5}, ("google", "timm")),
    "no square": ({"image_size": (8, 24), "patch_size": (4, 8)}, ("google", "timm")),
    "sines": ({"positions": "sincos2d", "pool": "gap", "prefix": ()}, ("google",)),
    "a hidden layer": ({"pre_logits": True}, ("google",)),
    "no head": ({"classes": ()}, ("google", "timm")),
    "transformers' eps": ({"norm_eps": 1e-12, "gelu": "exact"}, ("huggingface",)),
}
SWIN = {
    "model": "swin-t",
    "image_size": 32,
    "patch_size": 2,
    "width": 8,
    "depths": (2, 1, 2),
    "heads": (1, 2, 4),
    "window": 4,
}
CAIT = {"model": "cait-xxs24", "depth": 2, "class_depth": 1, "mlp_width": 41}
PVT = {"model": "pvt-v2-b0", "image_size": 64, "widths": (8, 16, 40, 64), "depths": (1, 2, 1, 1)}
BEIT = {"model": "beit-b16"}
BIT = {"model": "bit-r50x1", "depths": (3,), "standardise": "timm"}
ROOT = {"model": "r-vit-ti16", "patch_size": 8, "gelu": "exact", "standardise": "timm", "group_norm_eps": 1e-5}
STAGES = {**ROOT, "model": "r26-vit-s32", "patch_size": 32, "image_size": 64}
KINDS |= {
    "Swin": (SWIN, ("timm",)),
    "Swin on an oblong": ({**SWIN, "depths": (2, 1, 1), "image_size": (32, 64), "qkv_bias": False}, ("timm",)),
    "CaiT": (CAIT, ("timm",)),
    "CaiT on an oblong": ({**CAIT, "image_size": (8, 16), "in_channels": 1}, ("timm",)),
    "PVT v2": (PVT, ("timm",)),
    "linear PVT v2": ({**PVT, "linear": True, "image_size": (64, 96)}, ("timm",)),
    "BEiT": (BEIT, ("timm",)),
    "BEiT before fine-tuning": (
        {**BEIT, "relative_bias": "shared", "pool": "cls", "positions": True, "image_size": (8, 16)},
        ("timm",),
    ),
    "BiT": (BIT, ("google", "timm")),
    "wide BiT on an odd map": ({**BIT, "width_factor": 2, "image_size": (18, 31), "in_channels": 1}, ("timm",)),
    "BiT without a head": ({**BIT, "classes": ()}, ("google", "timm")),
    "the root of a hybrid": (ROOT, ("google", "timm")),
    "the root of a hybrid, on an oblong": (
        {**ROOT, "patch_size": (4, 8), "image_size": (8, 24), "in_channels": 5},
        ("google", "timm"),
    ),
    "a hybrid": ({**STAGES, "pool": "gap", "registers": 2}, ("timm",)),
}


def a_model(*, classes: tuple[str, ...] = ("ant", "bee", "cat"), **changes: Any) -> Classifier:
    """Numbers of some size in every tensor."""
    name = changes.pop("model", "vit-ti16")
    known = {field.name for field in fields(MODELS[name])}
    small = {field: value for field, value in SMALL.items() if field in known and name[:3] not in ("swi", "pvt")}
    model = create_model(name, classes=classes, **{**small, **changes})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.2 if parameter.ndim > 1 else 0.3))
    return model.eval()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(**changes: Any) -> Path:
        return save_model(tmp_path / "source", a_model(**changes))

    return save


def assert_same(one: Path, other: Path) -> None:
    first, second = load(one), load(other)
    assert {**describe(first), "provenance": 0} == {**describe(second), "provenance": 0}
    tensors, others = first.backbone.state_dict(), second.backbone.state_dict()
    assert list(tensors) == list(others)
    assert all(equal_bits(tensors[name], others[name]) for name in tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_through_every_layout_changes_no_bit_and_no_fact(tmp_path, saved, kind):
    changes, layouts = KINDS[kind]
    place = source = saved(**changes)
    names = {"google": ".npz", "native": ".safetensors"}
    for number, layout in enumerate([*layouts, *layouts, "native"]):
        place = convert(place, tmp_path / f"{number}{names.get(layout, '')}", layout).path
    assert_same(source, place)


@pytest.mark.parametrize("kind", KINDS)
def test_timms_tensors_alone_carry_the_rest_beside_them(tmp_path, saved, kind):
    changes, layouts = KINDS[kind]
    source, target = saved(**changes), tmp_path / "b.safetensors"
    if "timm" not in layouts and "gelu" not in changes:
        with pytest.raises(CheckpointError, match="no counterpart"):
            convert(source, target, "timm")
        assert [each.name for each in tmp_path.iterdir()] == ["source"]
        return
    convert(source, target, "timm")
    assert_same(source, target)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.json", "b.safetensors", "source"]


def test_what_no_layout_but_ours_says_comes_through_all_of_them(tmp_path):
    model = a_model()
    model.temperature, model.multi_label = 1.75, True
    model.preprocessing = Preprocessing.timm(16, crop_fraction=0.8, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1))
    source = save_model(tmp_path / "source", model)
    google = convert(source, tmp_path / "a.npz", "google")
    assert google.unsaid[-1].startswith("std [0.3, 0.2, 0.1], read as [0.5")
    assert google.alone == pytest.approx(0, abs=1e-6), "what is missed is all of pictures"
    assert {"the names of the classes", "temperature 1.75, read as 1.0", "multi_label True, read as False"} == {
        *google.notes
    }
    timm = convert(google.path, tmp_path / "b", "timm")
    assert timm.unsaid == ()
    assert "position_resize paper, read as bicubic-antialias" in timm.notes
    assert_same(source, convert(timm.path, tmp_path / "c", "native").path)


def test_the_result_says_what_was_done(tmp_path, saved):
    done = convert(saved(), tmp_path / "a.npz", "google")
    assert (done.source, done.layout, done.tensors) == ("native", "google", 32)
    assert done.parameters == sum(each.numel() for each in a_model().parameters())
    assert done.model == "vit of 2 blocks, 24 wide, 16x16 pixels in patches of 4x4"
    assert done.difference == 0


def test_the_same_model_gives_the_same_bytes(tmp_path, saved):
    source = saved()
    for name in ("a.npz", "b.npz"):
        os.utime(convert(source, tmp_path / name, "google").path, (0, 0))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert np.load(tmp_path / "a.npz")["cls"].shape == (1, 1, 24), "NumPy reads it"


def test_numerics_without_words_in_a_layout_are_refused_by_name_and_forced(tmp_path, saved):
    source = saved(norm_eps=1e-5, gelu="exact")
    with pytest.raises(CheckpointError, match="no words for 1 of the model's numerics") as caught:
        convert(source, tmp_path / "b", "timm")
    assert caught.value.value == "norm_eps 1e-05, read as 1e-06"
    assert "--force" in caught.value.remedy
    assert [each.name for each in tmp_path.iterdir()] == ["source"]
    done = convert(source, tmp_path / "b", "timm", force=True)
    assert done.unsaid == ("norm_eps 1e-05, read as 1e-06",)
    assert done.alone is not None
    assert 0 < done.alone < 1e-2
    assert_same(source, done.path)


def test_pictures_made_in_a_way_that_timm_has_no_words_for_are_refused(tmp_path):
    model = a_model()
    model.preprocessing = replace(model.preprocessing, resize="none")
    source = save_model(tmp_path / "source", model)
    with pytest.raises(CheckpointError) as caught:
        convert(source, tmp_path / "b", "timm")
    assert "resize none, read as short" in caught.value.value.splitlines()


@pytest.mark.parametrize("changes", [{"rounding": "round"}, {"crop_rounding": "floor"}])
def test_a_rounding_that_timm_has_no_words_for_is_noted(tmp_path, changes):
    model = a_model()
    model.preprocessing = replace(model.preprocessing, resize="short", resize_to=20, **changes)
    source = save_model(tmp_path / "source", model)
    ((name, value),) = changes.items()
    assert any(words.startswith(f"{name} {value}, read as") for words in convert(source, tmp_path / "b", "timm").notes)


def test_the_crop_that_timm_is_told_is_the_crop_it_makes():
    model = a_model()
    for resize, resize_to in [*itertools.product(("short", "squash"), range(17, 160)), ("short", 16), ("squash", None)]:
        model.preprocessing = replace(model.preprocessing, resize=resize, resize_to=resize_to)
        assert preprocessing_of(as_timm(model)[1], model.config, Path("config.json"))[0] == model.preprocessing


def corrupted(tensor: str, by: float) -> Callable[[Classifier, Path], Written]:
    """A writer with a fault in one number."""

    def write(classifier: Classifier, path: Path) -> Written:
        faulty = a_model()
        with torch.no_grad():
            faulty.backbone.get_parameter(tensor).view(-1)[0] += by
        return module.as_native(faulty, path)

    return write


@pytest.mark.parametrize(
    ("tensor", "by"),
    [("head.bias", 1.0), ("blocks.1.mlp.fc1.weight", 0.5), ("norm.bias", float("nan")), ("norm.bias", 1e-7)],
)
def test_a_copy_that_is_not_the_source_is_refused_with_the_figure_and_leaves_nothing(
    tmp_path, saved, monkeypatch, tensor, by
):
    monkeypatch.setitem(module.WRITERS, "native", corrupted(tensor, by))
    with pytest.raises(
        CheckpointError, match=r"outputs differ by (nan|[\d.e-]+) of the largest, 1e-05 is allowed"
    ) as caught:
        convert(saved(), tmp_path / "copy", "native")
    assert caught.value.value == f"1 of its parts differ: {tensor}"
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_a_copy_whose_description_lies_is_refused_too(tmp_path, saved, monkeypatch):
    def write(classifier: Classifier, path: Path) -> Written:
        classifier.preprocessing = replace(classifier.preprocessing, interpolation="nearest")
        written = module.as_native(classifier, path)
        classifier.preprocessing = replace(classifier.preprocessing, interpolation="bilinear")
        return written

    monkeypatch.setitem(module.WRITERS, "native", write)
    with pytest.raises(CheckpointError, match="differ by 0 ") as caught:
        convert(saved(), tmp_path / "copy", "native")
    assert "preprocessing.interpolation" in caught.value.value


def test_a_config_that_tells_timm_something_else_is_refused(tmp_path, saved, monkeypatch):
    """Read with our description the copy is right; timm would make another model of it."""

    def write(classifier: Classifier, path: Path) -> Written:
        written = module.in_timms_layout(classifier, path)
        told = json.loads(written.files["config.json"])
        told["model_args"]["act_layer"] = "gelu"
        return Written({**written.files, "config.json": json.dumps(told).encode()})

    monkeypatch.setitem(module.WRITERS, "timm", write)
    with pytest.raises(CheckpointError) as caught:
        convert(saved(), tmp_path / "copy", "timm")
    assert caught.value.value == "gelu tanh, read as exact"


def test_a_model_of_no_numbers_is_refused(tmp_path):
    model = a_model()
    with torch.no_grad():
        model.backbone.get_parameter("head.bias")[0] = torch.nan
    with pytest.raises(CheckpointError, match="no finite numbers"):
        convert(save_model(tmp_path / "source", model), tmp_path / "copy.npz", "google")


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda told: told | {"sha256": "0" * 64}, "describes other weights than those in a"),
        (lambda told: told | {"format_version": 9}, "format version 9"),
        (lambda told: told | {"architecture": "swim"}, "architecture 'swim'"),
        (lambda told: told | {"config": told["config"] | {"image_size": [32, 32]}}, "fit|positions"),
        (lambda told: told | {"config": told["config"] | {"depth": 3}}, "missing|fit|no '"),
        (lambda told: told | {"config": told["config"] | {"pool": "map"}}, "fit|not read"),
        (lambda told: told | {"config": told["config"] | {"wdth": 3}}, "no field 'wdth'"),
        (lambda told: told | {"classes": ["one"]}, "1 class names for 3 outputs"),
        (lambda told: {name: value for name, value in told.items() if name != "preprocessing"}, "no 'preprocessing'"),
    ],
)
def test_a_description_beside_weights_that_lies_is_refused(tmp_path, saved, name, damage, words):
    place = convert(saved(), tmp_path / name, "google" if name == "a.npz" else "timm").path
    beside = tmp_path / "a.json"
    told = damage(json.loads(beside.read_text()))
    beside.write_text(json.dumps(told))
    with pytest.raises(VitrailError, match=words):
        load(place)


def test_googles_arrays_show_their_heads_whatever_is_described(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    told = json.loads((tmp_path / "a.json").read_text())
    told["config"]["heads"] = 3
    (tmp_path / "a.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="its heads is 2, and is described as 3"):
        load(place)


def test_a_description_beside_weights_that_is_torn_is_refused(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text()[:-9])
    with pytest.raises(CheckpointError, match=r"a\.json is no JSON"):
        load(place)


def test_without_its_description_the_papers_numerics_hold_and_foreign_json_is_let_be(tmp_path, saved):
    place = convert(saved(gelu="exact"), tmp_path / "a.npz", "google").path
    assert load(place).config.gelu == "exact"
    (tmp_path / "a.json").write_text('{"labels": ["cat"]}')
    assert load(place, log=lambda line: None).config.gelu == "tanh"
    (tmp_path / "a.json").unlink()
    assert load(place, log=lambda line: None).config.gelu == "tanh"


def test_weights_that_changed_since_are_not_read_with_the_old_description(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    np.savez(place, **{name: array * 2 for name, array in read_npz(place).items()})
    with pytest.raises(CheckpointError, match=r"a\.json describes other weights"):
        load(place)


def test_a_destination_is_replaced_only_by_a_model_in_the_same_layout(tmp_path, saved):
    source = saved()
    for layout, name in [
        ("native", "n"),
        ("timm", "t"),
        ("google", "g.npz"),
        ("timm", "t.safetensors"),
        ("native", "n.safetensors"),
    ]:
        convert(source, tmp_path / name, layout)
        convert(source, tmp_path / name, layout)
    (tmp_path / "empty").mkdir()
    convert(source, tmp_path / "empty", "timm")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    (tmp_path / "lone.json").write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for layout, name, words in [
        ("timm", "n", "is there, in the native layout"),
        ("native", "t", "is there, in the timm layout"),
        ("timm", "n.safetensors", "is there, in the native layout"),
        ("native", "t.safetensors", "is there, in the timm layout"),
        ("native", "thesis", r"is no model folder \(thesis\.tex\)"),
        ("native", "source", "is the source itself"),
        ("timm", "n/model.safetensors", "a part of the model folder"),
        ("google", "lone.npz", r"lone\.json is there without lone\.npz"),
        ("google", "name", "ends in .npz"),
        ("hugingface", "name", "no layout 'hugingface'"),
    ]:
        with pytest.raises(ConfigError, match=words):
            convert(source, tmp_path / name, layout)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(("layout", "name"), [("google", "a.npz"), ("timm", "b"), ("native", "c.safetensors")])
@pytest.mark.parametrize("step", ["files.write_bytes", "files.os.rename", "weights.convert.os.replace"])
def test_a_disk_that_fails_at_any_step_leaves_what_was_there(tmp_path, saved, monkeypatch, layout, name, step):
    source = saved()
    convert(source, tmp_path / name, layout)
    before = sorted(each.relative_to(tmp_path) for each in tmp_path.rglob("*"))
    expected = load(tmp_path / name).backbone.state_dict()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"vitrail.{step}", full)
    moved = step.endswith("write_bytes") or (name == "b") == step.endswith("rename")
    if moved:
        with pytest.raises(DiskError, match="the disk is full"):
            convert(source, tmp_path / name, layout)
    monkeypatch.undo()
    assert sorted(each.relative_to(tmp_path) for each in tmp_path.rglob("*")) == before
    assert all(equal_bits(each, expected[name]) for name, each in load(tmp_path / name).backbone.state_dict().items())


def test_a_model_is_made_to_fit_on_the_way(tmp_path, saved):
    source = saved()
    done = convert(source, tmp_path / "b", "timm", image_size=(16, 32), in_channels=1, classes=("x", "y"))
    made, before = load(done.path), load(source)
    assert (made.config.image_size, made.config.in_channels, made.classes) == ((16, 32), 1, ("x", "y"))
    assert not made.backbone.head.weight.any()
    assert made.config.grid == (4, 8)
    assert equal_bits(made.backbone.get_parameter("norm.weight"), before.backbone.get_parameter("norm.weight"))
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    convert(source, tmp_path / "named.npz", "google", classes_file=tmp_path / "names.txt")
    assert load(tmp_path / "named.npz").classes == ("one", "two", "three")


@pytest.mark.parametrize("layout", ["google", "timm", "huggingface"])
@pytest.mark.parametrize("name", TINY)
def test_every_architecture_is_written_and_read_again_or_refused_in_words(tmp_path, name, layout):
    torch.manual_seed(0)
    source = save_model(tmp_path / "source", create_model(TINY[name], classes=7))
    target = tmp_path / ("copy.npz" if layout == "google" else "copy")
    written = {"google": {"vit", "vit, root", "vit, stem", "bit", "bit, odd map"}}
    written["huggingface"] = {"vit", "swin", "beit", "beit, one table", "pvt v2", "pvt v2, linear"}
    written["timm"] = {"vit", "cait", "beit", "beit, one table", "pvt v2", "pvt v2, linear"}
    if name in written[layout]:
        assert convert(source, target, layout).alone == pytest.approx(0, abs=1e-5)
        assert_same(source, target)
        return
    with pytest.raises(CheckpointError, match=r"no counterpart of|is not known here|shifts other windows|parts differ"):
        convert(source, target, layout, force=True)
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


PLAIN = sorted(name for name, config in MODELS.items() if isinstance(config, ViTConfig) and config.stem is None)


@pytest.mark.parametrize("name", PLAIN)
def test_every_published_vit_has_a_name_of_timms(name):
    """Of its own size, or of another from which the arguments make it."""
    config = MODELS[name]
    told = arguments_of(config)
    assert int(told["embed_dim"] * told["mlp_ratio"]) == config.mlp_width
    sized = {"ti": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}
    size = name.split("-")[1].rstrip("0123456789")
    assert architecture_of(config).split("_")[1] == sized.get(size, architecture_of(config).split("_")[1])


def test_two_copies_of_a_model_do_not_differ(tmp_path, saved):
    source = saved()
    found = compare(source, convert(source, tmp_path / "a.npz", "google").path)
    assert found.is_none
    assert (found.equal, found.as_models) == (32, True)


def test_a_difference_names_each_tensor_and_fact(tmp_path, saved):
    other = a_model(classes=("ant", "bee", "dog", "emu"), gelu="exact", norm_eps=1e-5, registers=1)
    with torch.no_grad():
        other.backbone.get_parameter("norm.bias")[3] += 0.25
        other.backbone.get_parameter("cls_token")[0, 0, 0] = float("nan")
        other.backbone.get_parameter("patch_embed.proj.bias").copy_(
            a_model().backbone.get_parameter("patch_embed.proj.bias")
        )
    found = compare(saved(), save_model(tmp_path / "other", other))
    assert found.differing[0].name == "cls_token", "what is no number comes first"
    named = {each.name: each for each in found.differing}
    assert named["norm.bias"].absolute > 0
    assert found.shapes.keys() == {"head.weight", "head.bias"}
    assert found.shapes["head.bias"] == ("3 float32", "4 float32")
    assert (found.only_first, found.only_second) == ((), ("reg_token",))
    assert found.facts["config.gelu"] == ("tanh", "exact")
    assert found.facts["classes"] == (["ant", "bee", "cat"], ["ant", "bee", "dog", "emu"])
    assert found.equal == 1
    assert not found.is_none


def test_what_is_no_model_is_compared_by_the_names_in_the_files(tmp_path):
    np.savez(tmp_path / "a.npz", one=np.zeros(3, np.float32), two=np.ones((2, 2)), three=np.ones(2))
    np.savez(tmp_path / "b.npz", one=-np.zeros(3, np.float32), two=np.full((2, 2), 3.0), three=np.ones(3))
    said: list[str] = []
    found = compare(tmp_path / "a.npz", tmp_path / "b.npz", log=said.append)
    assert not found.as_models
    assert "not as models" in said[-1]
    assert [(each.name, each.absolute, each.relative) for each in found.differing] == [("two", 2, 2), ("one", 0, 0)]
    assert found.shapes == {"three": ("2 float64", "3 float64")}


@pytest.mark.slow
def test_the_real_model_keeps_its_218_of_300_through_every_layout(tmp_path, real_data):
    folder = real_data / "imagenet_val"
    place = real_data / "vit_tiny_patch16_224.safetensors"
    steps = ["n native", "g.npz google", "n2.safetensors native", "t timm", "h huggingface", "n3 native"]
    for name, layout in map(str.split, steps):
        named = folder / "classes.txt" if name == "n" else None
        place = convert(place, tmp_path / name, layout, classes_file=named).path
    model = load(place)
    with open(folder / "labels.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    pictures = [Image.open(folder / row["path"]) for row in rows]
    with torch.inference_mode():
        best = torch.cat([model(model.preprocess(pictures[at : at + 50])).argmax(1) for at in range(0, 300, 50)])
    assert sum(model.classes[each] == row["label"] for each, row in zip(best, rows)) == 218
    assert compare(tmp_path / "n", place).is_none
