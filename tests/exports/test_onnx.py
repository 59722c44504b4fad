"""ONNX files: what onnxruntime computes from them is what the model computes, at every size and batch."""

from __future__ import annotations

import sys
from functools import partial

import onnx
import onnxruntime
import pytest
import torch

from tests.exports.exported import ALL, assert_same_answers, classifier_of
from vitrail.errors import ConfigError
from vitrail.exports.graph import dynamic_size
from vitrail.exports.onnx import to_onnx
from vitrail.weights.onnx.contents import read_contents
from vitrail.weights.onnx.operators import find_unwanted


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what it refuses is raised too
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(session, images):
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, session.run(None, {"images": images.numpy()}))))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A ViT as a file, with the model."""
    path = tmp_path_factory.mktemp("onnx") / "vit.onnx"
    model = classifier_of("vit, one block")
    to_onnx(model, path, metadata={"classes": '["a", "b"]', "version": "1"})
    return model, path


@pytest.mark.slow
def test_onnxruntime_gives_what_the_model_gives_at_three_sizes_and_batches(written):
    model, path = written
    assert_same_answers(model, partial(run, session_of(path)), is_dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_so_it_does_for_every_architecture(name, tmp_path):
    model = classifier_of(name)
    is_dynamic = to_onnx(model, tmp_path / "model.onnx")
    assert_same_answers(model, partial(run, session_of(tmp_path / "model.onnx")), is_dynamic=is_dynamic)
    contents = read_contents(tmp_path / "model.onnx")
    assert find_unwanted(contents.nodes, contents.constants) == "", "vitrail refuses what it has written"


def test_only_a_beit_with_cubic_tables_has_a_fixed_size():
    assert [name for name in ALL if not dynamic_size(classifier_of(name))] == ["beit, cubic"]


@pytest.mark.slow
def test_axes_and_outputs_have_names_and_the_weights_lie_in_the_one_file(written):
    model, path = written
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
    assert [each.name for each in path.parent.iterdir()] == ["vit.onnx"]
    assert not any(each.external_data for each in graph.initializer)


@pytest.mark.slow
def test_the_file_carries_the_metadata_and_no_path_of_this_machine(written):
    _, path = written
    found = {each.key: each.value for each in onnx.load(path).metadata_props}
    assert found == {"classes": '["a", "b"]', "version": "1"}
    assert b"vitrail/models" not in path.read_bytes()


@pytest.mark.slow
def test_images_that_are_not_whole_patches_are_refused_as_the_model_refuses_them(written):
    model, path = written
    images = torch.zeros(1, 3, 33, 40)
    with pytest.raises(ConfigError, match="does not divide"):
        model(images)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="cannot be reshaped"):
        run(session_of(path), images)


@pytest.mark.slow
def test_the_stem_of_a_hybrid_refuses_them_too(tmp_path):
    to_onnx(classifier_of("vit, root"), tmp_path / "model.onnx")
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="cannot be reshaped"):
        run(session_of(tmp_path / "model.onnx"), torch.zeros(1, 3, 33, 40))


@pytest.mark.slow
def test_weights_too_large_for_one_file_lie_in_one_beside_it(monkeypatch, tmp_path):
    monkeypatch.setattr("vitrail.exports.onnx.LARGEST", 0)
    model = classifier_of("vit, one block")
    to_onnx(model, tmp_path / "model.onnx", metadata={"version": "1"})
    assert {each.name for each in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert_same_answers(model, partial(run, session_of(tmp_path / "model.onnx")), is_dynamic=True)


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"vitrail\[onnx\]"):
        to_onnx(classifier_of("vit, one block"), tmp_path / "model.onnx")


@pytest.mark.slow
def test_exporting_says_nothing_and_leaves_the_model_training(capfd, tmp_path):
    model = classifier_of("vit, no positions, pad").train()
    to_onnx(model, tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
