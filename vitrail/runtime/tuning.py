"""Chooses precision, threads and memory format of a network by timing its blocks on this processor.

An instruction set says that bf16 exists, not that it is fast: on a Xeon with avx512_bf16 and without AMX, matrices were
multiplied half as fast in bf16 as in fp32. Choices are cached, so that a command takes the same plan each time, unless other work
disturbed the measurement.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import DiskError
from vitrail.files import cache_folder, disk_errors, ensure_folder, read_checksummed, write_checksummed
from vitrail.runtime.device import in_precision
from vitrail.runtime.machine import processor
from vitrail.runtime.process import cores, use_threads
from vitrail.runtime.timing import Clock, Timing, time_in_turns
from vitrail.torch_private import fusing, tree_map_only

MAX_SECONDS = 3.0  # for all measurements of a choice
MIN_PASS_SECONDS = 0.05  # that the fastest plan should take for one pass through a block: less is not measured well
MIN_ROUNDS, MAX_ROUNDS = 5, 12  # passes in each plan that should be timed, and those that are enough
GIVE_UP_RATIO = 2.0  # a plan that takes so many times as long as the best is not measured again
MIN_IMAGES = 200  # for fewer images to come nothing is timed, which itself takes as long as two or three of them
MIN_GAIN = 0.03  # share of the time of a plan that comes before it, which another must save to be taken
STALE_RATIO = 2.0  # times as long as was measured, from which a kept choice does not hold any more
BF16_RATIO = 1.3  # times as fast as fp32 that bf16 must be to be chosen
PROBE_PIXELS, MAX_PROBE_IMAGES, MIN_PROBE_ROUNDS = 4 * 224 * 224, 256, 3


@dataclass(frozen=True)
class ExecutionPlan:
    """How a CPU computes: precision, threads of an operation, memory format of maps (B, C, H, W), and whether layers without
    gradients call oneDNN (None: where `torch_private.takes_fused` returns True).
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

    def to_memory_format(self, images: Tensor) -> Tensor:
        """Returns ``images`` (B, C, H, W) in this memory format, which convolutions hand on."""
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

    def describe(self, among: Collection[ExecutionPlan]) -> str:
        """Returns what distinguishes it from the others."""
        several = len({plan.threads for plan in among}) > 1
        threads = f" on {self.threads} thread{'s' if self.threads > 1 else ''}" if several else ""
        layers = f" {'oneDNN' if self.fused else 'plain'} layers" if len({plan.fused for plan in among}) > 1 else ""
        return f"{self.precision}{threads}{' channels last' if self.channels_last else ''}{layers}"


PRECISIONS = ExecutionPlan("fp32", 1), ExecutionPlan("bf16", 1)


@dataclass(frozen=True)
class Choice:
    """The plan that was chosen, and the measured seconds of an image in all blocks for each plan."""

    plan: ExecutionPlan
    seconds: dict[ExecutionPlan, float]
    took: float  # seconds of the whole measurement
    gradient: bool = True  # forward and backward, not forward only
    before: bool = False  # measured by an earlier command
    disturbed: bool = False  # other work had the processor for a part of the measurement
    file: Path | None = None  # in which it is kept

    def __str__(self) -> str:
        measured = sorted(self.seconds.items(), key=lambda item: item[1])
        figures = (f"{plan.describe(self.seconds)} {1e3 * seconds:.3g}" for plan, seconds in measured)
        passes = "forward and backward" if self.gradient else "forward"
        passes += " on one thread" if {plan.threads for plan in self.seconds} == {1} else ""
        when = "measured before" if self.before else f"measured in {self.took:.1f} s"
        when += ", beside other work" if self.disturbed else ""
        return f"{self.plan.describe(self.seconds)}; ms of an image, {passes}: {', '.join(figures)} ({when})"


