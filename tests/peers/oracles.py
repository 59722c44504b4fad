"""One of ours and one of timm's with the same random weights: the weights, the images, and how near is near.

Every tensor gets numbers of deviation 0.1, so that nothing which starts at zero or one hides a mistake.
"""

from __future__ import annotations

import torch

LOGITS, FEATURES = 1e-4, 2e-5  # of the largest absolute value that is compared; fp32 in 12 blocks
CLASSES = 11


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + is_scale)
    return model.eval()


def pictures(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def gradients(model: torch.nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of the cross-entropy of two images, by the names of the parameters."""
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(images), torch.tensor([3, 7])).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * max(1.0, float(theirs.detach().abs().max()))


def assert_gradients_near(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Each to its namesake, and none without one."""
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert_near(gradient, theirs[name], LOGITS)
