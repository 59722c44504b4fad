"""What is looked up inside of the models of a study: heads by hand, and shifts of images whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.data.sources.open import open_data
from vitrail.tasks.classification import create_classifier
from vitrail.workflows.study.findings import measure_findings, summarise_heads


def heads(*distances):
    unknown = torch.zeros(len(distances))
    return HeadFigures(distance=torch.tensor(distances), uniform=10.0, entropy=unknown, prefix=unknown)


def test_heads_of_the_lowest_third_are_local_mixed_or_neither():
    layers = [heads(2.0, 9.5), heads(4.9, 6.0), heads(6.0, 7.0), heads(8.0, 8.0), heads(7.0, 7.0)]
    found = summarise_heads(layers)
    assert found["share_mixed"] == 0.5  # the first of two layers has a head below 5 and one above 9
    assert found["share_local"] == 0.5  # two of their four heads are below 5
    assert found["distance_by_depth"] == pytest.approx(0.8)  # ranks 2 1 3 5 4
    assert summarise_heads(layers[3:])["share_local"] == 0.0


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_only_images_with_a_place_move(name):
    torch.manual_seed(0)
    model = create_classifier(TINY[name], classes=4).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    noise = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    plain = np.broadcast_to(noise[:, :1, :1], noise.shape).copy()  # each image has one colour
    still, moving = (look_inside(model, images)["shifts"] for images in (plain, noise))
    assert still == {"moved": pytest.approx(0, abs=1e-9), "changed": 0.0}
    assert 0.01 < moving["moved"] < 3


def look_inside(model, images):
    source = open_data((images, np.arange(len(images)) % 4), validation=0).train
    return measure_findings(["shifts"], model, source, seed=0)
