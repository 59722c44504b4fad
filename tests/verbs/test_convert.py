"""Conversion: round trips change no bit, what a layout cannot say is kept beside it or refused, and what was there is safe.

A copy that computes something else is refused; and two checkpoints are compared.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.each_row import each_row
from tests.models.tiny import SHALLOW
from tests.tasks.dense_models import create, draw_images
from tests.weights.kinds import KINDS, a_model
from vitrail.checksums import add_checksum
from vitrail.data.imagenet import find_imagenet
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError, DiskError
from vitrail.models import MODELS, ViTConfig, configure
from vitrail.models.vit_sizes import FOUNDATIONS
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.verbs.convert import convert
from vitrail.verbs.convert.compare import compare, equal_bits
from vitrail.weights import encode, load
from vitrail.weights.description import describe
from vitrail.weights.encode import EncodedModel
from vitrail.weights.native import save_model
from vitrail.weights.timm import as_timm, parse_preprocessing
from vitrail.weights.timm.vit import VIT

QUICK_KINDS = ("the paper's", "attention pooling", "DeiT III", "Swin", "BEiT", "BiT")


def assert_same(one: Path, other: Path) -> None:
    first, second = load(one), load(other)
    assert {**describe(first), "provenance": 0} == {**describe(second), "provenance": 0}
    tensors, others = first.backbone.state_dict(), second.backbone.state_dict()
    assert list(tensors) == list(others)
    assert all(equal_bits(tensors[name], others[name]) for name in tensors)


@each_row("kind", KINDS, quick=QUICK_KINDS)
def test_a_round_trip_through_every_layout_changes_no_bit_and_no_fact(tmp_path, kind):
    """Timm's also as tensors alone, which carry what timm has no words for beside them."""
    changes, layouts = KINDS[kind]
    place = source = save_model(tmp_path / "source", a_model(**changes))
    steps = [(layout, "a.npz" if layout == "google" else f"in {layout}") for layout in layouts]
    if "timm" in layouts or "gelu" in changes:
        steps.append(("timm", "b.safetensors"))
    for layout, name in [*steps, ("native", "c.safetensors")]:
        place = convert(place, tmp_path / name, layout).path
    assert_same(source, place)
    if "timm" in layouts or "gelu" in changes:
        assert_same(source, tmp_path / "b.safetensors")
        assert (tmp_path / "b.json").is_file()


def test_properties_of_the_native_layout_survive_every_other_layout(tmp_path):
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
    source = saved(norm_eps=1e-4, gelu="exact")
    with pytest.raises(CheckpointError, match="cannot express 1 of the model's numerics") as caught:
        convert(source, tmp_path / "b", "timm")
    assert caught.value.value == "norm_eps 0.0001, read as 1e-06"
    assert "--force" in caught.value.remedy
    assert [each.name for each in tmp_path.iterdir()] == ["source"]
    done = convert(source, tmp_path / "b", "timm", force=True)
    assert done.unsaid == ("norm_eps 0.0001, read as 1e-06",)
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


@each_row("changes", [{"rounding": "round"}, {"crop_rounding": "floor"}])
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
        assert parse_preprocessing(as_timm(model)[1], model.config, Path("config.json"))[0] == model.preprocessing


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
        ("timm", "n", "exists, in the native layout"),
        ("native", "t", "exists, in the timm layout"),
        ("timm", "n.safetensors", "exists, in the native layout"),
        ("native", "t.safetensors", "exists, in the timm layout"),
        ("native", "thesis", r"is not a model folder \(thesis\.tex\)"),
        ("native", "source", "is the source itself"),
        ("timm", "n/model.safetensors", "a part of the model folder"),
        ("google", "lone.npz", r"lone\.json exists without lone\.npz"),
        ("google", "name", "ends in .npz"),
        ("hugingface", "name", "no layout 'hugingface'"),
    ]:
        with pytest.raises(ConfigError, match=words):
            convert(source, tmp_path / name, layout)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "name", "step"),
    [
        ("google", "a.npz", "files.write_bytes"),
        ("google", "a.npz", "files.os.rename"),
        ("google", "a.npz", "files.os.replace"),
        ("timm", "b", "files.write_bytes"),
        ("timm", "b", "files.os.rename"),
        ("native", "c.safetensors", "files.os.replace"),
    ],
)
def test_a_disk_that_fails_at_any_step_leaves_what_was_there(tmp_path, saved, monkeypatch, layout, name, step):
    source = saved()
    convert(source, tmp_path / name, layout)
    before = sorted(each.relative_to(tmp_path) for each in tmp_path.rglob("*"))
    expected = load(tmp_path / name).backbone.state_dict()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"vitrail.{step}", full)
    with pytest.raises(DiskError, match="the disk is full"):
        convert(source, tmp_path / name, layout)
    monkeypatch.undo()
    assert sorted(each.relative_to(tmp_path) for each in tmp_path.rglob("*")) == before
    assert all(equal_bits(each, expected[name]) for name, each in load(tmp_path / name).backbone.state_dict().items())


