"""An .onnx of vitrail's is a model: it answers as the graph does, and refuses what a graph cannot do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import vitrail
from tests.each_row import each_row
from tests.weights.graphs import DYNAMIC, a_graph, head_of, write_graph
from tests.weights.kinds import a_model
from vitrail.errors import CheckpointError, ConfigError
from vitrail.inference.features import digest_of
from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of
from vitrail.verbs.convert import convert
from vitrail.weights import adapt
from vitrail.weights.description import KEY, describe
from vitrail.weights.native import save_model, set_temperature

pytestmark = pytest.mark.usefixtures("fast_trial")
WEIGHT, BIAS = head_of(3, 3)


def silent(line: str) -> None: ...


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    draw, names = np.random.default_rng(0), []
    for count in range(5):
        names.append(str(tmp_path / f"{count}.png"))
        Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(names[-1])
    return names


def expected(images: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Features and logits of the graph, by hand."""
    features = images.numpy().mean((2, 3))
    return features, features @ WEIGHT.T + BIAS


def test_it_is_a_classifier_that_answers_as_the_graph_does(tmp_path):
    source = a_model(depth=1, gelu="exact")
    source.temperature = 1.5
    told = describe(source, provenance={"weights": "elsewhere"})
    model = vitrail.load(write_graph(tmp_path / "a.onnx", told=told))
    assert (model.classes, model.temperature) == (source.classes, 1.5)
    assert (model.config, model.preprocessing) == (source.config, source.preprocessing)
    assert model.provenance == {"weights": "elsewhere"}
    images = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    features, logits = expected(images)
    np.testing.assert_allclose(model(images), logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.features(images), features, rtol=1e-5, atol=1e-6)
    assert (model.width, model.training, device_of(model).type) == (3, False, "cpu")


def test_it_predicts_and_embeds(tmp_path, pictures):
    path = write_graph(tmp_path / "a.onnx")
    model = vitrail.load(path)
    images = torch.cat([model.preprocess(Image.open(name)) for name in pictures])
    features, logits = expected(images)
    best = [model.classes[place] for place in logits.argmax(1)]
    assert [each.label for each in model.predict([Image.open(name) for name in pictures])] == best
    how = {"quiet": True, "batch": 2, "log": silent}
    assert [each.label for each in vitrail.predict(path, pictures, **how)] == best
    found = [each for _, each in vitrail.embed(path, pictures, **how)]
    np.testing.assert_allclose(found, features, rtol=1e-5, atol=1e-6)


def test_it_is_evaluated_as_any_model(tmp_path):
    path = write_graph(tmp_path / "a.onnx", classes=tuple("0123456789"), channels=1)
    evaluation = vitrail.evaluate(path, "digits", quiet=True, batch=500, log=silent)
    weight, bias = head_of(10, 1)
    digits = vitrail.load(path)
    images = digits.preprocess(np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8))
    np.testing.assert_allclose(digits(images), images.numpy().mean((2, 3)) @ weight.T + bias, rtol=1e-5, atol=1e-6)
    assert evaluation.figures["images"] == 1797
    assert evaluation.figures["top1"] == np.mean(evaluation.metric.predicted == evaluation.metric.targets)


def test_an_encoder_gives_features(tmp_path):
    model = vitrail.load(write_graph(tmp_path / "a.onnx", classes=()))
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(model.features(images), images.mean((2, 3)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="no head"):
        model.predict(np.zeros((8, 8, 3), np.uint8))


def test_a_graph_of_any_size_takes_another_and_keeps_its_session(tmp_path):
    path = write_graph(tmp_path / "a.onnx")
    model = vitrail.load(path, image_size=(20, 32))
    assert model.preprocessing.size == model.config.image_size == (20, 32)
    assert model(torch.zeros(1, 3, 20, 32)).shape == (1, 3)
    assert model.backbone.at(16).session is model.backbone.session
    with pytest.raises(ConfigError, match="does not divide into patches"):
        vitrail.load(path, image_size=17)


def test_a_graph_of_one_size_refuses_another_with_the_command_that_makes_it(tmp_path):
    path = write_graph(tmp_path / "a.onnx", size=(16, 16))
    model = vitrail.load(path)
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 3)
    for refused in (lambda: vitrail.load(path, image_size=(20, 32)), lambda: model(torch.zeros(1, 3, 20, 32))):
        with pytest.raises(ConfigError, match="requires images of 16x16 pixels, but got 20x32") as error:
            refused()
        assert "--size 20x32" in error.value.remedy
    told = describe(a_model(depth=1, image_size=32))
    with pytest.raises(ConfigError, match="requires images of 16x16"):
        vitrail.load(write_graph(tmp_path / "b.onnx", size=(16, 16), told=told))


