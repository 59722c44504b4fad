"""How time and memory grow with the side of the image, the batch and the depth: a training step, a prediction, an inspection
with all attention matrices, and an answer of the server.

    OMP_NUM_THREADS=1 python benchmarks/growth.py --figure docs/images/cost-growth.svg

The model is ViT-Ti/16 in fp32. An exponent p means that doubling multiplies by 2^p; it is fitted by least squares of
logarithms over all points, and given between the two largest points too, where fixed costs count least. Memory is the peak of
the tensors of a pass without parameters; of the server, what its process takes above that of one idle.
"""

from __future__ import annotations

import argparse
import http.client
import io
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from vitrail.analysis.cost import measure_peak_bytes
from vitrail.models import configure, create_backbone
from vitrail.models.backbone import Backbone
from vitrail.runtime.process import keep_large_buffers
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.native import save_model

sys.path.insert(0, str(Path(__file__).parents[1]))  # `tests` is beside this folder
from tests.serving.process import serve

AXES: dict[str, tuple[tuple[int, ...], str]] = {
    "side": ((64, 128, 256, 512, 1024), "pixels of a side, 1 image, 12 blocks"),
    "batch": ((1, 2, 4, 8, 16, 32), "images of 128 pixels, 12 blocks"),
    "depth": ((2, 4, 8, 16, 32), "blocks, 4 images of 128 pixels (served: 1)"),
}
PLAIN = {"side": 128, "batch": 4, "depth": 12}
WORKS = ("training step", "prediction", "inspection", "served answer")
REPEATS, REQUESTS = 5, 9


@dataclass(frozen=True)
class Point:
    """Seconds and bytes of one piece of work."""

    seconds: float
    bytes: int


def measure(work: str, side: int, batch: int, depth: int) -> Point:
    config = configure("vit-ti16", image_size=side, depth=depth)
    if work == "served answer":
        return ask_server(config, side)
    torch.manual_seed(0)
    model, images = create_backbone(config), torch.randn(batch, 3, side, side)
    step = prepare(work, model, images)
    step()
    seconds = [harness.seconds_for(step, 1, "cpu") for _ in range(REPEATS)]
    return Point(statistics.median(seconds), measure_peak_bytes(step, images.device))


def prepare(work: str, model: Backbone, images: torch.Tensor) -> Callable[[], object]:
    if work == "training step":
        optimiser = torch.optim.AdamW(model.train().parameters(), fused=True)
        labels = torch.zeros(len(images), dtype=torch.int64)

        def train() -> None:
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()
            optimiser.zero_grad()

        return train
    verb = model.eval() if work == "prediction" else model.eval().forward_with_attention

    def look() -> None:
        with torch.no_grad():
            verb(images)

    return look


def ask_server(config: Any, side: int) -> Point:
    """One client, one image after the other; each as large as the input of the model."""
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    with tempfile.TemporaryDirectory() as place:
        save_model(Path(place) / "model", create_classifier(config, classes=10).eval())
        with serve(Path(place) / "model", Path(place) / "log") as server:
            address = server.address()
            idle = server.resident()
            seconds = []
            for _ in range(REQUESTS):
                connection = http.client.HTTPConnection(*address, timeout=300)
                began = time.perf_counter()
                connection.request("POST", "/v1/predict", file.getvalue(), {"Content-Type": "image/jpeg"})
                reply = connection.getresponse()
                body = reply.read()
                seconds.append(time.perf_counter() - began)
                assert reply.status == 200, body
            most = Path(f"/proc/{server.child.pid}/status").read_text().split("VmHWM:")[1].split()[0]
    return Point(statistics.median(seconds[2:]), max(int(most) * 1024 - idle, 1))


def fit(points: dict[int, float]) -> float:
    logarithms = [(math.log(where), math.log(value)) for where, value in points.items()]
    return statistics.linear_regression(*zip(*logarithms)).slope


def draw(found: dict[str, dict[str, dict[int, Point]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "svg.hashsalt": "growth",
    }
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, len(AXES), figsize=(11, 6.2), sharey="row", layout="constrained")
    for column, (axis, (values, label)) in enumerate(AXES.items()):
        for row, (what, unit) in enumerate((("seconds", "seconds"), ("bytes", "bytes"))):
            panel = panels[row][column]
            for work in WORKS:
                if points := found[axis].get(work):
                    heights = [getattr(point, what) for point in points.values()]
                    panel.plot(list(points), heights, marker="o", markersize=4, label=work)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(values, map(str, values))
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
            if row:
                panel.set_xlabel(label)
            if not column:
                panel.set_ylabel(unit)
    panels[0][0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--figure", type=Path, help="SVG file to draw")
    words.add_argument("--largest", type=int, default=1024, help="pixels of a side")
    asked = words.parse_args()
    keep_large_buffers()
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[int, Point]]] = {}
    exponents: dict[str, dict[str, dict[str, list[float]]]] = {}
    for axis, (values, _) in AXES.items():
        found[axis], exponents[axis] = {}, {}
        for work in WORKS:
            if work == "served answer" and axis == "batch":
                continue  # the server makes its own batches
            base = PLAIN | ({"batch": 1} if axis == "side" or work == "served answer" else {})
            taken = [value for value in values if axis != "side" or value <= asked.largest]
            points = {value: measure(work, **base | {axis: value}) for value in taken}
            found[axis][work], exponents[axis][work] = points, {}
            for what in ("seconds", "bytes"):
                figures = {value: getattr(point, what) for value, point in points.items()}
                last = fit(dict(list(figures.items())[-2:]))
                exponents[axis][work][what] = [round(fit(figures), 3), round(last, 3)]
            print(f"{axis:<6} {work:<14} {exponents[axis][work]}", flush=True)
    facts = {
        axis: {work: {value: vars(point) for value, point in points.items()} for work, points in by_work.items()}
        for axis, by_work in found.items()
    }
    print(harness.write("growth", {"points": facts, "exponents": exponents}, device="cpu"))
    if asked.figure:
        draw(found, asked.figure)


if __name__ == "__main__":
    main()
