"""A test-time register takes the outliers of a model, which itself stays as it is."""

from __future__ import annotations

import copy

import pytest
import torch

import vitrail
from tests.analysis.planted import CONFIG, draw_images, plant_outliers
from tests.analysis.test_tokens import read
from tests.looked_at import NAMES, shaken
from tests.models.tiny import TINY
from vitrail.analysis.registers import add_register
from vitrail.analysis.tokens import find_onset, measure_norms
from vitrail.errors import ConfigError, DataError
from vitrail.models import create_backbone
from vitrail.models.config import changed
from vitrail.tasks.classification.classifier import create_classifier


@pytest.mark.parametrize("registers", [0, 2])
def test_the_outliers_move_into_the_register_of_a_copy(registers):
    model = create_classifier(changed(CONFIG, registers=registers), classes=NAMES).eval()
    images = draw_images(12)
    plant_outliers(model.backbone, images)
    before, tensors = model(images), copy.deepcopy(model.state_dict())
    shown, register = add_register(model, images.split(8))
    assert [neuron[:2] for neuron in register.neurons] == [(1, 5)]
    assert register.neurons[0].at_outliers == pytest.approx(20, rel=0.1)
    assert find_onset(register.before) == 1 and find_onset(measure_norms(shown, [images])) is None
    # the outlier was 20 x 500
    tokens = list(shown.backbone._outputs(shown.patchify(images)))[1][0]  # (B, T, D)
    norms = tokens.norm(dim=2)
    assert norms[:, 1 + registers].min() > 9_000 and norms[:, 2 + registers :].max() < 100
    assert torch.equal(model(images), before) and model.config.registers == registers
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    assert shown.backbone.blocks[1].mlp.fc2.weight is model.backbone.blocks[1].mlp.fc2.weight
    if registers:
        assert torch.equal(shown.backbone.reg_token[:, :-1], model.backbone.reg_token)
    assert register.same_answers == (shown(images).argmax(1) == before.argmax(1)).float().mean()
    assert add_register(model.backbone, [images], 0)[1].neurons == []


@pytest.mark.parametrize("queries", [0, 3], ids=["no queries", "behind queries"])
def test_the_register_gets_the_value_of_largest_magnitude_and_patches_get_zero(queries):
    model, images = create_backbone(CONFIG).eval(), draw_images(12)
    plant_outliers(model, images)
    shown, register = add_register(model, [images], 3)
    (block, *indices) = (1, *(neuron.index for neuron in register.neurons if neuron.block == 1))
    others = [index for index in range(CONFIG.mlp_width) if index not in indices]
    given, moved = [], []
    layer = shown.blocks[block].mlp.fc2
    layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]), prepend=True)
    layer.register_forward_pre_hook(lambda _, inputs: (-inputs[0],), prepend=True)  # so that the largest are negative
    layer.register_forward_pre_hook(lambda _, inputs: moved.append(inputs[0]))
    with torch.no_grad():
        shown.encode_queries(images, torch.ones(queries, CONFIG.width), CONFIG.depth)
    at = queries + 1  # after the class token
    (before,), (after,) = given, moved
    for index in indices:
        values = before[0, :, index].tolist()
        assert after[0, at, index].item() == max(values, key=abs)
        assert not after[:, at + 1 :, index].any() and torch.equal(after[:, :at, index], before[:, :at, index])
    assert torch.equal(after[..., others], before[..., others])


def test_the_pooled_tokens_alone_are_those_of_all_tokens():
    """The last block, in which neurons are moved too, is computed for the class token only."""
    model, images = create_backbone(changed(CONFIG, depth=2)).eval(), draw_images(12)
    plant_outliers(model, images)
    shown, register = add_register(model, [images], 2)
    with torch.no_grad():
        torch.testing.assert_close(shown.features(images), shown.pool(shown.forward_features(images)))
    assert register.neurons[0].block == 1


def test_other_models_and_images_without_artefacts_are_refused():
    images = torch.randn(2, 3, *TINY["swin"].image_size, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match="are for ViTs, and this is a Swin"):
        add_register(shaken(TINY["swin"]), [images])
    with pytest.raises(DataError, match="no feature map has artefacts on 2 images"):
        add_register(shaken(), [torch.randn(2, 3, *TINY["vit"].image_size)])


@pytest.mark.slow
def test_one_neuron_of_the_public_vit_tiny_makes_its_artefacts(real_data):
    """Of 300 photographs: the largest norm falls from 593 to 36.5 with one neuron; with two, 93 % of the answers are the same."""
    model = vitrail.load(real_data / "vit_tiny_patch16_224.safetensors", log=lambda line: None)
    images = read(model, real_data, 10)
    shown, register = add_register(model, images.split(5))
    assert [neuron[:2] for neuron in register.neurons] == [(7, 417)]
    assert register.neurons[0].at_outliers == pytest.approx(173.5, rel=0.1)
    after = measure_norms(shown, images.split(5))
    assert register.before[-1].largest > 500 and after[-1].largest < 40
    assert find_onset(after) is None
    assert register.same_answers is not None and register.same_answers >= 0.7
    assert add_register(model, images.split(5), 2)[1].same_answers >= 0.8


def test_neurons_are_found_on_images_that_have_outliers():
    """Those behind many without outliers, which the search of neurons does not reach."""
    model, images = create_backbone(CONFIG).eval(), draw_images(12)
    plant_outliers(model, images)
    found = [add_register(model, batches)[1] for batches in ([images], [torch.zeros(60, *images.shape[1:]), images])]
    assert found[0].neurons[0][:2] == found[1].neurons[0][:2]
    assert found[0].neurons[0].at_outliers == pytest.approx(found[1].neurons[0].at_outliers, rel=1e-4)