def list_threads(maximum: int) -> list[int]:
    """Returns the numbers of threads to try: ``maximum``, and half of them if these are several."""
    return [maximum, maximum // 2] if maximum >= 4 else [maximum]


def choose_plan(
    network: nn.Module,
    image: Sequence[int],
    plans: Sequence[ExecutionPlan],
    *,
    batch: int,
    gradient: bool = True,
    images: float = math.inf,
    clock: Clock = time.perf_counter,
) -> Choice | None:
    """Times ``network``, and chooses the fastest plan; None where measuring could take longer than that saves.

    A small network is timed as a whole; of a larger one each distinct block, which leaves out the layers between them. All of it
    takes about `MAX_SECONDS`, or one image in each block if that takes longer.

    Args:
        network: on the meta device, called with images; its blocks are the members of lists named ``blocks``.
        image: (C, H, W).
        plans: in the order in which they are tried; a later one is taken where it saves `MIN_GAIN` at least.
        batch: images of a micro-batch; fewer are taken where that takes too long.
        gradient: forward and backward, as in training, and not forward only.
        images: to come. `MIN_GAIN` of their time must not be less than `MAX_SECONDS`.
    """
    began = clock()
    if images < MIN_IMAGES:
        return None
    blocks = find_blocks(network, image, 1)
    max_pass_seconds = MAX_SECONDS / (max(len(blocks), 1) * MIN_ROUNDS * len(plans))

    def time_pass(block: Block) -> float:
        return _time(block.build(gradient=gradient), plans[:1], 0, clock)[plans[0]].fastest

    alone = list(map(time_pass, blocks))
    if not _is_worth(images, blocks, alone):
        return None
    counts = [_count_images(seconds, max_pass_seconds, batch) for seconds in alone]
    found = {count: find_blocks(network, image, count) for count in set(counts) - {1}} | {1: blocks}
    parts = [found[count][number] for number, count in enumerate(counts)]
    once = [time_pass(part) / count for part, count in zip(parts, counts)]
    if not _is_worth(images, parts, once):
        return None
    whole = batch * sum(seconds * part.count for seconds, part in zip(once, parts))
    totals, disturbed = dict.fromkeys(plans, 0.0), False
    if whole * MIN_ROUNDS * len(plans) < MAX_SECONDS:
        whole_network = Block(network, (torch.zeros(batch, *image, device="meta"),), {})
        timed = [(whole_network.build(gradient=gradient, from_images=True), 1 / batch)]
        ends = clock() + MAX_SECONDS
    else:
        timed = [(part.build(gradient=gradient), part.count / count) for part, count in zip(parts, counts)]
        ends = began + MAX_SECONDS
    for number, (run, share) in enumerate(timed):
        for plan, timing in _time(run, plans, (ends - clock()) / (len(timed) - number), clock).items():
            totals[plan] += timing.fastest * share
            disturbed |= timing.is_disturbed
    best = plans[0]
    for plan in plans[1:]:
        if totals[plan] < (1 - MIN_GAIN) * totals[best]:
            best = plan
    return Choice(best, totals, clock() - began, gradient, disturbed=disturbed)


def choose_precision(
    network: nn.Module, image: Sequence[int], *, gradient: bool = True, clock: Clock = time.thread_time
) -> Choice:
    """Times the distinct blocks of ``network``, or all of one without blocks, in fp32 and bf16, and chooses bf16 where it is
    `BF16_RATIO` times as fast.

    Results depend on the precision, so nothing that changes from run to run decides it: one thread computes, its processor time
    is measured (the median of several rounds), and the number of images follows from their size alone.

    Args:
        network: on the meta device, as in `choose_plan`.
        image: (C, H, W).
        gradient: forward and backward, as in training, and not forward only.
    """
    began = time.perf_counter()
    count = count_probe_images(image)
    whole = Block(network, (torch.zeros(count, *image, device="meta"),), {})
    blocks = find_blocks(network, image, count) or [whole]
    limits = {"min_rounds": MIN_PROBE_ROUNDS, "give_up_ratio": math.inf}
    totals = dict.fromkeys(PRECISIONS, 0.0)
    for block in blocks:
        run = block.build(gradient=gradient, from_images=block is whole)
        for plan, timing in _time(run, PRECISIONS, MAX_SECONDS / len(blocks), clock, **limits).items():
            totals[plan] += timing.median * block.count / count
    fp32, bf16 = PRECISIONS
    chosen = bf16 if BF16_RATIO * totals[bf16] <= totals[fp32] else fp32
    return Choice(chosen, totals, time.perf_counter() - began, gradient)


def count_probe_images(image: Sequence[int]) -> int:
    """Returns the images (C, H, W) of a pass by which a precision is chosen."""
    return max(1, min(PROBE_PIXELS // (image[1] * image[2]), MAX_PROBE_IMAGES))


def _time(
    run: Callable[[ExecutionPlan], None],
    plans: Sequence[ExecutionPlan],
    seconds: float,
    clock: Clock,
    **limits: Any,
) -> dict[ExecutionPlan, Timing]:
    functions = {plan: partial(run, plan) for plan in plans}
    limits = {"rounds": MAX_ROUNDS, "seconds": seconds, "give_up_ratio": GIVE_UP_RATIO, **limits}
    return time_in_turns(functions, **limits, within=ExecutionPlan.within, clock=clock)


def _is_worth(images: float, blocks: Sequence[Block], seconds: Sequence[float]) -> bool:
    """Whether `MIN_GAIN` of the time of ``images`` is `MAX_SECONDS` or more, if each block takes ``seconds`` for one."""
    whole = sum(each * block.count for each, block in zip(seconds, blocks))
    return images == math.inf or images * whole * MIN_GAIN >= MAX_SECONDS


def _count_images(alone: float, max_seconds: float, batch: int) -> int:
    """Returns the images with which a pass takes `MIN_PASS_SECONDS`, and not longer than ``max_seconds``: ``batch`` or a smaller
    power of two, so that few numbers occur, since the network runs on the meta device for each.
    """
    count = max(1, int(min(max(MIN_PASS_SECONDS, max_seconds / 4), max_seconds) / max(alone, 1e-9)))
    return min(batch, 1 << count.bit_length() - 1)


@dataclass
class Block:
    """A block of a network on the meta device, its arguments, and the number of blocks with arguments of the same shapes."""

    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    count: int = field(default=1)

    def build(self, *, gradient: bool = True, from_images: bool = False) -> Callable[[ExecutionPlan], None]:
        """Returns a pass through a copy with random weights and inputs, backward too with ``gradient``; images need none."""
        module = copy.deepcopy(self.module).to_empty(device="cpu").train(gradient)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.02)
        for buffer in module.buffers():
            buffer.zero_()

        @cache
        def make_inputs(channels_last: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
            fill = partial(_fill, channels_last=channels_last, gradient=gradient and not from_images)
            return tree_map_only(Tensor, fill, (self.arguments, self.options))

        def run(plan: ExecutionPlan) -> None:
            arguments, options = make_inputs(plan.channels_last)
            module.zero_grad(set_to_none=True)
            with torch.inference_mode(not gradient):
                output = module(*arguments, **options)
                while not isinstance(output, Tensor):
                    output = output[0]
            if gradient:
                output.backward(torch.ones_like(output))

        return run


def list_blocks(network: nn.Module) -> list[nn.Module]:
    """Returns the members of all lists that are named ``blocks``."""
    return [
        block
        for name, modules in network.named_modules()
        if isinstance(modules, nn.ModuleList) and name.rpartition(".")[2].startswith("blocks")
        for block in modules
    ]


def find_blocks(network: nn.Module, image: Sequence[int], images: int) -> list[Block]:
    """Returns the distinct blocks of ``network`` as a batch of so many images calls them."""
    found: dict[Any, Block] = {}

    def note(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        shapes = tuple(parameter.shape for parameter in module.parameters())
        key = (type(module), shapes, repr((arguments, options)))  # of meta tensors it has the sizes
        if key in found:
            found[key].count += 1
        else:
            found[key] = Block(module, arguments, options)

    hooks = [block.register_forward_pre_hook(note, with_kwargs=True) for block in list_blocks(network)]
    try:
        with torch.no_grad():
            network(torch.zeros(images, *image, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())


def _fill(tensor: Tensor, *, channels_last: bool, gradient: bool) -> Tensor:
    """Returns a tensor on the CPU in place of one on the meta device: random numbers, or zeros of whole numbers."""
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    filled = torch.randn(tensor.shape)
    if channels_last and tensor.ndim == 4:
        filled = filled.contiguous(memory_format=torch.channels_last)
    return filled.requires_grad_(gradient)


def recall_plan(
    network: nn.Module,
    image: Sequence[int],
    plans: Sequence[ExecutionPlan],
    *,
    batch: int,
    config: str,
    about: str,
    gradient: bool = True,
    images: float = math.inf,
) -> Choice | None:
    """Returns the cached result of `choose_plan` for the same arguments, processor and version of torch; or calls it now.

    ``config`` decides the shapes of ``network``; ``about`` is its name for `list_choices`. A cached choice holds for any number
    of ``images``.
    """
    asked = {"cores": cores(), "batch": batch, "gradient": gradient}
    measure = partial(choose_plan, network, image, plans, batch=batch, gradient=gradient, images=images)
    return _recall(measure, {**asked, **_describe(image, plans)}, config, about)


def recall_precision(
    network: nn.Module, image: Sequence[int], *, config: str, about: str, gradient: bool = True
) -> Choice:
    """Returns the cached result of `choose_precision`, as `recall_plan` does; or calls it now."""
    asked = {"batch": count_probe_images(image), "gradient": gradient, **_describe(image, PRECISIONS)}
    choice = _recall(partial(choose_precision, network, image, gradient=gradient), asked, config, about)
    assert choice is not None
    return choice


def _describe(image: Sequence[int], plans: Sequence[ExecutionPlan]) -> dict[str, Any]:
    machine = {"processor": processor(), "torch": torch.__version__}
    return {**machine, "image": list(image), "ways": [asdict(plan) for plan in plans]}


def _recall(measure: Callable[[], Choice | None], asked: dict[str, Any], config: str, about: str) -> Choice | None:
    name = hashlib.sha256(json.dumps([asked, config]).encode()).hexdigest()
    path = cache_folder("tuning") / f"{name}.json"
    if (kept := read_checksummed(path)) is not None:
        return replace(_read_choice(kept), before=True, file=path)
    choice = measure()
    if choice is None or choice.disturbed:
        return choice
    seconds = [[asdict(plan), taken] for plan, taken in choice.seconds.items()]
    content = {**asked, "network": about, "way": asdict(choice.plan), "seconds": seconds, "took": choice.took}
    with suppress(DiskError):  # then it is measured again
        ensure_folder(path.parent)
        write_checksummed(path, content)
    return replace(choice, file=path)


def forget_if_stale(choice: Choice, seconds: float) -> bool:
    """Removes a kept choice where an image took ``seconds``, `STALE_RATIO` times as long as it says; returns whether it did.

    The plan is then measured again by the next command. Steps contain more than blocks, so less is no sign of anything.
    """
    if choice.file is None or seconds < STALE_RATIO * choice.seconds[choice.plan]:
        return False
    with suppress(OSError):
        choice.file.unlink(missing_ok=True)
    return True


def _read_choice(kept: Mapping[str, Any]) -> Choice:
    seconds = {ExecutionPlan(**plan): taken for plan, taken in kept["seconds"]}
    return Choice(ExecutionPlan(**kept["way"]), seconds, kept["took"], kept.get("gradient", True))


def list_choices() -> dict[str, str]:
    """Returns a description of each choice that is kept, by network."""
    found = {}
    for path in sorted(cache_folder("tuning").glob("*.json")):
        if (kept := read_checksummed(path)) is None:
            continue
        channels, height, width = kept["image"]
        choice = _read_choice(kept)
        size = f"{height} x {width}{f' x {channels}' if channels != 3 else ''}"
        found[f"{kept['network']}, {size}, batch {kept['batch']}, torch {kept['torch']}, {path.stem[:8]}"] = str(choice)
    return found


def forget_choices() -> int:
    """Removes what is kept, and returns how many networks it was of. Raises `DiskError`."""
    paths = list(cache_folder("tuning").glob("*.json"))
    for path in paths:
        with disk_errors(path):
            path.unlink(missing_ok=True)
    return len(paths)
