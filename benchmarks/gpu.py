"""What a GPU does, in nine minutes: `make bench-gpu`, or `make bench-gpu DEVICE=cpu` to rehearse it with tiny work.

In this order, as long as the time lasts: the rate of bf16 products; training steps and inference of ViT-S/16, B/16 and L/16
beside timm and torchvision, all compiled, with the share of that rate (MFU); masked autoencoding; a training from JPEG files
to the loss; and with ``--cifar10 FOLDER`` the accuracy of CIFAR-10 in a minute, over seeds. What found no time is named. The
record and a page with its tables go to ``records/``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from accuracy import measure
from PIL import Image
from step import inference, of_timm, of_torchvision, ours, training
from torch import nn

import vitrail
from vitrail.models import configure, cost_of
from vitrail.runtime.process import keep_large_buffers

Step = Callable[[], object]
LIBRARIES = {"vitrail": ours, "timm": partial(of_timm, fused=True), "torchvision": of_torchvision}


@dataclass(frozen=True)
class Scale:
    """The amount of work: what a GPU gets, or a rehearsal."""

    seconds: float  # in all
    precision: str  # of steps; a rehearsal takes what no CPU has to emulate
    products: int  # rows of the square matrices
    models: tuple[tuple[str, int], ...]  # with the images of a batch
    compiled: bool
    block_seconds: float
    pretrained: str  # the encoder of masked autoencoding
    photographs: int
    trained: tuple[str, int, int]  # model, batch and steps of the training from files
    speedrun: str


SCALES = {
    "cuda": Scale(
        seconds=540,
        precision="bf16",
        products=8192,
        models=(("vit-s16", 512), ("vit-b16", 256), ("vit-l16", 128)),
        compiled=True,
        block_seconds=0.6,
        pretrained="vit-b16",
        photographs=4096,
        trained=("vit-s16", 256, 200),
        speedrun="60s",
    ),
    "cpu": Scale(
        seconds=120,
        precision="fp32",
        products=512,
        models=(("vit-ti16", 2),),
        compiled=False,
        block_seconds=0.1,
        pretrained="vit-ti16",
        photographs=48,
        trained=("vit-ti16", 8, 6),
        speedrun="5s",
    ),
}


@dataclass
class Report:
    """What was found, and what found no time."""

    device: str
    deadline: float
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def has(self, seconds: float, what: str) -> bool:
        """Whether there is time for what takes so long."""
        if time.monotonic() + seconds <= self.deadline:
            return True
        self.left_out.append(what)
        print(f"no time for {what}", flush=True)
        return False

    def add(self, title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        lines = [f"## {title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        self.tables.append("\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]))
        print(self.tables[-1] + "\n", flush=True)


def measure_products(report: Report, side: int, precision: str) -> float:
    """Operations per second of a product of two matrices, the best of five blocks."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    one, other = (torch.randn(side, side, device=report.device, dtype=dtype) for _ in range(2))
    step = partial(torch.mm, one, other)
    harness.seconds_for(step, 5, report.device)
    best = max(2 * side**3 * 10 / harness.seconds_for(step, 10, report.device) for _ in range(5))
    report.facts[f"{precision}_products_per_second"] = best
    report.add("Products", (f"{precision} matrices", "TFLOP/s"), [(f"{side} x {side}", f"{best / 1e12:.1f}")])
    return best


def compare(report: Report, scale: Scale, peak: float) -> None:
    """Steps of all libraries in turns, the smallest model first; each is compiled as long as there is time."""
    longest = 0.0
    for name, batch in scale.models:
        images = torch.randn(batch, 3, 224, 224, device=report.device)
        targets = torch.randint(1000, (batch,), device=report.device)
        operations = 2 * cost_of(configure(name)).multiply_adds
        for mode, times in (("training", 3), ("inference", 1)):
            steps: dict[str, Step] = {}
            for library, build in LIBRARIES.items():
                if not report.has(2 * longest + 3 * 5 * scale.block_seconds, f"{mode} of {name} in {library}"):
                    continue
                began = time.monotonic()
                steps[library] = prepare(build(name), mode, images, targets, scale)
                harness.seconds_for(steps[library], 2, report.device)  # compiles
                longest = max(longest, time.monotonic() - began)
            if not steps:
                continue
            how = {"images": batch, "device": report.device, "blocks": 5, "block_seconds": scale.block_seconds}
            timings = harness.take_turns(steps, **how)
            shares = {each: times * operations * timing.median / peak for each, timing in timings.items()}
            report.facts[f"{name}, {mode}"] = {
                each: {"batch": batch, "images_per_second": timing.rates, "mfu": shares[each]}
                for each, timing in timings.items()
            }
            rows = [
                (each, f"{timing.median:,.0f} ± {timing.spread:,.0f}", f"{shares[each]:.1%}")
                for each, timing in timings.items()
            ]
            report.add(f"{name}, {mode}, {batch} images", ("", "images/s", "MFU"), rows)
            steps.clear()
            if report.device == "cuda":
                torch.cuda.empty_cache()


