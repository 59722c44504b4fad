"""Training step and inference of the pyramids, Swin-T and PVT v2 B1, against timm's: same work, one process, in turns.

What is measured, and how, is `vit_step`'s, in fp32 too; timm with its fused and with its plain attention. Before anything is
timed, both give equal logits from the same weights.

    make bench BENCH=pyramid_step        or, by hand:        python benchmarks/pyramid_step.py --models swin-t
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial

import harness
import timm
import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vit_step import Step

from vitrail.models import create_backbone

PEERS = {"swin-t": "swin_tiny_patch4_window7_224", "pvt-v2-b1": "pvt_v2_b1"}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def of_timm(name: str, *, fused: bool) -> nn.Module:
    timm.layers.set_fused_attn(fused)  # read when the model is made
    return timm.create_model(PEERS[name])


def builders(name: str) -> dict[str, Callable[[], nn.Module]]:
    return {
        "vitrail": partial(create_backbone, name),
        "timm, fused attention": partial(of_timm, name, fused=True),
        "timm, plain attention": partial(of_timm, name, fused=False),
    }


def training(model: nn.Module, images: Tensor, targets: Tensor, dtype: torch.dtype) -> Step:
    model.train().to(images.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimiser.step()

    return step


def inference(model: nn.Module, images: Tensor, dtype: torch.dtype) -> Step:
    model.eval().to(images.device, dtype)
    images = images.to(dtype)

    def step() -> Tensor:
        with torch.inference_mode():
            return model(images)

    return step


def check_equal(name: str) -> float:
    """Asserts that vitrail and timm agree on random weights, and gives their largest difference in fp32."""
    torch.manual_seed(0)
    peer, own = of_timm(name, fused=True).eval(), create_backbone(name).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    own.load_state_dict(
        {
            re.sub(r"^layers\.", "stages.", key).replace("head.fc.", "head."): each
            for key, each in peer.state_dict().items()
        }
    )
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        expected, given = peer(images), own(images)
    difference = (expected - given).abs().max().item()
    assert difference < 1e-4 * expected.abs().max().item(), difference
    return difference


def measure(name: str, *, batch: int, device: str, blocks: int) -> None:
    difference = check_equal(name)
    torch.manual_seed(0)
    images, targets = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    turns = partial(harness.take_turns, images=batch, device=device, blocks=blocks, block_seconds=2.0)
    notes = {"batch": batch, "image": 224, "largest_difference_to_timm": difference, "timm": timm.__version__}
    for precision, dtype in PRECISIONS.items():
        steps = {library: training(build(), images, targets, dtype) for library, build in builders(name).items()}
        harness.report(f"{name}-training-{precision}-{device}", turns(steps), device=device, notes=notes)
        steps = {library: inference(build(), images, dtype) for library, build in builders(name).items()}
        harness.report(f"{name}-inference-{precision}-{device}", turns(steps), device=device, notes=notes)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", default=list(PEERS), choices=list(PEERS))
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--batch", type=int, help="16 on a CPU, else 128")
    arguments.add_argument("--blocks", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.models:
        measure(
            name, batch=given.batch or (16 if given.device == "cpu" else 128), device=given.device, blocks=given.blocks
        )


if __name__ == "__main__":
    main()
