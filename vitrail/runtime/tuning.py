"""Chooses how a network computes by timing its own blocks: no choice rests on what a processor says of itself.

An instruction set says that bf16 exists, not that it is fast: on a Xeon with avx512_bf16 and without AMX, matrices were
multiplied half as fast in bf16 as in fp32.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.runtime.precision import in_precision
from vitrail.runtime.process import use_threads
from vitrail.torch_private import fusing

LONGEST = 3.0  # seconds for all measurements of a choice
SHORTEST = 0.05  # seconds that the fastest way should take for one pass through a block: less is not measured well
FEWEST, ROUNDS = 5, 12  # passes in each way that should be timed, and those that are enough
HOPELESS = 2.0  # a way that takes so many times as long as the best is not measured again
FEW = (
    200  # images to come for which it is not even timed how long they take, which itself takes as long as two or three
)
WORTH = 0.97  # of the time of a way that comes before it, which another must not exceed to be taken

Clock = Callable[[], float]


@dataclass(frozen=True)
class Way:
    """One way to compute: the precision, the threads of an operation, the memory format of maps (B, C, H, W), and whether layers
    without gradients are calls of oneDNN (None: where `torch_private.takes_fused` says so).

    Where the precision is the same, the numbers are the same up to rounding.
    """

    precision: str
    threads: int
    channels_last: bool = False
    fused: bool | None = None

    @contextmanager
    def within(self) -> Iterator[None]:
        """Computes in this precision, with these threads and with these layers inside the context."""
        layers = nullcontext() if self.fused is None else fusing(self.fused)
        with use_threads(self.threads), in_precision(self.precision, torch.device("cpu")), layers:
            yield

    def lay(self, images: Tensor) -> Tensor:
        """``images`` (B, C, H, W) in this memory format, which convolutions hand on."""
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

    def describe(self, among: Collection[Way]) -> str:
        """What tells it apart from the others."""
        several = len({way.threads for way in among}) > 1
        threads = f" on {self.threads} thread{'s' if self.threads > 1 else ''}" if several else ""
        layers = f" {'oneDNN' if self.fused else 'plain'} layers" if len({way.fused for way in among}) > 1 else ""
        return f"{self.precision}{threads}{' channels last' if self.channels_last else ''}{layers}"


@dataclass(frozen=True)
class Choice:
    """The way that was taken, and what was measured: seconds of an image in all blocks for each way.

    That is forward and backward, or forward only without ``gradient``. All of it ``took`` so many seconds, ``before`` or now.
    """

    way: Way
    seconds: dict[Way, float]
    took: float
    gradient: bool = True
    before: bool = False

    def __str__(self) -> str:
        measured = sorted(self.seconds.items(), key=lambda item: item[1])
        words = (f"{way.describe(self.seconds)} {1e3 * seconds:.3g}" for way, seconds in measured)
        passes = "forward and backward" if self.gradient else "forward"
        when = "measured before" if self.before else f"measured in {self.took:.1f} s"
        return f"{self.way.describe(self.seconds)}; ms of an image, {passes}: {', '.join(words)} ({when})"


def list_threads(most: int) -> list[int]:
    """The numbers of threads that are tried: ``most``, and half of them if these are several."""
    return [most, most // 2] if most >= 4 else [most]


def choose_way(
    network: nn.Module,
    image: Sequence[int],
    ways: Sequence[Way],
    *,
    batch: int,
    gradient: bool = True,
    images: float = math.inf,
    clock: Clock = time.perf_counter,
) -> Choice | None:
    """Times ``network``, and takes the way that is fastest; None where measuring could take longer than that saves.

    A small network is timed as a whole; of a larger one each distinct block, which leaves out what lies between them and how
    their activations crowd the caches.

    Args:
        network: on the meta device, called with images; its blocks are the members of lists named ``blocks``.
        image: (C, H, W).
        ways: in the order in which they are tried; a later one is taken where it is at least 3 % faster.
        batch: images of a micro-batch; fewer are taken where that takes too long.
        gradient: forward and backward, as in training, and not forward only.
        images: that are to come. A way that is taken saves 3 % of their time at least, which must not be less than `LONGEST`.

    All of it takes about `LONGEST` seconds, or one image in each block if that takes longer.
    """
    began = clock()
    if images < FEW:
        return None
    blocks = find_blocks(network, image, 1)
    most = LONGEST / (max(len(blocks), 1) * FEWEST * len(ways))  # seconds of a pass through a block
    alone = [_time(block.build(gradient=gradient), ways[:1], 0, clock)[ways[0]] for block in blocks]
    if not _is_worth(images, blocks, alone):
        return None
    counts = [_count_images(seconds, most, batch) for seconds in alone]
    found = {count: find_blocks(network, image, count) for count in set(counts) - {1}} | {1: blocks}
    parts = [found[count][number] for number, count in enumerate(counts)]
    once = [_time(part.build(gradient=gradient), ways[:1], 0, clock)[ways[0]] / n for part, n in zip(parts, counts)]
    if not _is_worth(images, parts, once):
        return None
    whole = batch * sum(seconds * part.count for seconds, part in zip(once, parts))
    totals = dict.fromkeys(ways, 0.0)
    if whole * FEWEST * len(ways) < LONGEST:
        inputs = torch.zeros(batch, *image, device="meta")
        run = Block(network, (inputs,), {}).build(gradient=gradient, from_images=True)
        totals = {way: seconds / batch for way, seconds in _time(run, ways, LONGEST, clock).items()}
    else:
        for number, (part, count) in enumerate(zip(parts, counts)):
            run = part.build(gradient=gradient)
            left = began + LONGEST - clock()
            for way, seconds in _time(run, ways, left / (len(parts) - number), clock).items():
                totals[way] += seconds / count * part.count
    best = ways[0]
    for way in ways[1:]:
        if totals[way] < WORTH * totals[best]:
            best = way
    return Choice(best, totals, clock() - began, gradient)


def _is_worth(images: float, blocks: Sequence[Block], seconds: Sequence[float]) -> bool:
    """Whether the least gain of so many ``images``, of which each block takes so many ``seconds``, is worth `LONGEST`."""
    whole = sum(each * block.count for each, block in zip(seconds, blocks))
    return images == math.inf or images * whole * (1 - WORTH) >= LONGEST


def _count_images(alone: float, most: float, batch: int) -> int:
    """The images with which a pass takes `SHORTEST` seconds, and not longer than ``most``; at least one, at most a batch.

    A power of two below a batch, so that few numbers occur: the network runs on the meta device for each.
    """
    count = max(1, int(min(max(SHORTEST, most / 4), most) / max(alone, 1e-9)))
    return min(batch, 1 << count.bit_length() - 1)


@dataclass
class Block:
    """A block of a network on the meta device, what it is called with, and how many blocks are called with the same."""

    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    count: int = field(default=1)

    def build(self, *, gradient: bool = True, from_images: bool = False) -> Callable[[Way], None]:
        """A pass through a copy with weights and inputs at random, backward too with ``gradient``; images need none."""
        device = torch.device("cpu")
        module = copy.deepcopy(self.module).to_empty(device=device).train(gradient)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.02)
        for buffer in module.buffers():
            buffer.zero_()

        @cache
        def lay(channels_last: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
            needs = gradient and not from_images
            return _fill((self.arguments, self.options), device, gradient=needs, channels_last=channels_last)

        def run(way: Way) -> None:
            arguments, options = lay(way.channels_last)
            module.zero_grad(set_to_none=True)
            with torch.inference_mode(not gradient):
                output = _first_tensor(module(*arguments, **options))
            if gradient:
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


def _time(run: Callable[[Way], None], ways: Sequence[Way], seconds: float, clock: Clock) -> dict[Way, float]:
    """The shortest time of a pass in each way, in turns for so many ``seconds``; the first way is never given up."""
    best = dict.fromkeys(ways, math.inf)
    hopeful, ends = list(ways), clock() + seconds
    for number in range(ROUNDS):
        for way in hopeful:
            with way.within():
                if number == 0:
                    run(way)  # the first pass prepares kernels and memory
                began = clock()
                run(way)
                best[way] = min(best[way], clock() - began)
        least = min(best.values())
        # the first is what is computed in by default, which one disturbed pass must not exclude
        hopeful = [way for way in hopeful if way == ways[0] or best[way] <= HOPELESS * least]
        if len(hopeful) == 1 or clock() > ends:
            break
    return best


def _fill(value: Any, device: torch.device, **how: bool) -> Any:
    """``value`` with tensors on ``device`` in place of those on meta: at random, or zeros of whole numbers."""
    if isinstance(value, Tensor) and value.is_meta:
        if not value.is_floating_point():
            return torch.zeros(value.shape, dtype=value.dtype, device=device)
        filled = torch.randn(value.shape, device=device)
        if how["channels_last"] and value.ndim == 4:
            filled = filled.contiguous(memory_format=torch.channels_last)
        return filled.requires_grad_(how["gradient"])
    if isinstance(value, dict):
        return {name: _fill(each, device, **how) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_fill(each, device, **how) for each in value)
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
