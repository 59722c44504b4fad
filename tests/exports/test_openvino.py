"""OpenVINO files: written from an ONNX graph, read as a model, and refused where they are damaged or not what they should be."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import vitrail
from tests.exports.exported import classifier_of, images_of
from tests.tasks.dense_models import create
from tests.weights.graphs import head_of, write_graph
from tests.weights.kinds import a_model
from vitrail.errors import CheckpointError, ConfigError
from vitrail.exports.graph import to_onnx
from vitrail.exports.openvino import add_metadata, to_openvino
from vitrail.inference.features import digest_of
from vitrail.inference.options import InferenceOptions
from vitrail.runtime.openvino_runtime import import_openvino, read_signal_stack
from vitrail.verbs.export import export
from vitrail.weights.description import KEY, describe
from vitrail.weights.openvino import add_checksum_to_openvino
from vitrail.weights.resolve import hash_model, resolve_model

if find_spec("openvino") is None:  # it is not imported here, as that would start its telemetry
    pytest.skip("needs openvino", allow_module_level=True)
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def silent(line: str) -> None: ...


def write_ir(path: Path, source: Path | None = None) -> Path:
    """The graph of `tests.weights.graphs`, or ``source``, under the description of a ViT."""
    source = write_graph(path.with_suffix(".onnx")) if source is None else source
    metadata = {each.key: each.value for each in onnx.load(source).metadata_props}
    to_openvino(source, path, metadata=metadata)
    return path


def test_it_is_a_model_that_answers_as_the_graph_does(tmp_path):
    path = write_ir(tmp_path / "a.xml")
    add_metadata(path, "parity", '{"precision": "fp32 & \'more\'"}')
    add_checksum_to_openvino(path)
    model, told = vitrail.load(path), a_model(depth=1)
    assert (model.classes, model.preprocessing, model.config) == (told.classes, told.preprocessing, told.config)
    weight, bias = head_of(3, 3)
    features = IMAGES.mean((2, 3)).numpy()
    np.testing.assert_allclose(model.features(IMAGES), features, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(IMAGES), features @ weight.T + bias, rtol=1e-5, atol=1e-6)
    assert model.backbone.parity == {"precision": "fp32 & 'more'"}
    assert model.width == 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="OpenVINO sets a signal stack on Linux only")
def test_a_signal_is_handled_after_models_were_deleted_in_the_order_in_which_they_were_loaded(tmp_path):
    path, before = write_ir(tmp_path / "model.xml"), read_signal_stack().raw
    models = [vitrail.load(path, log=silent) for _ in range(2)]
    assert read_signal_stack().raw == before
    while models:
        del models[0]
        gc.collect()
    assert read_signal_stack().raw == before


@pytest.mark.slow
def test_other_weights_have_another_hash_and_a_change_is_refused(tmp_path):
    path = write_ir(tmp_path / "a.xml")
    before = digest_of(vitrail.load(path)), hash_model(resolve_model(path))
    weights = tmp_path / "a.bin"
    content = weights.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    weights.write_bytes(changed)
    assert digest_of(vitrail.load(path)) != before[0]
    assert hash_model(resolve_model(path)) != before[1]
    weights.write_bytes(content)
    add_checksum_to_openvino(path)
    assert vitrail.load(path).classes
    weights.write_bytes(changed)
    with pytest.raises(CheckpointError, match="does not match its SHA-256"):
        vitrail.load(path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read") as error:
        vitrail.load(path)
    assert error.value.remedy


@pytest.mark.slow
def test_a_file_without_a_description_or_of_something_else_is_refused(tmp_path):
    to_openvino(write_graph(tmp_path / "a.onnx"), path := tmp_path / "a.xml")
    with pytest.raises(CheckpointError, match="no description of the model"):
        vitrail.load(path)
    for name, content in {"b": "<net>", "c": "<annotation/>", "d": ""}.items():
        (tmp_path / f"{name}.xml").write_text(content)
        with pytest.raises(CheckpointError) as error:
            vitrail.load(tmp_path / f"{name}.xml")
        assert error.value.remedy


def test_an_operator_that_is_not_of_a_network_for_images_is_refused(tmp_path):
    openvino = import_openvino()
    operators = import_openvino("openvino.opset13")
    images = operators.parameter([-1, 3, -1, -1], np.float32, name="images")
    images.output(0).set_names({"images"})
    cut = operators.reshape(images, operators.convert(operators.reduce_max(images, [0, 1, 2], False), "i64"), False)
    for name, end, words in (
        ("a", operators.non_zero(images), "the operator 'NonZero'"),
        ("b", cut, "depends on the content of an image"),
    ):
        graph = openvino.Model([end], [images])
        graph.set_rt_info("{}", [KEY])
        openvino.save_model(graph, tmp_path / f"{name}.xml")
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / f"{name}.xml")


@pytest.mark.slow
def test_precisions_that_openvino_computes_in_are_compiled(tmp_path, monkeypatch):
    path = write_ir(tmp_path / "a.xml")
    compiled: list[str] = []
    monkeypatch.setattr(
        "vitrail.weights.openvino.OpenVINOSession.compile", lambda self, precision: compiled.append(precision)
    )
    for precision in ("fp32", "auto", "bf16"):
        InferenceOptions(precision=precision).load(path, silent)
    assert compiled == ["fp32", "fp32", "fp32", "bf16"]
    with pytest.raises(ConfigError, match="precision of an exported graph"):
        InferenceOptions(precision="fp16").load(path, silent)


@pytest.mark.slow
def test_an_export_is_compared_and_of_two_files_and_their_hashes(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.verbs.export.parity.SECONDS", 0.01)
    model = classifier_of("vit")
    done: Any = export(model, tmp_path / "a.xml", "openvino", images=2, quiet=True, log=silent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.xml", "a.xml.sha256"]
    assert done.bytes == sum((tmp_path / name).stat().st_size for name in ("a.bin", "a.xml"))
    assert done.figures["difference"] < 1e-5
    again = vitrail.load(done.path)
    assert list(vitrail.check_export(done.path)) == ["a.bin", "a.xml"]
    images = images_of(model, (2, *model.config.image_size))
    torch.testing.assert_close(again(images), model(images).detach(), rtol=1e-4, atol=1e-4)
    export(model, tmp_path / "a.xml", "openvino", images=2, quiet=True, log=silent)  # over itself


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
def test_objects_and_maps_are_those_of_the_model(task, tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.verbs.export.parity.SECONDS", 0.01)
    model = create(task)
    done: Any = export(model, tmp_path / "a.xml", "openvino", images=2, quiet=True, log=silent)
    assert done.figures["difference"] < 1e-4
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8))
    (found,), (expected,) = (each.predict([picture]) for each in (vitrail.load(done.path), model))
    assert [row["label"] for row in found.rows()] == [row["label"] for row in expected.rows()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "deit", "swin", "bit"])
def test_nncf_quantises_the_graphs_as_they_are_written(name, tmp_path):
    pytest.importorskip("nncf")
    model = classifier_of(name)
    images = images_of(model, (4, *model.config.image_size))
    to_onnx(model, tmp_path / "a.onnx")
    metadata = {KEY: json.dumps(describe(model))}
    to_openvino(tmp_path / "a.onnx", tmp_path / "a.xml", metadata=metadata, calibration=images.split(1))
    graph = import_openvino().Core().read_model(tmp_path / "a.xml")
    kinds = Counter(node.get_type_name() for node in graph.get_ops())
    assert kinds["FakeQuantize"] >= 8
    found = vitrail.load(tmp_path / "a.xml")(images)
    assert torch.nn.functional.cosine_similarity(found, model(images).detach()).min() > 0.8


def test_telemetry_is_off():
    import_openvino()
    assert sys.modules["openvino_telemetry"] is None
