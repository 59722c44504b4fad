"""Which attention is faster where: the cells behind `PLAIN` and `attention_path` in vitrail/models/attention.py.

A cell is one type, mode, number of tokens, heads and images; both paths take turns on the same q, k, v as the model makes
them (views of one projection). Training is forwards and backwards. Autocast changes nothing here: q, k and v are bf16
under it too, and the softmax is kept in their type. On a CPU one thread is timed by the processor time it uses, so what
else the machine does counts little; ``--threads`` times several by the clock on the wall.

Command: python benchmarks/attention.py [--device cuda] [--threads 2] [--quick]
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import time
from collections.abc import Callable

import torch
from harness import RECORDS, Timing, commit, machine, settle
from torch import Tensor

from vitrail.models.attention import attend

TOKENS = (17, 65, 197, 257, 577, 1025)
HEADS = (3, 6)
BATCHES = (1, 32)
DTYPES = (torch.bfloat16, torch.float32)
HEAD_WIDTH = 64
BLOCKS = 7


def measure(
    device: str, dtype: torch.dtype, training: bool, tokens: int, heads: int, batch: int, seconds: float
) -> dict[str, Timing]:
    """Images per second of both paths."""
    shape = (batch, tokens, 3 * heads * HEAD_WIDTH)
    projected = torch.randn(shape, device=device, dtype=dtype, requires_grad=training)
    gradient = torch.randn(batch, tokens, heads * HEAD_WIDTH, device=device, dtype=dtype)

    def attention(path: str) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in projected.unflatten(-1, (3, heads, -1)).unbind(2))
        return attend(q, k, v, path=path).transpose(1, 2).flatten(2)

    def step(path: str) -> None:
        if training:
            attention(path).backward(gradient)
            projected.grad = None
        else:
            with torch.inference_mode():
                attention(path)

    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter
    return take_turns(
        {path: lambda path=path: step(path) for path in ("plain", "fused")}, batch, device, clock, seconds
    )


def take_turns(
    contenders: dict[str, Callable[[], None]],
    images: int,
    device: str,
    clock: Callable[[], float],
    block_seconds: float,
) -> dict[str, Timing]:
    """As in the harness, by any clock: `BLOCKS` blocks, in each every contender once."""

    def seconds_for(step: Callable[[], None], repeats: int) -> float:
        settle(device)
        started = clock()
        for _ in range(repeats):
            step()
        settle(device)
        return max(clock() - started, 1e-9)

    for step in contenders.values():
        seconds_for(step, 2)
    repeats = {name: max(1, round(block_seconds / seconds_for(step, 1))) for name, step in contenders.items()}
    blocks = [
        {name: images * repeats[name] / seconds_for(step, repeats[name]) for name, step in contenders.items()}
        for _ in range(BLOCKS)
    ]
    return {name: Timing(rates=tuple(block[name] for block in blocks)) for name in contenders}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="short blocks, fewer cells")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    where, cells = machine(asked.device), []
    name = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
    print(f"attention, images/s  ·  {name}  ·  torch {where['torch']}, {where['threads']} threads  ·  {commit()}")
    tokens = TOKENS[:5:2] if asked.quick else TOKENS
    for dtype, training, count, heads, batch in itertools.product(DTYPES, (True, False), tokens, HEADS, BATCHES):
        found = measure(asked.device, dtype, training, count, heads, batch, 0.05 if asked.quick else 0.2)
        cell = {"dtype": str(dtype).removeprefix("torch."), "mode": "training" if training else "inference"}
        cell |= {
            "tokens": count,
            "heads": heads,
            "batch": batch,
            "plain_over_fused": found["plain"].times(found["fused"]),
        }
        cell |= {path: {"median": timing.median, "spread": timing.spread} for path, timing in found.items()}
        cells.append(cell)
        rates = "   ".join(f"{path} {each.median:10.1f} ± {each.spread:.1f}" for path, each in found.items())
        words = f"{cell['dtype']:<9} {cell['mode']:<10} T={count:<5} H={heads} B={batch:<3}"
        print(f"  {words} {rates}   n={BLOCKS}   plain {cell['plain_over_fused']:.2f} x fused", flush=True)
    today = datetime.date.today().isoformat()
    record = {"name": "attention", "date": today, "commit": commit(), "machine": where, "cells": cells}
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{today}-attention-{asked.device}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
