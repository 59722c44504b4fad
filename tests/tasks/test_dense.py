"""Every kind of network and both dense tasks, and what is asked of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch

import vitrail
from tests.models.conftest import gradients
from tests.tasks.dense_models import BACKBONES, CLASSES, VIT, create, draw_images, draw_targets
from vitrail.config.schema import ModelSettings
from vitrail.data.augment.placement import Frames
from vitrail.errors import CheckpointError, ConfigError
from vitrail.exports.graph import to_onnx
from vitrail.objectives import Supervised
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.optimizer import select_trainable
from vitrail.weights import adapt
from vitrail.weights.description import KEY, build_model_around, describe
from vitrail.weights.native import save_model
from vitrail.weights.onnx import read_onnx

TASKS = ("segmentation", "detection", "instances")
OBLONG = (32, 64)
LOADS_A_COMPILER = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
every_task = pytest.mark.parametrize("task", TASKS)
every_network = pytest.mark.parametrize(
    ("name", "task"),
    [
        ("vit", "segmentation"),
        ("swin", "detection"),
        *zip(BACKBONES, itertools.cycle(["detection", "segmentation", "instances"])),
    ],
)


def distance(one, other):
    return float((one - other).abs().max() / other.abs().max())


@every_network
def test_it_trains_on_oblong_images_with_no_and_with_300_objects(name, task):
    model = create(task, BACKBONES[name]).train()
    images = draw_images(model, 2, OBLONG)
    loss = model.loss(model(images), draw_targets(model, [0, 300], OBLONG))
    assert loss.isfinite() and loss > 0
    found = gradients(model, loss)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert all(found[f"own.{parameter}"].any() for parameter, _ in model.own.named_parameters())
    assert found[f"backbone.{model.first_layer}"].any()


@every_network
def test_an_image_alone_is_answered_as_among_others(name, task):
    model = create(task, BACKBONES[name]).double()
    images = draw_images(model, 3).double()  # 32 x 32 pixels, a single cell of the coarsest level
    with torch.no_grad():
        torch.testing.assert_close(model(images)[1:2], model(images[1:2]))
        answers = model.decode(model(images), Frames.whole(3, (20, 30)))
    assert len(answers) == 3
    assert all(answer.to_json()["width"] == 30 for answer in answers)


def take_logits(model, outputs):
    """The outputs without boxes, flat."""
    if model.name == "instances":
        cells, *masks = model.split(outputs)
        return torch.cat([each.detach().flatten() for each in (cells[..., 7:], *masks)])
    return outputs.detach()[..., 7 if model.name == "detection" else 0 :].flatten()


@every_network
def test_fewer_digits_stay_near(name, task):
    model = create(task, BACKBONES[name])
    images = draw_images(model)
    exact = take_logits(model, model(images))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(model(images), draw_targets(model, [3, 1], model.config.image_size))
        found = [model(images)]
    loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    found.append(model.bfloat16()(images))
    assert {each.dtype for each in found} == {torch.float32}
    assert distance(take_logits(model, found[0]), exact) < 0.05
    assert distance(take_logits(model, found[1]), exact) < 0.25  # a ResNet's of bf16 weights; others 0.01


@every_network
def test_saving_and_loading_gives_the_same_model(tmp_path, name, task):
    model = create(task, BACKBONES[name])
    again = vitrail.load(save_model(tmp_path / "model.safetensors", model))
    assert type(again) is type(model)
    assert again.describe() == model.describe()
    images = draw_images(model)
    assert torch.equal(again(images), model(images))


@every_task
def test_gradient_checkpointing_changes_no_gradient(task):
    found = []
    for checkpoint in (False, True):
        model = create(task, replace(VIT, checkpoint=checkpoint)).double().train()
        model.own["head"].dropout = torch.nn.Identity()
        targets = draw_targets(model, [2, 3], (32, 32))
        found.append(gradients(model, model.loss(model(draw_images(model).double()), targets)))
    for plain, again in zip(*(each.values() for each in found)):
        torch.testing.assert_close(plain, again)


@every_task
def test_it_starts_from_a_classifier_or_an_encoder_with_a_new_head(task):
    for classes in (5, 0):
        start = create_classifier(VIT, classes=classes)
        model = adapt(start, task=type(create(task)), arguments={"classes": CLASSES, "head_width": 32})
        assert model.training and model.config.classes == 0
        for name, tensor in start.backbone.state_dict().items():
            assert name.startswith("head.") or torch.equal(model.backbone.state_dict()[name], tensor)
        larger = adapt(model.eval(), image_size=(48, 64)).eval()  # its own head stays
        assert torch.equal(
            larger.own.state_dict()["head.classifier.weight"], model.own.state_dict()["head.classifier.weight"]
        )
        assert larger(torch.zeros(1, 3, 48, 64)).isfinite().all()


@every_task
def test_a_backbone_that_drops_patches_is_refused_by_name(task):
    with pytest.raises(
        ConfigError, match=r"patch_dropout is 0.5, and the task \w+ needs every patch.*\n.*patch_dropout"
    ):
        vitrail.create_model(VIT, task=task, classes=CLASSES, patch_dropout=0.5)


@every_task
def test_a_model_is_created_by_the_name_of_its_task(task):
    model = vitrail.create_model("vit-ti16", task=task, classes=CLASSES, image_size=64)
    assert model.training and model.name == task and model.head_width == 128
    assert model.classes == CLASSES
    with pytest.raises(ConfigError, match="takes names of classes"):
        vitrail.create_model("vit-ti16", task=task)
    with pytest.raises(ConfigError, match="no task 'segmentaton'"):
        vitrail.create_model("vit-ti16", task="segmentaton")


@every_task
def test_a_description_that_cannot_be_meant_is_refused(tmp_path, task):
    model = create(task)
    for field, values in (("levels", ([8, 4], "8", [0])), ("head_width", (1.5, -1, True))):
        for value in values:
            with pytest.raises(CheckpointError, match="cannot be used"):
                build_model_around(lambda config: model.backbone, {**describe(model), field: value}, tmp_path)


@every_task
def test_the_head_alone_can_be_trained(task):
    model = create(task)
    trained = select_trainable(Supervised(model), ModelSettings(head_only=True))
    assert trained.keys() == {f"own.{name}" for name, _ in model.own.named_parameters()}


@every_task
def test_the_objective_of_a_run_takes_targets_and_their_weight(task):
    model = create(task)
    images, targets = draw_images(model), draw_targets(model, [2, 3], (32, 32))
    loss, measured = Supervised(model)(images, *targets)
    assert loss == model.loss(model(images), targets)
    assert all(value.isfinite() for value in measured.values())


# heads on several maps; one of a single row or column would be compiled again
GRAPHS = [
    ("detection", "vit", {"levels": (8, 16)}),
    ("segmentation", "bit", {}),
    ("instances", "swin", {}),
]


@pytest.mark.slow
@LOADS_A_COMPILER
@pytest.mark.parametrize(("task", "name", "arguments"), GRAPHS)
def test_a_compiled_model_is_the_model(name, task, arguments):
    torch.compiler.reset()
    model = create(task, BACKBONES[name], **arguments)
    compiled = torch.compile(model, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for size in ((64, 96), (96, 128)):
            images = draw_images(model, 2, size)
            assert distance(compiled(images), model(images)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name", "arguments"), [*GRAPHS, ("segmentation", "vit, windows", {})])
def test_an_exported_graph_answers_as_the_model_at_any_size(tmp_path, name, task, arguments):
    pytest.importorskip("onnxruntime")
    model = create(task, BACKBONES[name], **arguments)
    to_onnx(model, tmp_path / "model.onnx", metadata={KEY: json.dumps(describe(model))})
    graph = read_onnx(tmp_path / "model.onnx")
    assert not graph.own
    with torch.no_grad():
        for batch, size in ((1, model.config.image_size), (3, OBLONG), (2, (64, 96))):
            images = draw_images(model, batch, size)
            expected = model.graph(images)
            given = graph.backbone.run_graph(images)
            assert expected.keys() == given.keys()
            assert model.difference(expected, given) < 1e-4
            assert model.agreement(expected, given) == 1
            answers = graph.decode(graph(images), Frames.whole(batch, (40, 50)))
            assert [each.row() for each in answers] == [
                each.row() for each in model.decode(model(images), Frames.whole(batch, (40, 50)))
            ]
