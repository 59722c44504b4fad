"""A ViT's training step and its inference against timm, Hugging Face and torchvision: same work, one process, in turns.

Training is forward, cross-entropy, backward and a fused AdamW update; inference is forward. Everybody computes in
bf16: under autocast, and in inference with bf16 weights too. Each library runs in the settings that it offers (plain or
fused attention; compiled with --compile), so that its best is there. GELU is the exact one, as in all three peers.
Before anything is timed, vitrail and timm give equal logits from the same weights.

    make bench BENCH=vit_step        or, by hand:        python benchmarks/vit_step.py --models vit-ti16 --compile
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import harness
import timm
import timm.layers
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import Tensor, nn

from vitrail.models import create_backbone

SIZES = {  # width, heads, depth, name in timm
    "vit-ti16": (192, 3, 12, "vit_tiny_patch16_224"),
    "vit-s16": (384, 6, 12, "vit_small_patch16_224"),
    "vit-b16": (768, 12, 12, "vit_base_patch16_224"),
    "vit-l16": (1024, 16, 24, "vit_large_patch16_224"),
}
Step = Callable[[], object]


def ours(name: str) -> nn.Module:
    return create_backbone(name, gelu="exact")


def of_timm(name: str, *, fused: bool) -> nn.Module:
    timm.layers.set_fused_attn(fused)  # read when the model is made
    return timm.create_model(SIZES[name][3])


class HuggingFace(nn.Module):
    """Its classifier, answering with logits."""

    def __init__(self, name: str, *, attention: str) -> None:
        super().__init__()
        width, heads, depth, _ = SIZES[name]
        config = transformers.ViTConfig(
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            num_labels=1000,
            attn_implementation=attention,
        )
        self.model = transformers.ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def of_torchvision(name: str) -> nn.Module:
    width, heads, depth, _ = SIZES[name]
    return torchvision.models.VisionTransformer(224, 16, depth, heads, width, 4 * width)


def builders(name: str) -> dict[str, Callable[[], nn.Module]]:
    return {
        "vitrail": partial(ours, name),
        "timm, fused attention": partial(of_timm, name, fused=True),
        "timm, plain attention": partial(of_timm, name, fused=False),
        "hugging face, fused attention": partial(HuggingFace, name, attention="sdpa"),
        "hugging face, plain attention": partial(HuggingFace, name, attention="eager"),
        "torchvision": partial(of_torchvision, name),
    }


def training(model: nn.Module, images: Tensor, targets: Tensor, *, compiled: bool) -> Step:
    model.train().to(images.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(forward(images), targets)
        loss.backward()
        optimiser.step()

    return step


def inference(model: nn.Module, images: Tensor, *, compiled: bool, weights: torch.dtype) -> Step:
    model.eval().to(images.device, weights)
    images = images.to(weights)
    forward = torch.compile(model) if compiled else model

    def step() -> Tensor:
        with (
            torch.inference_mode(),
            torch.autocast(images.device.type, torch.bfloat16, enabled=weights == torch.float32),
        ):
            return forward(images)

    return step


def check_equal(name: str) -> float:
    """Asserts that vitrail and timm agree on random weights, and gives their largest difference in fp32."""
    torch.manual_seed(0)
    peer, own = of_timm(name, fused=True).eval(), ours(name).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    own.load_state_dict(peer.state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        expected, given = peer(images), own(images)
    difference = (expected - given).abs().max().item()
    assert difference < 1e-4 * expected.abs().max().item(), difference
    return difference


def measure(name: str, *, batch: int, device: str, compiled: bool, blocks: int) -> None:
    difference = check_equal(name)
    torch.manual_seed(0)
    images, targets = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    ways = {"": False, ", compiled": True} if compiled else {"": False}
    turns = partial(harness.take_turns, images=batch, device=device, blocks=blocks, block_seconds=1.0)
    notes = {"batch": batch, "image": 224, "largest_difference_to_timm": difference}
    notes |= {each.__name__: each.__version__ for each in (timm, transformers, torchvision)}

    steps = {
        f"{library}{way}": training(build(), images, targets, compiled=flag)
        for library, build in builders(name).items()
        for way, flag in ways.items()
    }
    harness.report(f"{name}-training-{device}", turns(steps), device=device, notes=notes)

    precisions = {"autocast": torch.float32, "bf16 weights": torch.bfloat16}
    steps = {
        f"{library}, {precision}{way}": inference(build(), images, compiled=flag, weights=dtype)
        for library, build in builders(name).items()
        for precision, dtype in precisions.items()
        for way, flag in ways.items()
    }
    harness.report(f"{name}-inference-{device}", turns(steps), device=device, notes=notes)


def main() -> None:
    available = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", default=["vit-ti16", "vit-s16"], choices=list(SIZES))
    arguments.add_argument("--device", default=available)
    arguments.add_argument("--batch", type=int, help="32 on a CPU, else 256")
    arguments.add_argument("--blocks", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--compile", action="store_true", default=available == "cuda", help="compiled as well")
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    batch = given.batch or (32 if given.device == "cpu" else 256)
    for name in given.models:
        measure(name, batch=batch, device=given.device, compiled=given.compile, blocks=given.blocks)


if __name__ == "__main__":
    main()