def test_a_model_is_made_to_fit_on_the_way(tmp_path, saved):
    source = saved()
    done = convert(source, tmp_path / "b", "timm", crop=(16, 32), channels=1, head=("x", "y"))
    made, before = load(done.path), load(source)
    assert (made.config.image_size, made.config.in_channels, made.classes) == ((16, 32), 1, ("x", "y"))
    assert not made.backbone.head.weight.any()
    assert made.config.grid == (4, 8)
    assert equal_bits(made.backbone.get_parameter("norm.weight"), before.backbone.get_parameter("norm.weight"))
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    convert(source, tmp_path / "named.npz", "google", classes=tmp_path / "names.txt")
    assert load(tmp_path / "named.npz").classes == ("one", "two", "three")


WRITTEN = {
    "google": {"vit", "bit"},
    "timm": {"vit", "cait", "beit", "pvt v2"},
    "huggingface": {"vit", "swin", "beit", "pvt v2"},
}


@each_row("name", SHALLOW)
def test_every_architecture_is_written_and_read_again_or_refused(tmp_path, name):
    torch.manual_seed(0)
    source = save_model(tmp_path / "source", create_classifier(SHALLOW[name], classes=7))
    for layout, architectures in WRITTEN.items():
        target = tmp_path / ("copy.npz" if layout == "google" else layout)
        if name in architectures:
            assert convert(source, target, layout).alone == pytest.approx(0, abs=1e-5)
            assert_same(source, target)
            continue
        with pytest.raises(CheckpointError, match=r"no counterpart of|is not supported|shifts windows|parts differ"):
            convert(source, target, layout, force=True)
        assert not target.exists()


@each_row("layout", ["google", "timm", "huggingface", "native"])
def test_imagenets_names_are_in_what_is_written_and_are_read_back(layout, tmp_path):
    small = {"image_size": 8, "patch_size": 4, "width": 192, "depth": 1, "heads": 3, "mlp_width": 16}
    save_file(as_timm(create_classifier("vit-ti16", **small))[0], tmp_path / "bare.safetensors")
    target = tmp_path / ("copy.npz" if layout == "google" else "copy")
    done = convert(tmp_path / "bare.safetensors", target, layout)
    assert load(target).classes == find_imagenet(1_000).names
    assert "the names of the classes" not in done.notes + done.unsaid
    described = json.loads(
        target.with_suffix(".json").read_text() if target.is_file() else (target / "config.json").read_text()
    )
    listed = {"timm": "label_names", "huggingface": "id2label"}.get(layout, "classes")
    assert (described[listed]["288"] if layout == "huggingface" else described[listed][288]) == "leopard"


PLAIN = sorted(
    name
    for name, config in MODELS.items()
    if isinstance(config, ViTConfig) and config.stem is None and name not in FOUNDATIONS
)


@each_row("name", PLAIN)
def test_every_published_vit_has_a_name_of_timms(name):
    """Of its own size, or of another from which the arguments make it."""
    config = MODELS[name]
    told = VIT.arguments(config)
    assert int(told["embed_dim"] * told["mlp_ratio"]) == config.mlp_width
    sized = {"ti": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}
    size = name.split("-")[1].rstrip("0123456789")
    assert VIT.architecture(config).split("_")[1] == sized.get(size, VIT.architecture(config).split("_")[1])


@pytest.mark.slow
def test_the_real_model_is_the_same_through_every_layout(tmp_path, real_data):
    place = source = real_data / "vit_tiny_patch16_224.safetensors"
    steps = ["g.npz google", "t timm", "h huggingface", "n native"]
    for name, layout in map(str.split, steps):
        place = convert(place, tmp_path / name, layout).path
    assert compare(source, place).is_none
    model, before = load(place), load(source, log=lambda line: None)
    assert model.classes == find_imagenet(1_000).names
    assert model.preprocessing == before.preprocessing
    pictures = sorted((real_data / "imagenet_val").rglob("*.jp*g"))[:8]
    images = before.preprocess([Image.open(path) for path in pictures])
    with torch.inference_mode():
        assert torch.equal(model(images), before(images))


