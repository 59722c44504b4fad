"""The other fast paths of the model against the obvious ones beside them, ViT-Ti/16 in bf16 at 224 pixels.

Dense layers with bias and GELU inside oneDNN's product; patches through a dense layer; a last block for the class token
alone; dropped samples left out or masked (`SKIPS_FROM` in vitrail/models/layers.py). Timed as in attention.py.

Command: python benchmarks/paths.py [--device cuda] [--threads 2] [--batch 32]
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable
from unittest import mock

import torch
import torch.nn.functional as F
from attention import take_turns
from harness import RECORDS, commit, machine

from vitrail.models import ViT, create_backbone

DTYPE = torch.bfloat16
Contenders = dict[str, Callable[[], None]]


def model(device: str, **changes: object) -> ViT:
    torch.manual_seed(0)
    return create_backbone("vit-ti16", **changes).to(device, DTYPE)


def infer(network: ViT, images: torch.Tensor) -> None:
    with torch.inference_mode():
        network(images)


def train(network: ViT, images: torch.Tensor) -> None:
    network(images).float().logsumexp(1).sum().backward()
    network.zero_grad()


def dense(device: str, images: torch.Tensor, gelu: str) -> Contenders:
    network = model(device, gelu=gelu).eval()

    def with_linear() -> None:
        with mock.patch("vitrail.models.layers.can_fuse_dense", return_value=False):
            infer(network, images)

    return {"oneDNN": lambda: infer(network, images), "F.linear": with_linear}


def patches(device: str, images: torch.Tensor) -> Contenders:
    network = model(device)
    convolution = network.patch_embed.proj

    def step(project: Callable[[], torch.Tensor]) -> None:
        project().sum().backward()
        network.zero_grad()

    return {
        "dense": lambda: step(lambda: network.patchify(images).x),
        "conv2d": lambda: step(lambda: F.conv2d(images, convolution.weight, convolution.bias, stride=16)),
    }


def last_block(device: str, images: torch.Tensor, use: Callable[[ViT, torch.Tensor], None]) -> Contenders:
    network = model(device).train(use is train)

    def whole() -> None:
        encode = network._encode
        with mock.patch.object(network, "_encode", lambda patches, reads=None: encode(patches)):
            use(network, images)

    return {"class token": lambda: use(network, images), "all tokens": whole}


def drop_path(device: str, images: torch.Tensor, drop: float) -> Contenders:
    network = model(device).train()
    for block in network.blocks:
        block.drop_path = drop

    def step(skip: bool) -> None:
        with mock.patch("vitrail.models.layers.skips_work", return_value=skip):
            train(network, images)

    return {"left out": lambda: step(True), "masked": lambda: step(False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    device, where = asked.device, machine(asked.device)
    images = torch.randn(asked.batch, 3, 224, 224, device=device, dtype=DTYPE)
    claims = {f"inference, {gelu} GELU": dense(device, images, gelu) for gelu in ("exact", "tanh") if device == "cpu"}
    claims["patch projection, training"] = patches(device, images)
    claims["last block, inference"] = last_block(device, images, infer)
    claims["last block, training"] = last_block(device, images, train)
    claims |= {f"samples dropped with {drop}, training": drop_path(device, images, drop) for drop in (0.05, 0.1, 0.3)}
    name = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
    title = f"ViT-Ti/16 bf16 batch {asked.batch}, images/s"
    print(f"{title}  ·  {name}  ·  torch {where['torch']}, {where['threads']} threads  ·  {commit()}")
    record: dict[str, object] = {"name": "paths", "commit": commit(), "machine": where, "batch": asked.batch}
    clock = time.thread_time if device == "cpu" and asked.threads == 1 else time.perf_counter
    for claim, contenders in claims.items():
        found = take_turns(contenders, asked.batch, device, clock, 0.5)
        (fast, ours), (slow, theirs) = found.items()
        rates = "   ".join(f"{path} {each.median:8.1f} ± {each.spread:.1f}" for path, each in found.items())
        print(f"  {claim:<36} {rates}   n={len(ours.rates)}   {fast} {ours.times(theirs):.2f} x {slow}", flush=True)
        record[claim] = {path: {"median": each.median, "spread": each.spread} for path, each in found.items()}
    path = RECORDS / f"{datetime.date.today().isoformat()}-paths-{device}.json"
    RECORDS.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
