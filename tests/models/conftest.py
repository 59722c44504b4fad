"""Small ViTs with numbers of some size in every tensor, so that no part of one is idle, and what compares two models."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch

from vitrail.models import ViT, ViTConfig, create_backbone

SMALL = {"image_size": 32, "patch_size": 8, "classes": 7, "width": 16, "depth": 3, "heads": 2, "mlp_width": 24}


def shaken(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1))
    return model


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """What a test draws does not depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture
def make() -> Callable[..., ViT]:
    """Builds a small ViT in evaluation mode, in fp64 unless ``dtype`` says otherwise."""

    def build(dtype: torch.dtype = torch.float64, seed: int = 0, **changes) -> ViT:
        model = create_backbone(ViTConfig(**{**SMALL, **changes}))
        return shaken(model, seed).to(dtype).eval()

    return build


@pytest.fixture
def pictures() -> Callable[..., torch.Tensor]:
    """Random images (B, C, H, W) in fp64 unless ``dtype`` says otherwise."""

    def draw(batch=2, channels=3, height=32, width=32, dtype=torch.float64) -> torch.Tensor:
        return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1)).to(dtype)

    return draw


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient of every parameter, zero where the loss does not depend on it."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(each) if given is None else given for (name, each), given in zip(named.items(), found)
    }


def outputs_of(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Filled with what each module gives, the first thing where that is a tuple, as the model runs."""
    seen: list[torch.Tensor] = []
    for module in modules:
        module.register_forward_hook(
            lambda module, given, result: seen.append(result[0] if isinstance(result, tuple) else result)
        )
    return seen


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-9) -> None:
    """To ``tolerance`` of the largest absolute value."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