@each_row("task, to", [("detection", "timm"), ("segmentation", "huggingface")])
def test_other_layouts_get_the_backbone_of_a_dense_model(tmp_path, task, to):
    model = create(task, configure("vit-ti16", image_size=(32, 32), depth=1))
    model.preprocessing = replace(model.preprocessing, resize="fit")
    save_model(tmp_path / "dense", model)
    lines = []
    copy = load(convert(tmp_path / "dense", tmp_path / "copy", to, log=lines.append).path)
    assert f"backbone only: the {to} layout has no counterpart for the head of a model of {task}" in lines
    images = draw_images(model)
    with torch.no_grad():
        expected, found = (each.backbone.dense_maps(images)[-1] for each in (model, copy))
    assert copy.classes == () and torch.equal(expected, found)


def corrupted(tensor: str, by: float) -> Callable[[Classifier, Path], EncodedModel]:
    """A writer with a fault in one number."""

    def write(classifier: Classifier, path: Path) -> EncodedModel:
        faulty = a_model()
        with torch.no_grad():
            faulty.backbone.get_parameter(tensor).view(-1)[0] += by
        return encode.encode_native(faulty, path)

    return write


@each_row(
    "tensor, by",
    [("head.bias", 1.0), ("blocks.1.mlp.fc1.weight", 0.5), ("norm.bias", float("nan")), ("norm.bias", 1e-7)],
)
def test_a_copy_that_is_not_the_source_is_refused_with_the_figure_and_leaves_nothing(tmp_path, monkeypatch, tensor, by):
    monkeypatch.setitem(encode.ENCODERS, "native", corrupted(tensor, by))
    with pytest.raises(
        CheckpointError, match=r"outputs differ by (nan|[\d.e-]+) of the largest, 1e-05 is allowed"
    ) as caught:
        convert(save_model(tmp_path / "source", a_model()), tmp_path / "copy", "native")
    assert caught.value.value == f"1 of its parts differ: {tensor}"
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_a_copy_whose_description_lies_is_refused_too(tmp_path, saved, monkeypatch):
    def write(classifier: Classifier, path: Path) -> EncodedModel:
        classifier.preprocessing = replace(classifier.preprocessing, interpolation="nearest")
        written = encode.encode_native(classifier, path)
        classifier.preprocessing = replace(classifier.preprocessing, interpolation="bilinear")
        return written

    monkeypatch.setitem(encode.ENCODERS, "native", write)
    with pytest.raises(CheckpointError, match="differ by 0 ") as caught:
        convert(saved(), tmp_path / "copy", "native")
    assert "preprocessing.interpolation" in caught.value.value


def test_a_config_that_contradicts_timm_is_refused(tmp_path, saved, monkeypatch):
    """Read with our description the copy is right; timm would make another model of it."""

    def write(classifier: Classifier, path: Path) -> EncodedModel:
        written = encode.encode_timm(classifier, path)
        told = json.loads(written.files["config.json"])
        told["model_args"]["act_layer"] = "gelu"
        return EncodedModel({**written.files, "config.json": json.dumps(add_checksum(told)).encode()})

    monkeypatch.setitem(encode.ENCODERS, "timm", write)
    with pytest.raises(CheckpointError) as caught:
        convert(saved(), tmp_path / "copy", "timm")
    assert caught.value.value == "gelu tanh, read as exact"


def test_a_model_of_no_numbers_is_refused(tmp_path):
    model = a_model()
    with torch.no_grad():
        model.backbone.get_parameter("head.bias")[0] = torch.nan
    with pytest.raises(CheckpointError, match="not finite"):
        convert(save_model(tmp_path / "source", model), tmp_path / "copy.npz", "google")


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


def test_files_that_are_not_models_are_compared_by_tensor_names(tmp_path):
    np.savez(tmp_path / "a.npz", one=np.zeros(3, np.float32), two=np.ones((2, 2)), three=np.ones(2))
    np.savez(tmp_path / "b.npz", one=-np.zeros(3, np.float32), two=np.full((2, 2), 3.0), three=np.ones(3))
    said: list[str] = []
    found = compare(tmp_path / "a.npz", tmp_path / "b.npz", log=said.append)
    assert not found.as_models
    assert "not as models" in said[-1]
    assert [(each.name, each.absolute, each.relative) for each in found.differing] == [("two", 2, 2), ("one", 0, 0)]
    assert found.shapes == {"three": ("2 float64", "3 float64")}
