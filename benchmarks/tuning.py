"""What is chosen by timing a network's blocks, beside whole updates, or whole forward passes, in each plan, in turns in one
process.

python benchmarks/tuning.py --threads 2
python benchmarks/tuning.py --inference
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from unittest import mock

import harness
import torch

from vitrail.inference.options import InferenceOptions, convolves_maps, list_plans
from vitrail.models import configure, sketch
from vitrail.models.layers import PatchEmbed
from vitrail.objectives.supervised import Supervised
from vitrail.runtime.device import in_precision
from vitrail.runtime.process import keep_large_buffers
from vitrail.runtime.tuning import ExecutionPlan, choose_plan, choose_precision
from vitrail.tasks.classification.classifier import create_classifier

ROUNDS = 5
FORWARD_ROUNDS = 7
FORWARD = {"ViT of digits": 128, "ViT-Ti/16": 8, "ViT-S/16": 4, "BiT-R50x1": 4}  # and their batches
SMALL = {
    "image_size": (8, 8),
    "patch_size": (2, 2),
    "width": 64,
    "depth": 4,
    "heads": 2,
    "mlp_width": 128,
    "in_channels": 1,
}
NETWORKS = {
    "ViT of digits": ("vit-ti16", SMALL, 128),
    "ViT-Ti/16": ("vit-ti16", {}, 32),
    "ViT-S/16": ("vit-s16", {}, 16),
    "Swin-T": ("swin-t", {}, 8),
    "BiT-R50x1": ("bit-r50x1", {}, 8),
}


def time_updates(config, batch: int, plans: list[ExecutionPlan]) -> dict[str, float]:
    """Median ms of an image, forward, backward and update, by precision."""
    torch.manual_seed(0)
    objective = Supervised(create_classifier(config, classes=10))
    optimiser = torch.optim.AdamW(objective.parameters(), fused=True)
    images, labels = torch.randn(batch, config.in_channels, *config.image_size), torch.randint(10, (batch,))
    taken: dict[str, list[float]] = {plan.precision: [] for plan in plans}
    for _ in range(ROUNDS + 1):
        for plan in plans:
            began = time.perf_counter()
            with in_precision(plan.precision, images.device):
                loss, _ = objective(images, labels)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            taken[plan.precision].append(1e3 * (time.perf_counter() - began) / batch)
    return {precision: statistics.median(times[1:]) for precision, times in taken.items()}


def convolve(embed: PatchEmbed, images: torch.Tensor) -> torch.Tensor:
    return embed.proj(images).flatten(2).mT


def time_outputs(config, batch: int, plans: list[ExecutionPlan], clock: Callable[[], float]) -> dict[str, float]:
    """Median ms of an image, forward only: in each plan, and in the first with attention and patches that are not measured.

    They take turns, every second time in the other direction.
    """
    torch.manual_seed(0)
    model = create_classifier(config, classes=10).eval()
    images = torch.randn(batch, config.in_channels, *config.image_size)
    contenders = {plan.describe(plans): (plan, nullcontext) for plan in plans}
    if config.architecture == "vit":
        of_attention = partial(mock.patch, "vitrail.models.attention.attention_path")
        for path in ("plain", "fused"):
            contenders[f"{path} attention"] = plans[0], partial(of_attention, return_value=path)
        contenders["convolved patches"] = plans[0], partial(mock.patch.object, PatchEmbed, "forward", convolve)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(FORWARD_ROUNDS + 1):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            plan, within = contenders[name]
            with torch.inference_mode(), within():
                began = clock()
                InferenceOptions(plan=plan).compute(model, images)
                taken[name].append(1e3 * (clock() - began) / batch)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def compare_updates(name: str, threads: int) -> dict[str, object]:
    """What is chosen for training, beside whole updates."""
    model, changes, batch = NETWORKS[name]
    config, plans = configure(model, **changes), [ExecutionPlan("fp32", threads), ExecutionPlan("bf16", threads)]
    choice = choose_precision(sketch(config), (config.in_channels, *config.image_size))
    whole = time_updates(config, batch, plans)
    return {
        "network": name,
        "batch": batch,
        "chosen": choice.plan.precision,
        "measured_in_s": choice.took,
        "measured_ms": {plan.precision: 1e3 * seconds for plan, seconds in choice.seconds.items()},
        "update_ms": whole,
        "over_the_best": whole[choice.plan.precision] / min(whole.values()),
    }


def compare_outputs(name: str, threads: int) -> dict[str, object]:
    """What is chosen for inference in fp32, beside forward passes of the whole network in every plan.

    Of one thread the time that it was given counts, which other work on the machine takes little of.
    """
    (model, changes, _), batch = NETWORKS[name], FORWARD[name]
    config = configure(model, **changes)
    plans = list_plans("fp32", threads, maps=convolves_maps(sketch(config)))
    image, clock = (config.in_channels, *config.image_size), harness.clock_of("cpu")
    choice = choose_plan(sketch(config), image, plans, batch=batch, gradient=False, clock=clock)
    assert choice is not None
    whole = time_outputs(config, batch, plans, clock)
    return {
        "network": name,
        "batch": batch,
        "chosen": choice.plan.describe(plans),
        "measured_in_s": choice.took,
        "measured_ms": {plan.describe(plans): 1e3 * seconds for plan, seconds in choice.seconds.items()},
        "forward_ms": whole,
        "over_the_best": whole[choice.plan.describe(plans)] / min(whole.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inference", action="store_true")
    asked = parser.parse_args()
    keep_large_buffers()
    torch.set_num_threads(asked.threads)
    compare, title = (compare_outputs, "tuning-inference") if asked.inference else (compare_updates, "tuning")
    rows = []
    for name in FORWARD if asked.inference else NETWORKS:
        rows.append(compare(name, asked.threads))
        print(rows[-1], flush=True)
    print(harness.write(title, {"threads": asked.threads, "networks": rows}, device="cpu"))


if __name__ == "__main__":
    main()
