"""Whether a ViT trains without skip connections: the loss on `digits` after some hundred steps.

Each cell is the mean cross-entropy of the last 20 steps and the accuracy on the held-out digits, over seeds, at that
learning rate of a small grid which gives the lowest loss. The network is a ViT with patches of 2 x 2 and width 64; AdamW, a
warm-up of a tenth, then a constant rate; no augmentation.

    python benchmarks/skips.py --depths 4 12 --steps 300 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import harness
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.models import create_backbone

VARIANTS: dict[str, dict[str, Any]] = {
    "with skips": {},
    "without": {"skips": False},
    "without, initial='identity'": {"skips": False, "initial": "identity"},
}
RATES = (3e-4, 1e-3, 3e-3)
BATCH, AVERAGED = 128, 20


def tensors(source: Source) -> tuple[Tensor, Tensor]:
    """All images (N, 1, 8, 8) in [-1, 1] and their classes."""
    examples = [source.read(index) for index in range(len(source))]
    images = torch.stack([torch.from_numpy(each.content).permute(2, 0, 1) for each in examples])
    return images / 127.5 - 1, torch.tensor([each.target for each in examples])


def train(depth: int, changes: dict[str, Any], rate: float, steps: int, seed: int, data: dict[str, Any]) -> tuple:
    """Loss of the last steps and accuracy on the held-out images."""
    torch.manual_seed(seed)
    size = {"image_size": 8, "patch_size": 2, "in_channels": 1, "classes": 10}
    shape = {"width": 64, "depth": depth, "heads": 2, "mlp_width": 256}
    model = create_backbone("vit-ti16", **size, **shape, **changes).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimiser, 1e-3, total_iters=max(steps // 10, 1))
    images, targets = data["train"]
    losses = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(model(images[chosen]), targets[chosen])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        warm_up.step()
        losses.append(loss.item())
    with torch.inference_mode():
        images, targets = data["val"]
        right = (model.eval()(images).argmax(1) == targets).float().mean().item()
    return statistics.mean(losses[-AVERAGED:]), right


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--depths", type=int, nargs="+", default=[4, 12])
    words.add_argument("--steps", type=int, default=300)
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = words.parse_args()
    splits = open_data("digits", seed=0)
    data = {"train": tensors(splits.train), "val": tensors(splits.val)}
    rows: dict[str, Any] = {}
    for depth in asked.depths:
        for name, changes in VARIANTS.items():
            cells = {}
            for rate in RATES:
                found = [train(depth, changes, rate, asked.steps, seed, data) for seed in asked.seeds]
                cells[rate] = [list(column) for column in zip(*found)]
            best = min(cells, key=lambda rate: statistics.mean(cells[rate][0]))
            losses, scores = cells[best]
            row = {"loss": statistics.mean(losses), "val_top1": statistics.mean(scores), "rate": best}
            rows[f"depth {depth}, {name}"] = {**row, "losses": losses, "val_top1s": scores}
            print(f"depth {depth:2}  {name:28}" + "  ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    print(
        harness.write("skips", {"steps": asked.steps, "seeds": asked.seeds, "rates": RATES, "rows": rows}, device="cpu")
    )


if __name__ == "__main__":
    main()
