"""What masks are made of: the attention of queries, computed again by hand, and prototypes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.tasks.dense_models import VIT, WITH_QUERIES, create, create_queries, draw_images
from vitrail.analysis.masks import measure_prototypes, measure_queries
from vitrail.errors import ConfigError

OBLONG = (32, 64)


@pytest.mark.parametrize("name", ["vit", "distillation token and registers"])
@pytest.mark.parametrize("task", ["segmentation", "instances", "panoptic"])
def test_queries_are_those_of_the_answer_with_their_attention_in_the_last_block(task, name):
    model = create_queries(task, replace(WITH_QUERIES[name], depth=3), query_blocks=2)
    images, inputs = draw_images(model, 2, OBLONG), []
    attention = model.backbone.blocks[-1].attn
    hook = attention.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.no_grad():
        classes, masks = model.own["head"](model.backbone, images)
        hook.remove()
        q, k, _ = attention.qkv(inputs[0]).unflatten(2, (3, model.config.heads, -1)).permute(2, 0, 3, 1, 4)
    shares = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).mean(1)[:, : model.queries, -32:]  # of 4 x 8 patches
    probabilities = classes[:, 0].softmax(2)[..., :-1]
    for image, found in enumerate(measure_queries(model, images, most=4)):
        scores = probabilities[image].amax(1)
        best = scores.argsort(descending=True)[:4]
        assert [query.score for query in found] == pytest.approx(scores[best].tolist())
        for query, row in zip(found, best.tolist(), strict=True):
            assert query.label == model.classes[int(probabilities[image, row].argmax())]
            read, mask = (torch.from_numpy(query.maps[name]) for name in ("query", "mask"))
            torch.testing.assert_close(read, shares[image, row].view(4, 8))
            torch.testing.assert_close(mask, masks[image, 0, row].sigmoid())


def test_prototypes_are_those_that_masks_are_summed_from():
    model = create("instances")
    images = draw_images(model, 2, OBLONG)
    prototypes = torch.from_numpy(measure_prototypes(model.train(), images))
    assert model.training
    with torch.no_grad():
        torch.testing.assert_close(prototypes, model.eval().split(model(images))[2])


def test_a_model_without_such_masks_is_refused():
    images = torch.zeros(1, 3, *VIT.image_size)
    with pytest.raises(ConfigError, match="has no queries"):
        measure_queries(create("instances"), images)
    with pytest.raises(ConfigError, match="has no prototypes"):
        measure_prototypes(create("detection"), images)
