"""ONNX files and programs of `torch.export`: both compute what the model computes, at every size and batch."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial

import onnx
import onnxruntime
import pytest
import torch

from tests.exports.exported import CONFIGS, assert_same_answers, classifier_of
from tests.models.conftest import shaken
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.exports.graph import dynamic_size, to_onnx, to_program
from vitrail.models import configure, create_backbone
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.export import export, files
from vitrail.weights.description import describe
from vitrail.weights.onnx import read_contents


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what it refuses is raised too
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(session, images):
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, session.run(None, {"images": images.numpy()}))))


def assert_constants_are_weights(path):
    """No operator computes from weights alone: quantisers and TensorRT want the kernels of convolutions as they are."""
    graph = onnx.load(path).graph
    weights = {each.name for each in graph.initializer}
    assert not [node.op_type for node in graph.node if node.input and weights.issuperset(filter(None, node.input))]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "vit"])
def test_onnx_equals_torch_for_every_architecture(name, tmp_path):
    """At three sizes and batches. Sizes that do not divide into patches are refused by both."""
    model, path = classifier_of(name), tmp_path / "model.onnx"
    is_dynamic = to_onnx(model, path)
    session = session_of(path)
    assert_same_answers(model, partial(run, session), is_dynamic=is_dynamic)
    assert read_contents(path).unwanted == "", "vitrail refuses what it has written"
    assert_constants_are_weights(path)
    height, width = model.config.image_size
    if is_dynamic and not getattr(model.config, "pad", True):
        images = torch.zeros(1, 3, 2 * height + 1, 2 * width)
        with pytest.raises(ConfigError, match="does not divide"):
            model(images)
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="cannot be reshaped"):
            run(session, images)


@pytest.mark.slow
def test_a_vit_is_one_file_with_named_axes_and_metadata_and_without_paths_of_this_machine(tmp_path):
    model, path = classifier_of("vit"), tmp_path / "vit.onnx"
    metadata = {"classes": '["a", "b"]', "version": "1"}
    to_onnx(model, path, metadata=metadata)
    assert_same_answers(model, partial(run, session_of(path)), is_dynamic=True)
    assert_constants_are_weights(path)
    graph = onnx.load(path, load_external_data=False).graph
    shapes = {
        each.name: [axis.dim_param or axis.dim_value for axis in each.type.tensor_type.shape.dim]
        for each in (*graph.input, *graph.output)
    }
    assert shapes == {
        "images": ["batch", 3, "height", "width"],
        "logits": ["batch", 7],
        "features": ["batch", model.width],
    }
    assert [each.name for each in tmp_path.iterdir()] == ["vit.onnx"]
    assert not any(each.external_data for each in graph.initializer)
    assert {each.key: each.value for each in onnx.load(path).metadata_props} == metadata
    assert b"vitrail/models" not in path.read_bytes()


def test_only_a_beit_with_cubic_tables_has_a_fixed_size():
    assert [name for name in CONFIGS if not dynamic_size(classifier_of(name))] == ["beit, one cubic table"]


@pytest.mark.slow
def test_weights_too_large_for_one_file_lie_beside_it_and_the_model_stays_in_training(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr("vitrail.exports.graph.LARGEST", 0)
    model = classifier_of("vit").train()
    to_onnx(model, tmp_path / "model.onnx", metadata={"version": "1"})
    assert capfd.readouterr() == ("", "")
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert {each.name for each in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert_same_answers(model.eval(), partial(run, session_of(tmp_path / "model.onnx")), is_dynamic=True)


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"vitrail\[onnx\]"):
        to_onnx(classifier_of("vit"), tmp_path / "model.onnx")


# the ONNX files of all others begin as the same programs; windows of open sizes must come through a file here too
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_a_loaded_program_equals_the_model_and_carries_the_metadata(name, tmp_path):
    model, found = classifier_of(name), {"classes": ""}
    assert to_program(model, tmp_path / "model.pt2", metadata={"classes": '["a", "b"]'})
    program = torch.export.load(tmp_path / "model.pt2", extra_files=found).module()
    assert_same_answers(model, program, is_dynamic=True)
    assert found == {"classes": '["a", "b"]'}
    if name == "vit":  # as the model refuses it
        with pytest.raises(AssertionError, match="Guard failed"):
            program(torch.zeros(1, 3, 33, 40))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("dinov3-s16", 64), ("eva02-ti14", 56)])
def test_blocks_of_public_models_pass_the_gate_at_three_sizes_in_fp32_and_int8(name, side, tmp_path, monkeypatch):
    backbone = shaken(create_backbone(configure(name, classes=0, depth=2, image_size=side))).eval()
    model, traced = Classifier(backbone, (), Preprocessing.paper((side, side))), tmp_path / "traced.onnx"
    assert to_onnx(model, traced, metadata={"vitrail": json.dumps(describe(model))})
    monkeypatch.setattr(files, "to_onnx", lambda model, path, **how: bool(shutil.copy(traced, path)))
    monkeypatch.setattr("vitrail.weights.onnx.try_out", lambda *given: None)
    monkeypatch.setattr("vitrail.verbs.export.parity.SECONDS", 0.01)
    how = {"images": 8, "quiet": True, "log": lambda line: None}
    exact, int8 = (export(model, tmp_path / "a.onnx", int8=int8, **how) for int8 in (False, True))
    assert len(set(exact.figures["sizes"].split(","))) == 3 and exact.dynamic and int8.dynamic
    assert exact.figures["difference"] < 1e-4 < int8.figures["difference"] < 0.2
    assert int8.figures["agreement"] > 0.998 and int8.bytes < exact.bytes / 2
