"""Training step and inference of a segmenter on ViT-Ti/16 with and without windows, in turns, at two sizes.

Windows change what the network computes, so outputs cannot be compared; the tests hold windows to attention with a mask.
Random weights, images and maps of 11 classes. A training step is forward, loss, backward and AdamW; an answer is the class of
every pixel. The record has the multiply-adds of an image, on CUDA also the peak of memory.

    python benchmarks/windows_step.py --threads 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import harness
import numpy as np
import torch

import vitrail
from vitrail.data.augment.placement import Frames, place
from vitrail.models import cost_of
from vitrail.tasks import Task

NAMES = [f"class {number}" for number in range(11)]
CONTENDERS = {"global attention": {}, "windows of at most 14 patches, 4 global blocks": {"window": 14}}
Size = tuple[int, int]
Step = Callable[[], object]


def segmenter(size: Size, **changes: int) -> Task:
    return vitrail.create_model("vit-ti16", task="segmentation", classes=NAMES, image_size=size, **changes)


def training(model: Task, images: torch.Tensor) -> Step:
    size, batch = (images.shape[2], images.shape[3]), len(images)
    maps = list(np.random.default_rng(0).integers(0, len(NAMES), (batch, *size)).astype(np.uint8))
    placement = place(Frames.whole(batch, size), size, np.tile(np.eye(3), (batch, 1, 1)), size)
    targets = tuple(each.to(images.device) for each in model.targets.move(model.targets.collate(maps), placement))
    model.train().to(images.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        model.loss(model(images), targets).backward()
        optimiser.step()

    return step


def inference(model: Task, images: torch.Tensor) -> Step:
    model.eval().to(images.device)

    @torch.inference_mode()
    def step() -> object:
        return model(images).argmax(1)

    return step


def peak_bytes(step: Step) -> int:
    """The peak of memory on a GPU."""
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", nargs="+", default=["352x480", "768x768"], metavar="HxW")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--batch", type=int, help="2 on a CPU, else 16")
    arguments.add_argument("--blocks", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    batch = given.batch or (2 if given.device == "cpu" else 16)
    turns = partial(harness.take_turns, images=batch, device=given.device, blocks=given.blocks, block_seconds=2.0)
    for written in given.sizes:
        height, width = map(int, written.split("x"))
        images = torch.randn(batch, 3, height, width, device=given.device)
        for mode, make in {"training": training, "inference": inference}.items():
            models = {name: segmenter((height, width), **changes) for name, changes in CONTENDERS.items()}
            steps = {name: make(model, images) for name, model in models.items()}
            found = turns(steps)
            sums = {name: cost_of(model.config).multiply_adds for name, model in models.items()}
            notes = {"batch": batch, "image": [height, width], "backbone_multiply_adds": sums}
            if given.device != "cpu":
                notes["peak_bytes"] = {name: peak_bytes(step) for name, step in steps.items()}
            harness.report(f"windows-{mode}-{written}-{given.device}", found, device=given.device, notes=notes)


if __name__ == "__main__":
    main()
