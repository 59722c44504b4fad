"""What trains a tokenizer: its loss falls, its measures are those of the definitions, and its codes come to be used."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tests.models.conftest import shaken
from tests.models.tiny import TINY as BACKBONES
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.models import sketch
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives import MAE, Reconstruction
from vitrail.objectives.tokenizer import perplexity, psnr

STEPS = 120
TINY: dict[str, Any] = {"patch_size": 4, "width": 16, "depth": 1, "levels": (4, 3, 2)}


def objective(**changes: Any) -> Reconstruction:
    config = TokenizerConfig(**{**TINY, **changes})
    return Reconstruction(Tokenizer(config), std=[0.25] * config.in_channels)


def pictures(channels: int = 3, size: tuple[int, int] = (16, 24)) -> Tensor:
    return torch.randn(4, channels, *size, generator=torch.Generator().manual_seed(1))


def test_loss_and_measures_are_those_of_the_definitions():
    model = Reconstruction(Tokenizer(TokenizerConfig(**TINY)), std=[0.1, 0.2, 0.4])
    shaken(model)
    images = pictures()
    loss, measured = model(images)
    made, codes = model.encoder(images)
    error = (made - images).detach().numpy()
    assert loss.item() == pytest.approx((error**2).mean(), rel=1e-5)
    of_pixels = error * np.array([0.1, 0.2, 0.4])[:, None, None]
    assert measured["psnr"].item() == pytest.approx(10 * math.log10(1 / (of_pixels**2).mean()), rel=1e-5)
    _, counts = np.unique(codes.numpy(), return_counts=True)
    shares = counts / counts.sum()
    assert measured["perplexity"].item() == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
    assert torch.equal(model.show(images)["reconstructed"], made)
    assert not any(each.requires_grad for each in measured.values())


def test_perplexity_is_how_many_codes_are_used_equally_often():
    assert perplexity(torch.arange(24).view(2, 3, 4), 24) == pytest.approx(24)
    assert perplexity(torch.full((2, 3, 4), 7), 24) == pytest.approx(1)


@pytest.mark.parametrize("form", ["oblong", "grey", "five channels", "bf16"])
def test_two_steps_lower_the_loss_of_a_batch(form):
    torch.manual_seed(0)
    channels = {"grey": 1, "five channels": 5}.get(form, 3)
    model = objective(in_channels=channels, patch_size=(4, 8) if form == "oblong" else 4)
    images = pictures(channels)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "bf16"):
            loss, _ = model(images)
        assert loss.dtype == torch.float32
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert np.isfinite(losses).all()
    assert losses[2] < losses[1] < losses[0]


def test_the_state_gives_the_same_loss_and_the_tokenizer_s_alone_a_tokenizer():
    model, again = objective(), objective()
    images = pictures()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images)[0], model(images)[0])
    alone = Tokenizer(TokenizerConfig(**TINY))
    alone.load_state_dict({name.removeprefix("encoder."): each for name, each in model.state_dict().items()})
    assert torch.equal(alone.encode(images), model.encoder.encode(images))


def test_layers_and_weights_without_decay_are_those_of_the_tokenizer():
    model = objective()
    assert {name for layer in model.layers() for name in layer} == {name for name, _ in model.named_parameters()}
    assert model.no_decay() == {name for name, each in model.named_parameters() if each.ndim == 1}


def test_a_backbone_has_no_codes_and_a_tokenizer_is_no_backbone():
    with pytest.raises(ConfigError, match=r"the objective Reconstruction does not support a ViT(.|\n)*tokenizer"):
        Reconstruction(sketch(BACKBONES["vit"]), std=[0.5] * 3)
    with pytest.raises(ConfigError, match=r"the objective MAE does not support a tokenizer(.|\n)*vit, beit, cait"):
        MAE(Tokenizer(TokenizerConfig(**TINY)))
    with pytest.raises(ConfigError, match="std has 2 numbers for a tokenizer of 3 channels"):
        Reconstruction(Tokenizer(TokenizerConfig(**TINY)), std=[0.5, 0.5])


def read(source: Source, count: int) -> Tensor:
    """The first images of a source, normalised with mean and deviation 0.5."""
    contents = [source.read(index).content for index in range(count)]
    arrays = [np.asarray(Image.open(io.BytesIO(each))) for each in contents]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2) / 127.5 - 1


@pytest.mark.slow
def test_a_short_training_beats_the_mean_colour_and_uses_a_tenth_of_the_codes(real_data):
    torch.manual_seed(0)
    splits = open_data(real_data / "cifar10")
    train, test = read(splits.train, 4096), read(splits.test, 500)
    model = Reconstruction(Tokenizer(TokenizerConfig(patch_size=4, width=64, depth=1)), std=[0.5] * 3)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=STEPS)
    for _ in range(STEPS):
        loss, _ = model(train[torch.randint(len(train), (64,))])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    mean = F.interpolate(F.avg_pool2d(test, 4), scale_factor=4)
    with torch.no_grad():
        _, measured = model(test)
    assert measured["psnr"] > psnr((mean - test) * 0.5) + 1
    assert measured["perplexity"] > 0.1 * model.encoder.config.vocabulary
