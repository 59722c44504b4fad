"""What is chosen by timing a network's blocks, beside whole updates in each precision, in turns in one process.

python benchmarks/tuning.py --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import time

import harness
import torch

from vitrail.models import configure, sketch
from vitrail.objectives.supervised import Supervised
from vitrail.runtime.precision import in_precision
from vitrail.runtime.process import keep_large_buffers
from vitrail.runtime.tuning import Way, choose_way
from vitrail.tasks.classification import create_classifier

ROUNDS = 5
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    keep_large_buffers()
    torch.set_num_threads(threads)
    ways = [Way("fp32", threads), Way("bf16", threads)]
    rows = []
    for name, (model, changes, batch) in NETWORKS.items():
        config = configure(model, **changes)
        choice = choose_way(sketch(config), (config.in_channels, *config.image_size), ways, batch=batch)
        whole = time_updates(config, batch, ways)
        rows.append(
            {
                "network": name,
                "batch": batch,
                "chosen": choice.way.precision,
                "measured_in_s": choice.took,
                "measured_ms": {way.precision: 1e3 * seconds for way, seconds in choice.seconds.items()},
                "update_ms": whole,
                "over_the_best": whole[choice.way.precision] / min(whole.values()),
            }
        )
        print(rows[-1])
    print(harness.write("tuning", {"threads": threads, "networks": rows}, device="cpu"))


if __name__ == "__main__":
    main()
