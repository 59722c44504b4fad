"""What is chosen by timing a network's blocks, beside whole updates, or whole forward passes, in each way, in turns in one
process.

python benchmarks/tuning.py --threads 2
python benchmarks/tuning.py --threads 2 --inference
"""

from __future__ import annotations

import argparse
import statistics
import time

import harness
import torch

from vitrail.inference.options import InferenceOptions
from vitrail.inference.tuning import convolves_maps, list_ways
from vitrail.models import configure, sketch
from vitrail.objectives.supervised import Supervised
from vitrail.runtime.precision import in_precision
from vitrail.runtime.process import keep_large_buffers
from vitrail.runtime.tuning import Way, choose_way
from vitrail.tasks.classification import create_classifier

ROUNDS = 5
FORWARD_ROUNDS = 9
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


def time_updates(config, batch: int, ways: list[Way]) -> dict[str, float]:
    """Median ms of an image, forward, backward and update, by precision."""
    torch.manual_seed(0)
    objective = Supervised(create_classifier(config, classes=10))
    optimiser = torch.optim.AdamW(objective.parameters(), fused=True)
    images, labels = torch.randn(batch, config.in_channels, *config.image_size), torch.randint(10, (batch,))
    taken: dict[str, list[float]] = {way.precision: [] for way in ways}
    for _ in range(ROUNDS + 1):
        for way in ways:
            began = time.perf_counter()
            with in_precision(way.precision, images.device):
                loss, _ = objective(images, labels)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            taken[way.precision].append(1e3 * (time.perf_counter() - began) / batch)
    return {precision: statistics.median(times[1:]) for precision, times in taken.items()}


def time_outputs(config, batch: int, ways: list[Way]) -> dict[Way, float]:
    """Median ms of an image, forward only, by way; the ways take turns, every second time in the other direction."""
    torch.manual_seed(0)
    model = create_classifier(config, classes=10).eval()
    images = torch.randn(batch, config.in_channels, *config.image_size)
    taken: dict[Way, list[float]] = {way: [] for way in ways}
    for number in range(FORWARD_ROUNDS + 1):
        for way in ways[:: 1 if number % 2 else -1]:
            options = InferenceOptions(way=way)
            with torch.inference_mode():
                options.compute(model, images)  # after another number of threads
                began = time.perf_counter()
                options.compute(model, images)
            taken[way].append(1e3 * (time.perf_counter() - began) / batch)
    return {way: statistics.median(times[1:]) for way, times in taken.items()}


def compare_updates(name: str, threads: int) -> dict[str, object]:
    """What is chosen for training, beside whole updates."""
    model, changes, batch = NETWORKS[name]
    config, ways = configure(model, **changes), [Way("fp32", threads), Way("bf16", threads)]
    choice = choose_way(sketch(config), (config.in_channels, *config.image_size), ways, batch=batch)
    assert choice is not None
    whole = time_updates(config, batch, ways)
    return {
        "network": name,
        "batch": batch,
        "chosen": choice.way.precision,
        "measured_in_s": choice.took,
        "measured_ms": {way.precision: 1e3 * seconds for way, seconds in choice.seconds.items()},
        "update_ms": whole,
        "over_the_best": whole[choice.way.precision] / min(whole.values()),
    }


def compare_outputs(name: str, threads: int) -> dict[str, object]:
    """What is chosen for inference in fp32, beside forward passes of the whole network in every way."""
    model, changes, batch = NETWORKS[name]
    config = configure(model, **changes)
    ways = list_ways("fp32", threads, maps=convolves_maps(sketch(config)))
    image = (config.in_channels, *config.image_size)
    choice = choose_way(sketch(config), image, ways, batch=batch, gradient=False)
    assert choice is not None
    whole = time_outputs(config, batch, ways)
    return {
        "network": name,
        "batch": batch,
        "chosen": choice.way.describe(ways),
        "measured_in_s": choice.took,
        "measured_ms": {way.describe(ways): 1e3 * seconds for way, seconds in choice.seconds.items()},
        "forward_ms": {way.describe(ways): taken for way, taken in whole.items()},
        "over_the_best": whole[choice.way] / min(whole.values()),
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
    for name in NETWORKS:
        rows.append(compare(name, asked.threads))
        print(rows[-1], flush=True)
    print(harness.write(title, {"threads": asked.threads, "networks": rows}, device="cpu"))


if __name__ == "__main__":
    main()
