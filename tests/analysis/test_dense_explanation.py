"""Explanations of one box of a detector and of one class region of a segmenter."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.looked_at import QUIET
from tests.models.conftest import shaken
from tests.models.tiny import TINY
from tests.tasks.dense_models import BACKBONES, create, draw_images
from vitrail.analysis.explanation import ExplainOptions
from vitrail.analysis.occlusion import occlusion
from vitrail.analysis.rollout import relevance_of_score
from vitrail.data.augment.placement import Frames
from vitrail.errors import ConfigError
from vitrail.models.backbone import eval_mode
from vitrail.verbs.explain.scores import measure_faithfulness
from vitrail.verbs.explain.write import explain_inputs


def find(model, images, **asked):
    size = (images.shape[2], images.shape[3])
    with eval_mode(model):
        return model.find_subject(model(images).float(), Frames.whole(1, size), **asked)


def test_the_score_of_a_box_is_that_of_its_own_cell_and_class():
    model = create("detection")
    model.threshold = 0.0
    images = draw_images(model, 1)
    outputs = model(images).detach().requires_grad_()
    (answer,) = model.decode(outputs.detach())
    for box in (0, 3):
        subject = model.find_subject(outputs.detach(), Frames.whole(1, model.preprocessing.size), box=box)
        assert subject.label == answer.labels[box]
        np.testing.assert_allclose(subject.region, answer.boxes[box], atol=1e-3)
        np.testing.assert_allclose(subject.probability(outputs).item(), answer.scores[box], rtol=1e-5)
        (gradient,) = torch.autograd.grad(subject.logit(outputs).sum(), outputs)
        (place,) = gradient.nonzero().tolist()  # nothing but one logit of one cell
        assert gradient[tuple(place)] == 1 and place[2] == 7 + model.classes.index(subject.label)
        np.testing.assert_allclose(outputs[0, place[1], :4].detach().clip(0, 32), answer.boxes[box], atol=1e-3)
    last = model.find_subject(outputs.detach(), Frames.whole(1, model.preprocessing.size), target=answer.labels[3])
    first = answer.labels.index(answer.labels[3])
    np.testing.assert_allclose(last.region, answer.boxes[first], atol=1e-3)


def test_the_score_of_a_class_is_the_mean_over_the_pixels_that_answer_with_it():
    model = create("segmentation")
    logits = torch.zeros(1, 3, *model.preprocessing.size)
    logits[:, 1, :8, :8], logits[:, 2, 20:, :] = 3.0, 2.0
    logits.requires_grad_()
    whole = Frames.whole(1, model.preprocessing.size)
    subject = model.find_subject(logits.detach(), whole, target="dot")
    assert subject.logit(logits).item() == pytest.approx(3) and subject.region.sum() == 64
    (gradient,) = torch.autograd.grad(subject.logit(logits).sum(), logits)
    assert gradient[0, 1, :8, :8].allclose(torch.tensor(1 / 64)) and gradient.count_nonzero() == 64
    assert model.find_subject(logits.detach(), whole).label == "cell"  # the largest
    assert subject.row()["share"] == pytest.approx(64 / 1024, abs=1e-6)


def test_pixels_of_a_border_around_the_picture_do_not_count():
    model = create("segmentation")
    logits = torch.zeros(1, 3, *model.preprocessing.size)
    logits[:, 1, :8] = 1.0  # above the picture, which the input shows from its row 8 on
    frames = Frames(np.array([[0.0, -8.0, 32.0, 24.0]]), np.array([[24.0, 32.0]]))
    assert model.find_subject(logits, frames).label == "cell"
    with pytest.raises(ConfigError, match=r"no pixel of class 'dot' in this image\n.*a predicted class: cell"):
        model.find_subject(logits, frames, target="dot")


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("detection", "vit"),
        ("detection", "pvt v2"),
        ("detection", "bit"),
        ("segmentation", "deit"),
        ("segmentation", "swin"),
        ("segmentation", "cait"),
    ],
)
def test_every_kind_of_backbone_is_explained(task, name):
    model = create(task, BACKBONES[name])
    images = draw_images(model, 1)
    subject = find(model, images)
    covered = occlusion(model, images, lambda outputs, _: subject.probability(outputs))
    assert covered.isfinite().all() and covered.abs().max() > 0
    if not model.attention_grids(model.config.image_size):
        return
    heat = relevance_of_score(model, images, subject.logit)
    grid = model.attention_grids(model.config.image_size)[0]
    assert heat.shape[1:] == (grid.queries if grid.queries != (0, 0) else grid.keys)
    assert heat.isfinite().all() and heat.min() >= 0 and heat.max() > 0
    # the gradient of the outputs is that of the plain pass: recording changes nothing
    records = []
    recorded = model.answer_maps(model.backbone.dense_maps(images, on_attention=records.append), images)
    torch.testing.assert_close(recorded, model(images), rtol=1e-4, atol=1e-5)
    assert len(records) == len(
        [each for each in model.attention_grids(model.config.image_size) if each.queries != (0, 0)]
    )


def test_a_map_lies_where_a_head_was_made_to_look():
    """Without attention between patches and with a linear head, a region rests on its own patches alone."""
    model = create("segmentation", head="linear", levels=None)
    for block in model.backbone.blocks:
        block.attn.proj.weight.data.zero_()
        block.attn.proj.bias.data.zero_()
    images = draw_images(model, 1)
    rows, columns = model.attention_grids(model.config.image_size)[0].queries
    subject = find(model, images)
    half = images.shape[3] // 2

    def left(outputs):  # the logits of the left half alone
        return outputs[:, model.classes.index(subject.label), :, :half].mean((1, 2))

    heat = relevance_of_score(model, images, left)[0]
    assert heat.shape == (rows, columns)
    assert heat[:, : columns // 2].sum() > 0 and heat[:, columns // 2 + 1 :].sum() == 0


@pytest.mark.parametrize("name", ["vit", "axial", "cait"])
def test_the_relevance_of_an_earlier_block_is_that_of_a_network_that_ends_there(name):
    """The head reads the second of four maps alone, so the attention of later blocks counts for nothing."""
    deep = create("segmentation", replace(TINY[name], depth=4), head="linear", maps="four").double()
    short = create("segmentation", replace(TINY[name], depth=2), head="linear").double()
    shaken(deep.backbone)
    names = short.backbone.state_dict()
    short.backbone.load_state_dict({each: deep.backbone.state_dict()[each] for each in names})
    kernel = deep.own["head"].classifier.weight.data
    kernel[:, : deep.width] = kernel[:, 2 * deep.width :] = 0
    short.own["head"].classifier.weight.data = kernel[:, deep.width : 2 * deep.width]
    short.own["head"].classifier.bias.data = deep.own["head"].classifier.bias.data
    images = draw_images(deep, 2).double()
    one, other = (
        relevance_of_score(model, images, lambda outputs: outputs[:, :, :9, :14].square().sum((1, 2, 3)))
        for model in (deep, short)
    )
    assert other.max() > 0
    torch.testing.assert_close(one, other)


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


@pytest.mark.parametrize(("task", "method"), [("detection", "gradient"), ("segmentation", "occlusion")])
def test_the_overlay_shows_what_was_explained(task, method, photo, tmp_path):
    model = create(task)
    (found,) = explain_inputs(model, [photo], tmp_path / "out", options=ExplainOptions(method=method), inference=QUIET)
    row = found.row()
    stored = json.loads((tmp_path / "out" / f"{method}.json").read_text())["images"][0]
    assert row["label"] in model.classes and stored["label"] == row["label"]
    assert ("x0" in row) == (task == "detection") and ("share" in row) == (task == "segmentation")
    with Image.open(tmp_path / "out" / row["overlay"]) as lit:
        assert lit.size == (60, 40)
        if task == "detection":
            assert (np.asarray(lit) == found.answer.colour).all(-1).sum() > 20


def test_missing_box_class_or_method_raises_with_a_remedy(photo, tmp_path):
    def refused(model, **how) -> str:
        with pytest.raises(ConfigError) as caught:
            list(explain_inputs(model, [photo], tmp_path / "out", options=ExplainOptions(**how), inference=QUIET))
        return str(caught.value)

    detector, segmenter = create("detection"), create("segmentation")
    detector.threshold = 1.0
    assert "there is no box 2: the model finds 0 objects" in refused(detector, method="gradient", box=2)
    assert "no class 'cel'\n  hint: did you mean 'cell'" in refused(detector, method="gradient", target="cel")
    assert "explains no single box or class\n  hint: use --method gradient or occlusion" in refused(detector, box=0)
    assert "a segmenter has no boxes\n  hint: name a class" in refused(segmenter, method="gradient", box=0)
    assert "give one of them" in refused(detector, method="gradient", box=0, target="cell")
    with pytest.raises(ConfigError, match=r"the task of the model is detection\n.*take a classifier"):
        measure_faithfulness(detector, [photo], inference=QUIET)
