"""Every kind of network and every dense task, with either head, and what is asked of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial

import pytest
import torch

import vitrail
from tests.models.conftest import gradients
from tests.tasks.dense_models import (
    BACKBONES,
    CLASSES,
    QUERIES,
    VIT,
    WITH_QUERIES,
    create,
    create_queries,
    draw_images,
    draw_targets,
)
from vitrail.config.schema import ModelSettings
from vitrail.data.augment.placement import Frames
from vitrail.errors import CheckpointError, ConfigError
from vitrail.exports.graph import to_onnx
from vitrail.objectives import Supervised
from vitrail.tasks import QuerySegmenter
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.tasks.queries.task import QueryTask
from vitrail.training.optimizer import select_trainable
from vitrail.weights import adapt
from vitrail.weights.description import KEY, build_model_around, describe
from vitrail.weights.native import save_model
from vitrail.weights.onnx import read_onnx

TASKS = ("segmentation", "detection", "instances")
OBLONG = (32, 64)
LOADS_A_COMPILER = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
NETWORKS = [
    ("segmentation", "vit"),
    ("detection", "swin"),
    *zip(itertools.cycle(["detection", "segmentation", "instances"]), BACKBONES),
]
every_task = pytest.mark.parametrize("task", TASKS)
every_head = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(partial(create, task), id=task) for task in TASKS),
        *(pytest.param(partial(create_queries, task), id=f"{task}, queries") for task in QUERIES),
    ],
)
every_model = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(partial(create, task, BACKBONES[name]), id=f"{task}, {name}") for task, name in NETWORKS),
        *(
            pytest.param(partial(create_queries, task, network), id=f"{task}, queries, {name}")
            for task, (name, network) in itertools.product(QUERIES, WITH_QUERIES.items())
        ),
    ],
)


def distance(one, other):
    return float((one - other).abs().max() / other.abs().max())


@every_model
def test_it_trains_on_oblong_images_with_no_and_with_many_objects(make):
    model = make().train()
    images, most = draw_images(model, 2, OBLONG), 5 if isinstance(model, QueryTask) else 300
    loss = model.loss(model(images), draw_targets(model, [0, most], OBLONG))
    assert loss.isfinite() and loss > 0
    found = gradients(model, loss)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert all(found[f"own.{parameter}"].any() for parameter, _ in model.own.named_parameters())
    assert found[f"backbone.{model.first_layer}"].any()


@every_model
def test_an_image_alone_is_answered_as_among_others(make):
    model = make().double()
    images = draw_images(model, 3).double()  # 32 x 32 pixels, a single cell of the coarsest level
    with torch.no_grad():
        torch.testing.assert_close(model(images)[1:2], model(images[1:2]))
        answers = model.decode(model(images), Frames.whole(3, (20, 30)))
    assert len(answers) == 3
    assert all(answer.to_json()["width"] == 30 for answer in answers)


def take_logits(model, outputs):
    """The outputs without boxes, flat."""
    if isinstance(model, QueryTask):
        return outputs.detach().flatten()
    if model.name == "instances":
        cells, *masks = model.split(outputs)
        return torch.cat([each.detach().flatten() for each in (cells[..., 7:], *masks)])
    return outputs.detach()[..., 7 if model.name == "detection" else 0 :].flatten()


@every_model
def test_fewer_digits_stay_near(make):
    model = make()
    images = draw_images(model)
    exact = take_logits(model, model(images))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.train().loss(model(images), draw_targets(model, [3, 1], model.config.image_size))
        found = [model.eval()(images)]
    loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    found.append(model.bfloat16()(images))
    assert {each.dtype for each in found} == {torch.float32}
    # bf16 weights of a ResNet are 0.25 away, of others 0.01; logarithms of small sums are farther
    limits = (0.1, 0.3) if isinstance(model, QuerySegmenter) else (0.05, 0.25)
    assert all(distance(take_logits(model, each), exact) < limit for each, limit in zip(found, limits))


@every_model
def test_saving_and_loading_gives_the_same_model(tmp_path, make):
    model = make()
    again = vitrail.load(save_model(tmp_path / "model.safetensors", model))
    assert type(again) is type(model)
    assert again.describe() == model.describe()
    images = draw_images(model)
    assert torch.equal(again(images), model(images))


@every_head
def test_gradient_checkpointing_changes_no_gradient(make):
    found = []
    for checkpoint in (False, True):
        model = make(replace(VIT, checkpoint=checkpoint)).double().train()
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


@every_head
def test_the_head_alone_can_be_trained(make):
    model = make()
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
    pytest.param(partial(create, "detection", levels=(8, 16)), id="detection, vit"),
    pytest.param(partial(create, "segmentation", BACKBONES["bit"]), id="segmentation, bit"),
    pytest.param(partial(create, "instances", BACKBONES["swin"]), id="instances, swin"),
]
OTHER_GRAPHS = [
    pytest.param(partial(create, "segmentation", BACKBONES["vit, windows"]), id="segmentation, vit, windows"),
    *(pytest.param(partial(create_queries, task), id=f"{task}, queries") for task in QUERIES),
]


@pytest.mark.slow
@LOADS_A_COMPILER
@pytest.mark.parametrize("make", GRAPHS)
def test_a_compiled_model_is_the_model(make):
    torch.compiler.reset()
    model = make()
    compiled = torch.compile(model, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for size in ((64, 96), (96, 128)):
            images = draw_images(model, 2, size)
            assert distance(compiled(images), model(images)) < 1e-4


@pytest.mark.slow
@LOADS_A_COMPILER
@pytest.mark.parametrize("make", [*GRAPHS, *OTHER_GRAPHS])
def test_an_exported_graph_answers_as_the_model_at_any_size(tmp_path, make):
    pytest.importorskip("onnxruntime")
    model = make()
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
