"""The other fast paths of the model against the obvious ones beside them, ViT-Ti/16 at 224 pixels.

Dense layers with bias and GELU inside oneDNN's product; patches through a dense layer; a last block for the class token
alone; dropped samples left out or masked (`SKIPS_FROM` in vitrail/models/layers.py). Timed as in attention.py.

Command: python benchmarks/paths.py [--device cuda] [--precision fp32] [--threads 2] [--batch 32] [--claims inference]
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from attention import take_turns
from harness import RECORDS, commit, machine

from vitrail.models import ViT, create_backbone
from vitrail.torch_private import fusing

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Contenders = dict[str, Callable[[], None]]


def model(images: torch.Tensor, **changes: object) -> ViT:
    torch.manual_seed(0)
    return create_backbone("vit-ti16", **changes).to(images)


def infer(network: ViT, images: torch.Tensor) -> None:
    with torch.inference_mode():
        network(images)


def train(network: ViT, images: torch.Tensor) -> None:
    network(images).float().logsumexp(1).sum().backward()
    network.zero_grad()


def dense(images: torch.Tensor, gelu: str) -> Contenders:
    network = model(images, gelu=gelu).eval()

    def run(fused: bool) -> None:
        with fusing(fused):
            infer(network, images)

    return {"oneDNN": lambda: run(True), "F.linear": lambda: run(False)}


def patches(images: torch.Tensor) -> Contenders:
    network = model(images)
    convolution = network.patch_embed.proj

    def step(project: Callable[[], torch.Tensor]) -> None:
        project().sum().backward()
        network.zero_grad()

    return {
        "dense": lambda: step(lambda: network.patchify(images).x),
        "conv2d": lambda: step(lambda: F.conv2d(images, convolution.weight, convolution.bias, stride=16)),
    }


def last_block(images: torch.Tensor, use: Callable[[ViT, torch.Tensor], None]) -> Contenders:
    network = model(images).train(use is train)

    def whole() -> None:
        encode = network._encode
        with mock.patch.object(network, "_encode", lambda patches, reads=None: encode(patches)):
            use(network, images)

    return {"class token": lambda: use(network, images), "all tokens": whole}


def drop_path(images: torch.Tensor, drop: float) -> Contenders:
    network = model(images).train()
    for block in network.blocks:
        block.drop_path = drop

    def step(skip: bool) -> None:
        with mock.patch("vitrail.models.layers.skips_work", return_value=skip):
            train(network, images)

    return {"left out": lambda: step(True), "masked": lambda: step(False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="bf16", choices=list(TYPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--claims", default="", help="only those that contain this word")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    device, where = asked.device, machine(asked.device)
    images = torch.randn(asked.batch, 3, 224, 224, device=device, dtype=TYPES[asked.precision])
    builders: dict[str, Callable[[], Contenders]] = {
        **{f"inference, {gelu} GELU": partial(dense, images, gelu) for gelu in ("exact", "tanh") if device == "cpu"},
        "patch projection, training": partial(patches, images),
        "last block, inference": partial(last_block, images, infer),
        "last block, training": partial(last_block, images, train),
        **{f"samples dropped with {drop}, training": partial(drop_path, images, drop) for drop in (0.05, 0.1, 0.3)},
    }
    name = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
    title = f"ViT-Ti/16 {asked.precision} batch {asked.batch}, images/s"
    print(f"{title}  ·  {name}  ·  torch {where['torch']}, {where['threads']} threads  ·  {commit()}")
    record: dict[str, object] = {
        "name": "paths",
        "commit": commit(),
        "machine": where,
        "batch": asked.batch,
        "precision": asked.precision,
    }
    clock = time.thread_time if device == "cpu" and asked.threads == 1 else time.perf_counter
    for claim, build in builders.items():
        if asked.claims not in claim:
            continue
        found = take_turns(build(), asked.batch, device, clock, 0.5)
        (fast, ours), (slow, theirs) = found.items()
        rates = "   ".join(f"{path} {each.median:8.1f} ± {each.spread:.1f}" for path, each in found.items())
        print(f"  {claim:<36} {rates}   n={len(ours.rates)}   {fast} {ours.times(theirs):.2f} x {slow}", flush=True)
        record[claim] = {path: {"median": each.median, "spread": each.spread} for path, each in found.items()}
    path = RECORDS / f"{datetime.date.today().isoformat()}-paths-{asked.precision}-{device}.json"
    RECORDS.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
