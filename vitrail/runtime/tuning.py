"""Chooses how a network computes by timing its own blocks: no choice rests on what a processor says of itself.

An instruction set says that bf16 exists, not that it is fast: on a Xeon with avx512_bf16 and without AMX, matrices were
multiplied half as fast in bf16 as in fp32.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.runtime.precision import in_precision
from vitrail.runtime.process import use_threads

LONGEST = 3.0  # seconds for all measurements of a choice
SHORTEST = 0.05  # seconds that the fastest way should take for one pass through a block: less is not measured well
FEWEST, ROUNDS = 5, 12  # passes in each way that should be timed, and those that are enough
HOPELESS = 2.0  # a way that takes so many times as long as the best is not measured again
WORTH = 0.97  # of the time of a way that comes before it, which another must not exceed to be taken

Clock = Callable[[], float]


@dataclass(frozen=True)
class Way:
    """One way to compute: the precision, and the threads of an operation. The same numbers up to rounding."""

    precision: str
    threads: int


@dataclass(frozen=True)
class Choice:
    """The way that was taken, and what was measured: seconds of an image in all blocks for each way, forward and backward.

    All of it ``took`` so many seconds, ``before`` or now.
    """

    way: Way
    seconds: dict[Way, float]
    took: float
    before: bool = False

    def __str__(self) -> str:
        measured = sorted(self.seconds.items(), key=lambda item: item[1])
        several = len({way.threads for way in self.seconds}) > 1
        words = (
            f"{way.precision}{f' on {way.threads} threads' if several else ''} {1e3 * seconds:.3g}"
            for way, seconds in measured
        )
        when = "measured before" if self.before else f"measured in {self.took:.1f} s"
        return f"{self.way.precision}; ms of an image, forward and backward: {', '.join(words)} ({when})"


def choose_way(
    network: nn.Module,
    image: Sequence[int],
    ways: Sequence[Way],
    *,
    batch: int,
    clock: Clock = time.perf_counter,
) -> Choice:
    """Times ``network``, forward and backward, and takes the way that is fastest.

    A small network is timed as a whole; of a larger one each distinct block, which leaves out what lies between them and how
    their activations crowd the caches.

    Args:
        network: on the meta device, called with images; its blocks are the members of lists named ``blocks``.
        image: (C, H, W).
        ways: in the order in which they are tried; a later one is taken where it is at least 3 % faster.
        batch: images of a micro-batch; fewer are taken where that takes too long.

    All of it takes about `LONGEST` seconds, or one image in each block if that takes longer.
    """
    began = clock()
    blocks = find_blocks(network, image, 1)
    most = LONGEST / (max(len(blocks), 1) * FEWEST * len(ways))  # seconds of a pass through a block
    images = [_count_images(block, most, batch, ways[0], clock) for block in blocks]
    parts = [find_blocks(network, image, count)[number] for number, count in enumerate(images)]
    once = [_time(part.build(), ways[:1], 0, clock)[ways[0]] / count for part, count in zip(parts, images)]
    whole = batch * sum(seconds * part.count for seconds, part in zip(once, parts))
    totals = dict.fromkeys(ways, 0.0)
    if whole * FEWEST * len(ways) < LONGEST:
        run = Block(network, (torch.zeros(batch, *image, device="meta"),), {}).build(from_images=True)
        totals = {way: seconds / batch for way, seconds in _time(run, ways, LONGEST, clock).items()}
    else:
        for part, count in zip(parts, images):
            for way, seconds in _time(part.build(), ways, LONGEST / len(parts), clock).items():
                totals[way] += seconds / count * part.count
    best = ways[0]
    for way in ways[1:]:
        if totals[way] < WORTH * totals[best]:
            best = way
    return Choice(best, {way: totals[way] for way in ways if math.isfinite(totals[way])}, clock() - began)


def _count_images(block: Block, most: float, batch: int, way: Way, clock: Clock) -> int:
    """The images with which a pass takes `SHORTEST` seconds, and not longer than ``most``; at least one, at most a batch."""
    once = _time(block.build(), [way], 0, clock)[way]
    return max(1, min(batch, int(min(max(SHORTEST, most / 4), most) / max(once, 1e-9))))


@dataclass
class Block:
    """A block of a network on the meta device, what it is called with, and how many blocks are called with the same."""

    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    count: int = field(default=1)

    def build(self, *, from_images: bool = False) -> Callable[[], None]:
        """A pass forward and backward through a copy with weights and inputs at random; images need no gradient."""
        device = torch.device("cpu")
        module = copy.deepcopy(self.module).to_empty(device=device).train()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.02)
        for buffer in module.buffers():
            buffer.zero_()
        arguments, options = _fill((self.arguments, self.options), device, gradient=not from_images)

        def run() -> None:
            module.zero_grad(set_to_none=True)
            output = _first_tensor(module(*arguments, **options))
            output.backward(torch.ones_like(output))

        return run


def find_blocks(network: nn.Module, image: Sequence[int], images: int) -> list[Block]:
    """The distinct blocks of ``network`` as a batch of so many images calls them."""
    found: dict[Any, Block] = {}

    def note(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        shapes = tuple(parameter.shape for parameter in module.parameters())
        key = (type(module), shapes, _describe((arguments, options)))
        if key in found:
            found[key].count += 1
        else:
            found[key] = Block(module, arguments, options)

    lists = [
        modules
        for name, modules in network.named_modules()
        if isinstance(modules, nn.ModuleList) and name.rpartition(".")[2].startswith("blocks")
    ]
    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for blocks in lists for block in blocks]
    try:
        with torch.no_grad():
            network(torch.zeros(images, *image, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())


def _time(run: Callable[[], None], ways: Sequence[Way], seconds: float, clock: Clock) -> dict[Way, float]:
    """The shortest time of a pass in each way, in turns for so many ``seconds``; infinite where the first was hopeless."""
    best = dict.fromkeys(ways, math.inf)
    hopeful, ends = list(ways), clock() + seconds
    for number in range(ROUNDS):
        for way in hopeful:
            with use_threads(way.threads), in_precision(way.precision, torch.device("cpu")):
                if number == 0:
                    run()  # the first pass prepares kernels and memory
                began = clock()
                run()
                best[way] = min(best[way], clock() - began)
        least = min(best.values())
        hopeful = [way for way in hopeful if best[way] <= HOPELESS * least]
        if len(hopeful) == 1 or clock() > ends:
            break
    return best


def _fill(value: Any, device: torch.device, *, gradient: bool) -> Any:
    """``value`` with tensors on ``device`` in place of those on meta: at random, or zeros of whole numbers."""
    if isinstance(value, Tensor) and value.is_meta:
        if not value.is_floating_point():
            return torch.zeros(value.shape, dtype=value.dtype, device=device)
        return torch.randn(value.shape, device=device).requires_grad_(gradient)
    if isinstance(value, dict):
        return {name: _fill(each, device, gradient=gradient) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_fill(each, device, gradient=gradient) for each in value)
    return value


def _describe(value: Any) -> Any:
    """What tells the arguments of two calls apart."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return tuple((name, _describe(each)) for name, each in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(_describe, value))
    return repr(value)


def _first_tensor(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output[0]
    return output