def prepare(model: nn.Module, mode: str, images: torch.Tensor, targets: torch.Tensor, scale: Scale) -> Step:
    how: dict[str, Any] = {"precision": scale.precision, "compiled": scale.compiled}
    return training(model, images, targets, **how) if mode == "training" else inference(model, images, **how)


def write_photographs(folder: Path, count: int) -> None:
    """JPEG files of 500 x 375 pixels and about the size of photographs, of two classes."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        grain = rng.normal(0, 8, (375, 500, 1))
        place = folder / "ab"[number % 2] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(place, quality=90)


def train(
    report: Report, title: str, data: Any, steps: int, verb: Callable[..., object] = vitrail.train, **how: Any
) -> None:
    """The rate of a whole training, as it logs it, and its wait for data."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        settings = [*how.pop("settings", []), "save.evaluations=1", f"save.log_every={max(steps // 10, 1)}"]
        verb(data, out=out, device=report.device, steps=steps, settings=settings, quiet=True, **how)
        laps = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
    laps = [lap for lap in laps if "images_per_second" in lap][2:-1]  # without compilation and the last evaluation
    rate, waiting = (statistics.median(lap[key] for lap in laps) for key in ("images_per_second", "data_wait"))
    report.facts[title] = {"images_per_second": [lap["images_per_second"] for lap in laps], "data_wait": waiting}
    report.add(title, ("images/s", "waiting for data"), [(f"{rate:,.0f}", f"{waiting:.1%}")])


def run_for_accuracy(report: Report, cifar10: str, length: str, seeds: int = 3) -> None:
    """The accuracy on CIFAR-10 in a given time."""
    found: list[dict[str, float]] = []
    for seed in range(seeds):
        if not report.has(90, f"seed {seed} of CIFAR-10"):
            break
        with tempfile.TemporaryDirectory() as place:
            how = {"recipe": "small-data", "time": length, "seed": seed, "device": report.device, "quiet": True}
            found.append(measure(cifar10, Path(place) / "run", **how))
    if found:
        report.facts["cifar10"] = found
        rows = [(seed, f"{run['top1']:.4f}", f"{run['seconds']:.0f}") for seed, run in enumerate(found)]
        report.add(f"CIFAR-10 in {length}", ("seed", "top-1", "seconds in all"), rows)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=list(SCALES))
    words.add_argument("--cifar10", help="CIFAR-10, as `vitrail train` takes it")
    asked = words.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        words.error("there is no CUDA device here; --device cpu rehearses the script")
    keep_large_buffers()
    scale = SCALES[asked.device]
    report = Report(asked.device, time.monotonic() + scale.seconds)
    peak = measure_products(report, scale.products, scale.precision)
    compare(report, scale, peak)
    model, batch, steps = scale.trained
    common = [f"data.batch={batch}", "compute.tune=false", *([] if scale.compiled else ["compute.compile=false"])]
    if report.has(60 if scale.compiled else 10, "masked autoencoding"):
        pixels = np.random.default_rng(0).integers(0, 256, (4 * batch, 224, 224, 3), np.uint8)
        how = {"verb": vitrail.pretrain, "objective": "mae", "model": scale.pretrained, "settings": common}
        train(report, f"{scale.pretrained}, masked autoencoding, {batch} images", pixels, max(steps // 2, 6), **how)
    if report.has(90 if scale.compiled else 10, "a training from JPEG files"):
        with tempfile.TemporaryDirectory() as place:
            write_photographs(Path(place), scale.photographs)
            train(report, f"{model} from JPEG files, {batch} images", Path(place), steps, model=model, settings=common)
    if asked.cifar10:
        run_for_accuracy(report, asked.cifar10, scale.speedrun)
    if asked.device == "cpu":
        print(f"rehearsed; no record. Left out: {report.left_out or 'nothing'}")
        return
    record = harness.write("gpu", {**report.facts, "left_out": report.left_out}, device=asked.device)
    left = f"\n\nThere was no time for {', '.join(report.left_out)}." if report.left_out else ""
    page = record.with_suffix(".md")
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, commit {harness.commit()}"
    page.write_text(f"# A GPU in nine minutes\n\n{where}.\n\n" + "\n\n".join(report.tables) + left + "\n")
    print(record, page)


if __name__ == "__main__":
    main()