VERBS = {
    "patchify": lambda model: model.patchify(torch.zeros(1, 3, 16, 16)),
    "forward_features": lambda model: model.forward_features(torch.zeros(1, 3, 16, 16)),
    "forward_with_attention": lambda model: model.forward_with_attention(torch.zeros(1, 3, 16, 16)),
    "feature_maps": lambda model: model.feature_maps(torch.zeros(1, 3, 16, 16)),
    "head": lambda model: model.head(torch.zeros(1, 3)),
    "layers": lambda model: model.layers(),
    "reset_head": lambda model: model.backbone.reset_head(2),
    "adapt": lambda model: adapt(model, classes=("dog", "elk")),
}


@each_row("verb", VERBS)
def test_verbs_that_need_more_than_outputs_are_refused_with_a_remedy(tmp_path, verb):
    model = vitrail.load(write_graph(tmp_path / "a.onnx"))
    with pytest.raises(ConfigError, match="outputs and features") as error:
        VERBS[verb](model)
    assert "the model that it was exported from" in error.value.remedy


def test_it_is_not_saved_converted_or_calibrated(tmp_path):
    path = write_graph(tmp_path / "a.onnx")
    with pytest.raises(ConfigError, match="no weights to save"):
        save_model(tmp_path / "b", vitrail.load(path))
    with pytest.raises(CheckpointError, match="folded into it"):
        convert(path, tmp_path / "b", "native")
    with pytest.raises(CheckpointError, match="fixed by its comparison"):
        set_temperature(path, 2.0)
    assert not (tmp_path / "b").exists()


@each_row("asked, words", [({"precision": "bf16"}, "--precision"), ({"device": "cuda"}, "--device")])
def test_another_precision_or_device_is_refused(tmp_path, asked, words):
    path = write_graph(tmp_path / "a.onnx")
    with pytest.raises(ConfigError) as error:
        InferenceOptions(**asked).load(path, silent)
    assert f"leave {words} out" in error.value.remedy


def test_features_of_two_graphs_are_kept_apart(tmp_path):
    one, again, other = (
        vitrail.load(write_graph(tmp_path / name, seed=seed))
        for name, seed in (("a.onnx", 0), ("b.onnx", 0), ("c.onnx", 1))
    )
    assert digest_of(one) == digest_of(again) != digest_of(other)


def foreign(path: Path) -> None:
    path.write_bytes(a_graph().SerializeToString())


def torn(path: Path) -> None:
    content = write_graph(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def no_graph(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 no graph at all")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def elsewhere(path: Path) -> None:
    """Its numbers are in a file that was not copied with it."""
    graph = onnx.load(write_graph(path))
    onnx.save(graph, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()


def of_another_model(path: Path) -> None:
    write_graph(path, channels=5, told=describe(a_model(depth=1)))


def of_other_classes(path: Path) -> None:
    write_graph(path, told=describe(a_model(depth=1, classes=("ant", "bee"))))


def of_pictures(path: Path) -> None:
    write_graph(path, given="pictures")


def of_other_names(path: Path) -> None:
    write_graph(path, given="x")


def of_a_later_format(path: Path) -> None:
    write_graph(path, told={**describe(a_model(depth=1)), "format_version": 99})


def of_no_sense(path: Path) -> None:
    write_graph(path, told={"format_version": 1, "architecture": "vit"})


BROKEN = {
    foreign: "has no description of the model",
    torn: "is not an ONNX file, or is damaged",
    no_graph: "is not an ONNX file",
    empty: "it has no graph",
    elsewhere: "'weights.bin', which is not in its folder",
    of_another_model: "does not match its description",
    of_other_classes: "does not match its description",
    of_pictures: "includes preprocessing",
    of_other_names: "does not match its description",
    of_a_later_format: "format version 99",
    of_no_sense: "cannot be used",
}


@each_row("make", BROKEN)
def test_a_damaged_or_foreign_file_is_refused_with_a_remedy(tmp_path, make):
    make(tmp_path / "a.onnx")
    with pytest.raises(CheckpointError, match=BROKEN[make]) as error:
        vitrail.load(tmp_path / "a.onnx")
    assert error.value.remedy


def test_without_onnxruntime_the_command_that_brings_it_is_named(tmp_path, monkeypatch):
    path = write_graph(tmp_path / "a.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError) as error:
        vitrail.load(path)
    assert error.value.remedy == "pip install 'vitrail[onnx]'"


def test_it_runs_on_as_many_threads_as_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    session = vitrail.load(write_graph(tmp_path / "a.onnx")).backbone.session
    assert session.get_session_options().intra_op_num_threads == 3


def test_the_description_is_json_in_the_metadata(tmp_path):
    path = write_graph(tmp_path / "a.onnx", size=DYNAMIC)
    (entry,) = onnx.load(path).metadata_props
    assert (entry.key, json.loads(entry.value)["classes"]) == (KEY, ["ant", "bee", "cat"])
