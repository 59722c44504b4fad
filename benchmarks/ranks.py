"""A training on two, three and four CPU processes beside the same training in one: how far losses, gradients and weights differ.

Small configs, random images, batches of 14 images, three updates by AdamW with clipping and mixup. The loss is the largest
difference of a step; the gradient that of the first update, the weights (and moments) those after the third: the largest
relative difference of a tensor in the norm, vectors left out (some of their gradients are zero but for rounding).

    python benchmarks/ranks.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.training import on_ranks
from tests.training.ranks import start_pool
from vitrail.runs.folder import RunFolder

NETWORKS = {"ViT": ("vit",), "DeiT": ("vit", "model.changes.prefix=[cls, dist]"), "Swin": ("swin",), "BiT": ("bit",)}
OBJECTIVES = {"ViT": ("supervised", "mae", "moco"), "DeiT": ("supervised", "mae", "moco")}
OTHERS = ("supervised", "moco")  # of networks that cannot carry a masked autoencoder
CHANGES = {"moco": "{hidden: 24, out: 12}"}
STRATEGIES = ("replicate", "shard")


def losses(out: Path) -> np.ndarray:
    return np.array([record["loss"] for record in RunFolder(out).metrics() if "loss" in record])


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place, start_pool(Path(place), most=4) as pool:
        folder = Path(place)
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
        np.savez(folder / "images.npz", x_train=images, y_train=random.integers(0, 4, 120))
        for name, network in NETWORKS.items():
            for objective in OBJECTIVES.get(name, OTHERS):
                more = ("schedule.steps=3", "data.batch=14", "optim.clip=1.0")
                more += ("augment.mixup=0.8",) if objective == "supervised" else ()
                given = on_ranks.settings(*network, *more, f"objective.changes={CHANGES.get(objective, '{}')}")
                one = folder / f"{name}-{objective}"
                on_ranks.run_keeping_gradients(on_ranks.SINGLE, one, given, objective, folder / "images.npz")
                for strategy in STRATEGIES:
                    for world in (2, 3, 4):
                        out = folder / f"{name}-{objective}-{strategy}-{world}"
                        spread = (*given, f"compute.parallel={strategy}")
                        answers = pool(
                            world, on_ranks.run_keeping_gradients, out, spread, objective, folder / "images.npz"
                        )
                        assert not any(answers), answers
                        row = {
                            "network": name,
                            "objective": objective,
                            "parallel": strategy,
                            "ranks": world,
                            "loss": float(np.abs(losses(one) - losses(out)).max()),
                            "gradient": on_ranks.gradient_difference(one, out),
                            "weights": on_ranks.difference(one, out),
                        }
                        print(row, flush=True)
                        rows.append(row)
    print(harness.write("ranks", {"runs": rows}, device="cpu"))


if __name__ == "__main__":
    main()
