"""Queries in a plain ViT: the tasks that answer with them, and what is asked of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vitrail
from tests.models.conftest import gradients
from tests.models.tiny import TINY
from tests.tasks.dense_models import CLASSES, QUERIES, VIT, create_queries, draw_images, draw_targets, micro_batches
from vitrail.errors import CheckpointError, ConfigError
from vitrail.objectives import Supervised
from vitrail.tasks import QueryInstances, QuerySegmenter, find_task
from vitrail.tasks.queries.loss import match_queries
from vitrail.weights import adapt
from vitrail.weights.description import build_model_around, describe
from vitrail.weights.native import save_model

every_task = pytest.mark.parametrize("task", QUERIES)


def test_the_probability_of_masks_of_attention_is_saved(tmp_path):
    model = create_queries("instances")
    model.own["head"].after_step(0.3)
    again = vitrail.load(save_model(tmp_path / "model.safetensors", model))
    assert torch.equal(again.own["head"].masking, model.own["head"].masking)
    assert (again.own["head"].masking < 1).any()


@every_task
def test_micro_batches_have_the_gradient_of_the_batch(task):
    model = create_queries(task).double().train()
    images, targets = draw_images(model, 8).double(), draw_targets(model, [2, 0, 3, 1, 5, 1, 0, 2], (32, 32))
    found = [gradients(model, micro_batches(model, model(images), targets, parts)) for parts in (8, 2)]
    for whole, parts in zip(*(each.values() for each in found)):
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-9)


@every_task
def test_it_starts_from_a_classifier_with_a_new_head_and_other_sizes(task):
    start = vitrail.create_model(VIT, classes=5)
    model = adapt(start, task=type(create_queries(task)), arguments={"classes": CLASSES, "queries": 7})
    assert model.training and model.config.classes == 0
    larger = adapt(model.eval(), image_size=(48, 64)).eval()  # its own head stays
    assert torch.equal(larger.own["head"].query, model.own["head"].query)
    assert larger(torch.zeros(1, 3, 48, 64)).isfinite().all()


@every_task
def test_a_head_for_more_objects_or_classes_begins_with_the_parts_that_fit(task):
    start = create_queries(task)
    same = {**start.describe(), "classes": start.classes}
    kept = adapt(start, arguments=same).own.state_dict()
    assert all(torch.equal(kept[name], each) for name, each in start.own.state_dict().items())
    changed = adapt(start, arguments={**same, "queries": 20}).own.state_dict()
    new = {name for name, each in start.own.state_dict().items() if not torch.equal(changed[name], each)}
    assert new == {"head.query"}


def test_heads_and_numbers_that_a_task_does_not_have_are_refused():
    for task, head in (("detection", "queries"), ("instances", "fused"), ("classification", "queries")):
        with pytest.raises(ConfigError, match=f"the task {task} has no head '{head}'"):
            find_task(task, {"head": head})
    with pytest.raises(ConfigError, match="the task panoptic has no head 'fused'"):
        vitrail.create_model(VIT, task="panoptic", classes=CLASSES, arguments={"head": "fused"})
    for name, value in (("queries", 0), ("upscales", 11), ("query_blocks", "two")):
        with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
            create_queries("instances", **{name: value})


def test_matching_is_that_of_fp32_under_autocast():
    """With masks of 25,600 cells, whose sums are beyond the numbers of fp16."""
    shares = torch.zeros(1, 1, 25_600)
    shares[..., :12_800] = 1
    masks = torch.stack([torch.full((25_600,), 20.0), 20 * (2 * shares[0, 0] - 1)])[None, None]
    classes, labels, known = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 25_600)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype):
            assert match_queries(classes, masks, labels, shares, known)[2].tolist() == [1]


def test_a_gradient_to_maps_of_the_last_block_is_refused_with_other_methods():
    model = create_queries("instances")
    with pytest.raises(ConfigError, match=r"no gradient.*\n.*attention, rollout or occlusion"):
        model.answer_maps([torch.zeros(1)], torch.zeros(1))


@every_task
def test_the_objective_of_a_run_opens_the_masks_of_attention(task):
    model = create_queries(task).train()
    images, targets = draw_images(model), draw_targets(model, [2, 3], (32, 32))
    objective = Supervised(model)
    loss, measured = objective(images, *targets)
    assert loss == model.loss(model(images), targets)
    assert all(value.isfinite() for value in measured.values())
    assert model.own["head"].masking == 1
    objective.after_step(0.25)
    assert 0 < model.own["head"].masking < 1
    objective.after_step(1.0)
    assert model.own["head"].masking == 0


@every_task
def test_a_description_that_cannot_be_meant_is_refused(tmp_path, task):
    model = create_queries(task)
    for field, values in (("queries", (0, 1.5, "8")), ("query_blocks", (0, 3, True)), ("upscales", (-1, 11))):
        for value in values:
            with pytest.raises(CheckpointError, match="cannot be used"):
                build_model_around(lambda config: model.backbone, {**describe(model), field: value}, tmp_path)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (TINY["swin"], "Swin"),
        (replace(VIT, positions="relative"), "positions='relative'"),
        (replace(VIT, positions_at="every"), "positions_at='every'"),
        (replace(TINY["vit, windows"], image_size=(32, 32), depth=3, global_blocks=1, window=2), "window=2"),
    ],
)
def test_a_network_that_queries_cannot_enter_is_refused_by_name(config, part):
    with pytest.raises(ConfigError, match=f"{part}.*\n.*hint: take a ViT"):
        create_queries("instances", config, query_blocks=2)


def test_the_head_of_a_task_is_chosen_by_its_name():
    for task, kind in (("instances", QueryInstances), ("segmentation", QuerySegmenter)):
        model = vitrail.create_model(VIT, task=task, classes=CLASSES, arguments={"head": "queries"})
        assert type(model) is kind and model.name == task
    with pytest.raises(ConfigError, match=r"no head 'querys'.*\n.*queries"):
        vitrail.create_model(VIT, task="segmentation", classes=CLASSES, arguments={"head": "querys"})


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # asked by the compiler
def test_a_compiled_objective_has_the_loss_and_the_gradient():
    torch.compiler.reset()
    objective = Supervised(create_queries("instances").train())
    (model,) = objective._task
    images, targets = draw_images(model, 2, (64, 96)), draw_targets(model, [2, 3], (64, 96))
    losses, found = [], []
    for step in (objective, torch.compile(objective, dynamic=True, backend="eager")):
        losses.append(step(images, *targets)[0])
        found.append(gradients(model, losses[-1]))
    torch.testing.assert_close(losses[1], losses[0])
    for plain, compiled in zip(*(each.values() for each in found)):
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
