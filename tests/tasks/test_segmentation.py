"""Segmentation: maps that follow their pixels, the loss, and the class of every pixel of the picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.models.tiny import TINY
from tests.tasks.dense_models import create, draw_images, draw_targets, fit, micro_batches, whole
from vitrail.data.augment.placement import UNKNOWN, Frames, place
from vitrail.errors import ConfigError
from vitrail.tasks.class_weights import weigh_classes
from vitrail.tasks.segmentation.segmenter import IGNORED, Segmentation
from vitrail.weights import adapt
from vitrail.weights.native import load_model, save_model

SIZE, WEIGHTS = (24, 32), (0.5, 3.0, 1.0)


@pytest.fixture(scope="module")
def segmenter():
    return create("segmentation", size=SIZE, class_weights=WEIGHTS)


def answer(segmenter, batch=3, seed=0):
    with torch.no_grad():
        return segmenter(draw_images(segmenter, batch, seed=seed)).double()


# Targets.


def test_maps_are_collated_with_nothing_around_smaller_ones(segmenter):
    maps = segmenter.targets.collate([np.zeros((2, 3), np.uint8), np.ones((3, 1), np.uint8)])
    assert maps.tolist() == [[[0, 0, 0], [0, 0, 0], [255, 255, 255]], [[1, 255, 255]] * 3]


def test_maps_follow_a_mirrored_crop_and_are_ignored_outside_of_it(segmenter):
    maps = torch.arange(12, dtype=torch.uint8).view(1, 3, 4) % 3
    matrices = np.array([[[-1.0, 0, 5], [0, 1, 1], [0, 0, 1]]])  # mirrored, from column 5 and row 1 on
    moved, weight = segmenter.targets.move(maps, place(Frames.whole(1, (3, 4)), (3, 4), matrices, (2, 4)))
    assert moved.tolist() == [[[255, 1, 0, 2], [255, 2, 1, 0]]]
    assert weight.tolist() == pytest.approx([1 / (2 * (0.5 + 3 + 1))])


def test_a_transform_of_the_users_is_refused(segmenter):
    frames = Frames(np.array([UNKNOWN]), np.array([UNKNOWN[:2]]))
    with pytest.raises(ConfigError, match="cannot follow a transform of your own"):
        segmenter.targets.move(torch.zeros(1, *SIZE, dtype=torch.uint8), place(frames, SIZE, np.eye(3)[None], SIZE))


def test_rare_classes_weigh_more_and_the_average_pixel_one():
    weights = np.array(weigh_classes([900, 100, 0, 25]))
    assert weights[1] / weights[0] == pytest.approx(3)
    assert weights[3] / weights[1] == pytest.approx(2)
    assert weights[2] == weights[3]
    assert (weights * [900, 100, 0, 25]).sum() / 1025 == pytest.approx(1)
    assert max(weigh_classes([10**9, 1])) == 10
    assert weigh_classes([0, 0]) == [1, 1]


# The loss.


@pytest.mark.parametrize("weights", [WEIGHTS, None])
def test_the_loss_and_its_gradient_are_those_of_weighted_cross_entropy(segmenter, weights):
    segmenter.targets, before = replace(segmenter.targets, class_weights=weights), segmenter.targets
    outputs, targets = answer(segmenter).float().requires_grad_(), draw_targets(segmenter, [0] * 3, SIZE)
    loss = segmenter.loss(outputs, targets)
    (slopes,) = torch.autograd.grad(loss, outputs)
    segmenter.targets = before
    logits, maps = outputs.detach().double().movedim(1, -1).numpy(), targets[0].numpy()
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)  # (B, h, w, K)
    known = maps != IGNORED
    of_pixels = np.where(known, np.array(weights or (1, 1, 1))[np.where(known, maps, 0)], 0)  # (B, h, w)
    right = np.take_along_axis(probabilities, np.where(known, maps, 0)[..., None].astype(int), -1)[..., 0]
    assert loss.item() == pytest.approx((of_pixels * -np.log(right)).sum() / of_pixels.sum(), rel=1e-5)
    expected = (probabilities - np.eye(3)[np.where(known, maps, 0)]) * (of_pixels / of_pixels.sum())[..., None]
    np.testing.assert_allclose(slopes.movedim(1, -1).numpy(), expected, atol=1e-8)


def test_micro_batches_add_up_to_the_loss_of_the_batch(segmenter):
    outputs, (maps, _) = answer(segmenter, 4), draw_targets(segmenter, [0] * 4, SIZE)
    maps[0], maps[1, 3:] = IGNORED, IGNORED  # a mean of means would give few pixels the weight of many
    targets = segmenter.targets.move(maps, whole(4, SIZE))
    for parts in (1, 3):
        torch.testing.assert_close(micro_batches(segmenter, outputs, targets, parts), segmenter.loss(outputs, targets))


def test_a_batch_without_any_class_has_no_loss(segmenter):
    maps = torch.full((2, *SIZE), IGNORED, dtype=torch.uint8)
    targets = segmenter.targets.move(maps, whole(2, SIZE))
    assert segmenter.loss(answer(segmenter, 2), targets) == 0
    assert segmenter.measure(answer(segmenter, 2), targets)["pixel_accuracy"] == 0


def test_the_first_loss_of_a_new_head_is_that_of_a_guess():
    model = create("segmentation", size=SIZE, shake=False)
    targets = draw_targets(model, [0, 0], SIZE)
    assert model.loss(model(draw_images(model)), targets).item() == pytest.approx(np.log(3))


# Answers.


def test_maps_lie_in_the_picture(segmenter):
    """The input shows a region of 96 x 64 pixels, which begins left of the picture and ends below it."""
    outputs = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    frames = Frames(np.array([[-10.0, 12, 86, 76], [4, 0, 100, 64]]), np.array([[70.0, 120], [64, 100]]))
    enlarged = F.interpolate(outputs, (64, 96), mode="bilinear", align_corners=False).argmax(1).numpy()
    first, second = (each.map for each in segmenter.decode(outputs, frames))
    assert first.shape == (70, 120) and second.shape == (64, 100)
    assert np.array_equal(first[12:, :86], enlarged[0, :58, 10:])
    assert np.array_equal(second[:, 4:], enlarged[1])
    (alone,) = segmenter.decode(outputs[:1])
    assert np.array_equal(alone.map, outputs[0].argmax(0))


def test_maps_of_pictures_of_unlike_sizes_are_evaluated_at_their_own(segmenter):
    outputs, sizes = answer(segmenter, 2), np.array([[20.0, 30], [40, 12]])
    frames = Frames(np.concatenate([np.zeros((2, 2)), sizes[:, ::-1]], 1), sizes)
    true = [each.map.copy() for each in segmenter.decode(outputs, frames)]
    true[0][3, 4:] = (true[0][3, 4:] + 1) % 3
    metric = segmenter.metric()
    metric.update(outputs, segmenter.targets.collate(true), ["a", "b"], frames)
    assert metric.compute()["pixel_accuracy"] == pytest.approx(1 - 26 / (600 + 480))


def test_an_answer_lists_the_largest_classes():
    found = Segmentation(np.array([[2, 2, 0], [2, 255, 255]], np.uint8), ("sky", "road", "tree"), top=1)
    assert found.shares == {"tree": 0.5, "sky": pytest.approx(1 / 6)}
    assert found.row() == {"label": "tree", "share": 0.5}
    assert found.to_json()["classes"][1]["label"] == "sky"


@pytest.mark.parametrize(
    ("name", "head"), [("vit", "linear"), ("swin", "linear"), ("swin", "fused"), ("pvt v2", "fused")]
)
def test_logits_lie_over_the_pixels_that_they_describe(name, head):
    """Those of mirrored maps are mirrored, and those of an image that ends within a cell are those of the whole cell."""
    model = create("segmentation", TINY[name], head=head, size=(32, 32)).double()
    images = draw_images(model, 1).double()
    maps = model.backbone.dense_maps(images)
    model.backbone.dense_maps = lambda images, layers: maps
    logits, smaller = model(images), model(images[:, :, :30, :29])
    model.backbone.dense_maps = lambda images, layers: [each.flip(-1) for each in maps]
    assert torch.equal(smaller, logits[:, :, :30, :29])
    torch.testing.assert_close(model(images).flip(-1), logits)


# Weights of classes are a part of the model.


def test_class_weights_are_saved_and_do_not_cost_the_head_where_they_change(tmp_path, segmenter):
    again = load_model(save_model(tmp_path / "model", segmenter))
    assert again.class_weights == WEIGHTS
    other = adapt(again, arguments={"classes": again.classes, "class_weights": [1.0, 2.0, 3.0]}).eval()
    assert other.class_weights == (1, 2, 3)
    images = draw_images(segmenter)
    assert torch.equal(other(images), segmenter(images))
    linear = adapt(again, arguments={"classes": again.classes, "head": "linear"})
    assert not linear(images).any()


def test_invalid_options_are_refused():
    for arguments, message in (
        ({"classes": ("one",)}, "a segmenter with 1 classes"),
        ({"classes": tuple(map(str, range(256)))}, "a segmenter with 256 classes"),
        ({"head": "fusd"}, r"no head 'fusd'.*\n.*fused"),
        ({"class_weights": [1, 2]}, "2 class weights for 3 classes"),
    ):
        with pytest.raises(ConfigError, match=message):
            create("segmentation", **arguments)


# Training.


def test_a_small_segmenter_learns_the_squares_on_four_images():
    from tests.tasks.test_detection import draw_squares

    model = create("segmentation", size=32, shake=False, classes=("ground", "dark", "light")).train()
    images, objects = draw_squares()
    maps = torch.zeros(4, 32, 32, dtype=torch.uint8)
    for image, (left, top, right, bottom) in enumerate(objects.boxes.astype(int).tolist()):
        maps[image, top:bottom, left:right] = int(objects.labels[image]) + 1
    targets = model.targets.move(maps, whole(4, (32, 32)))
    losses = fit(model, images, targets, lr=1e-2)
    assert losses[-1] < 0.3 * losses[0]
    with torch.no_grad():
        found = np.stack([each.map for each in model.eval().decode(model(images))])
    assert (found == maps.numpy()).mean() > 0.93  # 0.83 of the pixels are ground
