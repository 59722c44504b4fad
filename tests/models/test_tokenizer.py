"""The visual tokenizer: its codes are what was rounded, they come back as images, and gradients pass through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.conftest import gradients, shaken
from vitrail.errors import ConfigError
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig

TINY: dict[str, Any] = {"patch_size": 4, "width": 8, "depth": 1, "levels": (4, 3, 2)}


def tokenizer(**changes: Any) -> Tokenizer:
    """Numbers of some size in every tensor, in fp64."""
    model = Tokenizer(TokenizerConfig(**{**TINY, **changes}))
    shaken(model)
    return model.double().eval()


def pictures(channels: int = 3, size: tuple[int, int] = (16, 24)) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("channels", "patch", "size"), [(3, 4, (16, 24)), (1, 4, (4, 4)), (5, (4, 2), (8, 6)), (3, (1, 3), (5, 9))], ids=str
)
def test_codes_of_any_images_come_back_as_such_images(channels, patch, size):
    model = tokenizer(in_channels=channels, patch_size=patch)
    images = pictures(channels, size)
    codes = model.encode(images)
    rows, columns = model.config.patch_size
    assert codes.shape == (2, size[0] // rows, size[1] // columns)
    assert codes.dtype == torch.int64
    assert 0 <= codes.min() <= codes.max() < 24
    made, same = model(images)
    assert torch.equal(same, codes)
    assert made.shape == images.shape
    torch.testing.assert_close(model.decode(codes), made)


def test_a_code_is_the_nearest_level_of_each_number_the_first_counting_least():
    model = tokenizer()
    images = pictures()
    seen: list[Tensor] = []
    model.to_levels.register_forward_hook(lambda layer, given, found: seen.append(found.detach()))
    codes = model.encode(images).numpy()
    expected = np.zeros(codes.shape, int)
    step = 1
    for number, levels in enumerate(TINY["levels"]):
        share = 1 / (1 + np.exp(-seen[0][..., number].numpy()))  # (B, h, w)
        nearest = np.abs(share[..., None] - np.linspace(0, 1, levels)).argmin(-1)
        expected += step * nearest
        step *= levels
    assert (codes == expected).all()
    assert len(np.unique(codes)) > 5


def test_each_code_stands_for_other_levels():
    model = tokenizer()
    seen: list[Tensor] = []
    model.from_levels.register_forward_hook(lambda layer, given, found: seen.append(given[0]))
    model.decode(torch.arange(24).view(1, 4, 6))
    rows = seen[0].flatten(0, 2)  # (24, 3), from -1 to 1
    assert len(rows.unique(dim=0)) == 24
    assert [len(rows[:, number].unique()) for number in range(3)] == [4, 3, 2]
    assert rows.min() == -1
    assert rows.max() == 1


def test_gradients_pass_through_rounding_as_if_it_were_not_there():
    model = tokenizer()
    images = pictures()
    made, _ = model(images)
    found = gradients(model, (made * images).sum())
    bounded = model._compute_bounded(images).detach().requires_grad_()
    (model._draw(bounded + (bounded.round() - bounded).detach()) * images).sum().backward()
    expected = gradients(model, (model._compute_bounded(images) * bounded.grad).sum())
    for name, gradient in found.items():
        assert gradient.any(), name
        if name.startswith(("patch_embed", "blocks.0", "to_levels")):
            torch.testing.assert_close(gradient, expected[name])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_code_sees_one_patch_further_with_each_block(depth):
    model = tokenizer(depth=depth)
    images = pictures(size=(28, 28)).requires_grad_()  # 7 x 7 patches
    (gradient,) = torch.autograd.grad(model._compute_bounded(images)[:, 3, 3].sum(), images)
    touched = gradient.abs().sum((0, 1)).unflatten(0, (7, 4)).unflatten(2, (7, 4)).sum((1, 3)) > 0  # (7, 7)
    expected = torch.zeros(7, 7, dtype=torch.bool)
    expected[3 - depth : 4 + depth, 3 - depth : 4 + depth] = True
    assert torch.equal(touched, expected)


def test_half_precision_rounds_the_numbers_of_fp32():
    model, images = tokenizer().float(), pictures().float()
    with torch.autocast("cpu", torch.bfloat16):
        made, codes = model(images)
        assert torch.equal(model.encode(images), codes)
    assert made.isfinite().all()
    bounded = model._compute_bounded(images)
    assert bounded.dtype == torch.float32
    assert (codes == model.encode(images)).float().mean() > 0.8


def test_all_parameters_have_a_layer_and_kernels_decay():
    model = tokenizer(depth=2)
    layers = model.layers()
    assert [sorted({name.split(".")[0] for name in layer}) for layer in layers] == [
        ["patch_embed"],
        ["blocks"],
        ["blocks", "from_levels", "to_levels"],
        ["blocks"],
        ["blocks"],
        ["pixels"],
    ]
    named = dict(model.named_parameters())
    assert {name for layer in layers for name in layer} == named.keys()
    assert named.keys() - model.no_decay() == {name for name, each in named.items() if each.ndim > 1}


def test_a_new_tokenizer_uses_several_levels_of_each_number():
    torch.manual_seed(0)
    model = Tokenizer(TokenizerConfig(patch_size=4, levels=(8, 8, 8)))
    codes = model.encode(torch.randn(8, 3, 32, 32))
    assert all(len((codes // 8**number % 8).unique()) >= 3 for number in range(3))


def test_a_config_that_cannot_be_is_refused():
    for changes, message in (
        ({"levels": (8, 1)}, "integers of at least 2"),
        ({"levels": ()}, "one positive integer for each"),
        ({"levels": (256, 256, 2)}, "product is 65,536 or less"),
        ({"patch_size": 0}, "patch_size = pixels"),
        ({"depth": -1}, "an integer of at least 0"),
        ({"norm_eps": 0}, "a number above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            TokenizerConfig(**{**TINY, **changes})


def test_a_config_goes_through_plain_values():
    config = TokenizerConfig(**TINY)
    assert TokenizerConfig.from_dict(config.to_dict()) == config
    assert config.vocabulary == 24
    with pytest.raises(ConfigError, match="a tokenizer has no field 'level'"):
        TokenizerConfig.from_dict({"level": 3})


def test_images_and_codes_that_cannot_be_are_refused():
    model = tokenizer()
    with pytest.raises(ConfigError, match="for a tokenizer of 3 channels"):
        model(pictures(4))
    with pytest.raises(ConfigError, match="resize to 16x24"):
        model.encode(pictures(size=(16, 25)))
    with pytest.raises(ConfigError, match="codes from 0 to 24 for a tokenizer of 24"):
        model.decode(torch.tensor([[[0, 24]]]))
    with pytest.raises(ConfigError, match=r"give \(B, h, w\) integers"):
        model.decode(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match=r"give \(B, h, w\) integers"):
        model.decode(torch.zeros(1, 2, 3))
