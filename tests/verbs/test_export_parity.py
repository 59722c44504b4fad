"""Comparing a graph with its model: what counts as a difference, what is shown to both, and what fails."""

from __future__ import annotations

import math

import pytest
import torch

from tests.models.tiny import QUICK, TINY
from vitrail.errors import CheckpointError
from vitrail.inference.comparison import generate_pictures
from vitrail.models import create_backbone
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.tasks.task import largest_difference
from vitrail.verbs.export.parity import (
    BATCHES,
    choose_sizes,
    compare,
    describe_slowness,
    measure_speeds,
    scale_pictures,
)

LOGITS = torch.tensor([[3.0, 1.0, -4.0], [0.5, 2.0, 1.0]])
FEATURES = torch.tensor([[1.0, 0.0], [0.0, 2.0]])


def answers(logits: torch.Tensor = LOGITS, features: torch.Tensor = FEATURES):
    return lambda images: {"logits": logits, "features": features}


def differ(model, graph, *batches: torch.Tensor) -> float:
    return max(largest_difference(*pair) for pair in compare(model, graph, batches))


def test_the_difference_is_a_share_of_the_largest_number_of_its_output():
    images = torch.zeros(2, 3, 8, 8)
    assert differ(answers(), answers(), images) == 0
    assert differ(answers(), answers(LOGITS + 0.04), images) == pytest.approx(0.01)
    assert differ(answers(), answers(features=FEATURES + 0.04), images) == pytest.approx(0.02)


def test_the_answers_of_both_to_every_batch_are_given():
    graph = lambda images: {"logits": LOGITS + images.mean(), "features": FEATURES}  # noqa: E731
    batches = [torch.full((2, 3, 8, 8), value) for value in (0.04, 0.4, 0.004)]
    pairs = list(compare(answers(), graph, batches))
    assert [largest_difference(*pair) for pair in pairs] == pytest.approx([0.01, 0.1, 0.001], rel=1e-4)


@pytest.mark.parametrize(("value", "output"), [(math.nan, "logits"), (math.inf, "features")])
def test_an_output_that_is_not_finite_fails(output, value):
    broken = {"logits": LOGITS.clone(), "features": FEATURES.clone()}
    broken[output][1, 1] = value
    with pytest.raises(CheckpointError, match=f"{output} of the graph are not finite"):
        differ(answers(), lambda images: broken, torch.zeros(1))
    with pytest.raises(CheckpointError, match=f"{output} of the model are not finite"):
        differ(lambda images: broken, answers(), torch.zeros(1))


def test_other_outputs_fail():
    with pytest.raises(CheckpointError, match="the outputs of the graph are"):
        differ(answers(), answers(LOGITS[:1]), torch.zeros(1))
    with pytest.raises(CheckpointError, match="the outputs of the graph are"):
        differ(answers(), lambda images: {"features": FEATURES}, torch.zeros(1))


def test_a_head_of_zeros_does_not_divide_by_zero():
    nothing = torch.zeros(2, 3)
    assert differ(answers(nothing), answers(nothing), torch.zeros(1)) == 0
    assert differ(answers(nothing), answers(nothing + 1e-3), torch.zeros(1)) > 1


def test_agreement_is_of_best_classes_or_of_each_yes_and_no_or_of_features():
    other = torch.tensor([[3.0, 1.0, 4.0], [0.5, 2.0, 1.0]])
    one, two = ({"logits": logits, "features": FEATURES} for logits in (LOGITS, other))
    task = create_classifier(TINY["vit"], classes=("a", "b", "c"))
    assert task.agreement(one, two) == 0.5
    task.multi_label = True
    assert task.agreement(one, two) == pytest.approx(5 / 6)
    turned = {"features": torch.tensor([[1.0, 1.0], [0.0, 5.0]])}
    assert task.agreement({"features": FEATURES}, turned) == pytest.approx((0.5**0.5 + 1) / 2)


def test_three_sizes_are_tried_of_which_one_is_oblong():
    for name, config in TINY.items():
        sizes = choose_sizes(config)
        assert sizes[0] == config.image_size, name
        assert len(set(sizes)) == 3, name
        assert any(height != width for height, width in sizes), name


@torch.inference_mode()
@pytest.mark.parametrize("name", [*QUICK, "vit, stem", "swin, odd map"])
def test_every_architecture_takes_the_sizes_that_are_tried(name):
    backbone = create_backbone(TINY[name]).eval()
    for images in scale_pictures(generate_pictures(1, 3, (32, 32)), choose_sizes(TINY[name])):
        assert backbone(images.float() / 255).shape == (1, 7)


def test_pictures_are_scaled_to_every_size_in_batches():
    pictures = generate_pictures(max(BATCHES), 3, (32, 32))
    found = [images.shape for images in scale_pictures(pictures, [(16, 16), (24, 40)])]
    assert found == [(count, 3, *size) for size in ((16, 16), (24, 40)) for count in BATCHES]


def test_generated_pictures_are_the_same_for_a_seed_and_no_two_alike():
    pictures = generate_pictures(4, 3, (20, 30))
    assert torch.equal(pictures, generate_pictures(4, 3, (20, 30)))
    assert not torch.equal(pictures, generate_pictures(4, 3, (20, 30), seed=1))
    assert (pictures.shape, pictures.dtype) == ((4, 3, 20, 30), torch.uint8)
    assert pictures.float().std((1, 2, 3)).min() > 15


def test_speed_is_of_one_image_and_both_are_run_by_turns():
    order: list[str] = []
    functions = {name: lambda images, name=name: order.append(name) for name in ("model", "graph")}
    found = measure_speeds(functions, torch.zeros(4, 3, 8, 8))
    assert list(found) == ["model", "graph"]
    assert all(time > 0 for time in found.values())
    assert order[:4] == ["model", "model", "graph", "graph"]  # of each the first call does not count
    assert order[4:] == ["model", "graph"] * (len(order) // 2 - 2)


def test_a_file_is_slower_than_the_faster_precision_of_its_model():
    def describe(before: float, after: float, **bf16: float) -> str:
        equal = {"ms_before_batch_1": 5.0, "ms_after_batch_1": 5.0}
        return describe_slowness({**equal, "ms_before_batch_8": before, "ms_after_batch_8": after, **bf16})

    assert describe(10.0, 10.2) == ""
    assert describe(10.0, 10.6) == "10.60 ms an image in batches of 8, the model in fp32 10.00 ms"
    assert describe(10.0, 8.0, ms_bf16_batch_8=9.0) == ""
    assert describe(10.0, 8.0, ms_bf16_batch_8=4.0) == "8.00 ms an image in batches of 8, the model in bf16 4.00 ms"
    both = describe(10.0, 11.0, ms_bf16_batch_1=4.0)
    assert both.startswith("5.00 ms an image in batches of 1, the model in bf16 4.00 ms; 11.00 ms")
