"""Every architecture through `vitrail train digits`, from scratch and small: top-1 on the held-out digits.

python benchmarks/family.py [--only swin pvt] [--seeds 0]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import harness
import torch
from accuracy import measure

from vitrail.models import configure, cost_of

PLAIN = {"patch_size": 2, "width": 64, "depth": 4, "heads": 2, "mlp_width": 256}
STAGES = {
    "patch_size": 2,
    "widths": [32, 64],
    "depths": [2, 2],
    "heads": [1, 2],
    "mlp_ratios": [4, 4],
    "reductions": [2, 1],
}
FASTER = ["optim.lr=8e-3"]  # than the recipe: their first values are smaller than its own

# model, pixels of the digits (8 as they are), what is changed in it, and in the recipe `small-data`
FAMILY: dict[str, tuple[str, int, dict[str, Any], list[str]]] = {
    "ViT": ("vit-ti16", 8, PLAIN, []),
    "DeiT with two heads": ("deit-ti16-distilled", 8, {**PLAIN, "prefix": ["cls", "dist"], "pool": "cls"}, []),
    "DeiT III": ("deit3-s16", 8, {**PLAIN, "prefix": ["cls"], "pool": "cls", "layer_scale": 1.0}, FASTER),
    "R+ViT": ("r-vit-ti16", 32, {**PLAIN, "patch_size": 8, "stem": [1], "stem_width": 32}, []),
    "axial ViT": ("axial-b16", 8, PLAIN, []),
    "CaiT": ("cait-xxs24", 8, {**PLAIN, "layer_scale": 1.0}, FASTER),
    "BEiT": ("beit-b16", 8, {**PLAIN, "layer_scale": 1.0, "positions": True}, FASTER),
    "Swin": ("swin-t", 8, {"patch_size": 1, "width": 32, "depths": [2, 2], "heads": [1, 2], "window": 4}, FASTER),
    "PVT": ("pvt-tiny", 8, STAGES, FASTER),
    "PVT v2": ("pvt-v2-b1", 8, STAGES, []),
    "PVT v2, linear": ("pvt-v2-b2-li", 8, STAGES, []),
    "BiT": ("bit-r50x1", 32, {"depths": [1, 1]}, FASTER),
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--only", nargs="+", default=list(FAMILY), choices=list(FAMILY))
    words.add_argument("--epochs", type=float, default=30)
    words.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = words.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for title in asked.only:
            name, side, changes, settings = FAMILY[title]
            settings = [f"model.changes={json.dumps(changes)}", f"compute.threads={torch.get_num_threads()}", *settings]
            sized = configure(name, image_size=side, in_channels=1, classes=10, **changes)
            runs = {}
            for seed in asked.seeds:
                out = Path(place) / f"{title}-{seed}"
                how = {
                    "model": name,
                    "size": side,
                    "recipe": "small-data",
                    "epochs": asked.epochs,
                    "seed": seed,
                    "settings": settings,
                }
                runs[str(seed)] = measure("digits", out, **how)
            scores = [run["top1"] for run in runs.values()]
            rows[title] = {"model": name, "settings": settings, "parameters": cost_of(sized).parameters, "runs": runs}
            seconds = sum(run["seconds"] for run in runs.values())
            print(f"{title:22}{rows[title]['parameters']:>10,}  {scores}  {seconds:.0f} s", flush=True)
    print(harness.write("family-digits", {"rows": rows}, device="cpu"))


if __name__ == "__main__":
    main()
