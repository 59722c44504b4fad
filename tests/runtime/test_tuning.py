"""The plan that is chosen is the one that took least time on the network's own blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.models.tiny import QUICK, SHALLOW, TINY
from vitrail.models import sketch
from vitrail.runtime import tuning
from vitrail.runtime.tuning import ExecutionPlan, choose_plan, find_blocks

SLOW, FAST, HALF = ExecutionPlan("fp32", 2), ExecutionPlan("bf16", 2), ExecutionPlan("fp32", 1)


class Machine:
    """A clock, and contexts in which a pass takes as long as is stated for each plan; counts the passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[ExecutionPlan, Sequence[float]]) -> None:
        self.now, self.costs, self.passes = 0.0, costs, dict.fromkeys(costs, 0)
        monkeypatch.setattr(tuning, "use_threads", self.enter("threads"))
        monkeypatch.setattr(tuning, "in_precision", self.enter("precision"))
        monkeypatch.setattr(tuning.Block, "build", self.build)
        self.threads, self.precision, self.built = 0, "", list[bool]()

    def build(self, *, gradient: bool = True, from_images: bool = False):
        self.built.append(gradient)
        return self.compute

    def enter(self, name):
        def context(value, *rest):
            setattr(self, name, value)
            return nullcontext()

        return context

    def compute(self, plan: ExecutionPlan) -> None:
        assert (plan.precision, plan.threads) == (self.precision, self.threads)
        costs = self.costs[plan]
        self.now += costs[min(self.passes[plan], len(costs) - 1)]
        self.passes[plan] += 1

    def ask(self, *plans: ExecutionPlan, config: str = "vit", batch: int = 1, **how: Any) -> tuning.Choice | None:
        network = sketch(TINY[config])
        image = (3, *network.config.image_size)
        return choose_plan(network, image, plans, batch=batch, clock=lambda: self.now, **how)

    def choose(self, *plans: ExecutionPlan, **how: Any) -> tuning.Choice:
        choice = self.ask(*plans, **how)
        assert choice is not None
        return choice


@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ({SLOW: [0.3], FAST: [0.2], HALF: [0.5]}, FAST),
        ({SLOW: [0.3], FAST: [0.5], HALF: [0.2]}, HALF),
        ({SLOW: [0.300], FAST: [0.297], HALF: [0.2955]}, SLOW),  # not worth another
        ({SLOW: [0.3], FAST: [9.0, 0.1], HALF: [0.5]}, FAST),  # the first pass does not count
        ({SLOW: [0.2, 0.2, 0.2, 0.2, 0.2, 2.0], FAST: [0.2, 0.2, 0.8, 0.05], HALF: [1.0]}, FAST),  # nor a disturbed one
    ],
)
def test_the_fastest_plan_is_chosen(monkeypatch, costs, taken):
    machine = Machine(monkeypatch, costs)
    choice = machine.choose(*costs)
    assert choice.plan == taken
    if max(map(len, costs.values())) < 3:
        assert choice.seconds[taken] == pytest.approx(3 * costs[taken][-1])  # three blocks
    assert all(machine.built)
    threads = "2 threads" if taken.threads == 2 else "1 thread"
    assert str(choice).startswith(f"{taken.precision} on {threads}; ms of an image, forward and backward: ")


FP32, BF16 = tuning.PRECISIONS


@pytest.mark.parametrize(("bf16", "taken"), [(0.99, FP32), (0.78, FP32), (0.76, BF16), (0.1, BF16), (5.0, FP32)])
@pytest.mark.parametrize("image", [(3, 32, 32), (3, 4096, 4096)])
def test_bf16_is_taken_where_it_is_faster_by_its_ratio(monkeypatch, image, bf16, taken):
    machine = Machine(monkeypatch, {FP32: [1.0], BF16: [bf16]})
    choice = tuning.choose_precision(sketch(TINY["vit"]), image, clock=lambda: machine.now)
    assert choice.plan == taken
    images = 196 if image[1] == 32 else 1
    assert choice.seconds == pytest.approx({FP32: 3 / images, BF16: 3 * bf16 / images})
    assert all(machine.built)


def test_the_precision_of_a_network_without_blocks_is_chosen_by_all_of_it(monkeypatch):
    network = torch.nn.Conv2d(3, 8, 3, device="meta")
    built: list[tuple[bool, bool]] = []
    machine = Machine(monkeypatch, {FP32: [0.2], BF16: [0.3]})

    def build(self, *, gradient: bool, from_images: bool):
        assert self.module is network
        built.append((gradient, from_images))
        return machine.compute

    monkeypatch.setattr(tuning.Block, "build", build)
    assert tuning.choose_precision(network, (3, 32, 32), clock=lambda: machine.now).plan == FP32
    choice = tuning.choose_precision(network, (3, 32, 32), gradient=False, clock=lambda: machine.now)
    assert built == [(True, True), (False, True)] and not choice.gradient


@pytest.mark.parametrize("disturbed", range(4))
@pytest.mark.parametrize("plan", tuning.PRECISIONS)
def test_no_single_disturbed_pass_changes_the_precision(monkeypatch, plan, disturbed):
    costs = {FP32: [0.3] * 5, BF16: [0.2] * 5}
    costs[plan][disturbed] = 9.0
    machine = Machine(monkeypatch, costs)
    assert tuning.choose_precision(sketch(TINY["vit"]), (3, 32, 32), clock=lambda: machine.now).plan == BF16


def test_a_small_network_is_timed_as_a_whole(monkeypatch):
    """What a pass costs then holds for all images, and for the network, not for each block."""
    machine = Machine(monkeypatch, {SLOW: [0.004], FAST: [0.003]})
    assert machine.choose(SLOW, FAST, batch=4).seconds == pytest.approx({SLOW: 0.001, FAST: 0.00075})


def test_time_is_bounded_and_a_slow_plan_is_tried_once(monkeypatch):
    machine = Machine(monkeypatch, {SLOW: [0.4], FAST: [0.7], HALF: [4.0]})
    choice = machine.choose(SLOW, FAST, HALF, config="beit")
    assert machine.passes[HALF] == 2  # one of them to warm up
    assert 1 < choice.took <= 3 + 2 * 4.0 + 2 * 0.4 + 0.7
    assert choice.plan == SLOW


def test_the_first_plan_is_not_given_up_after_a_disturbed_pass(monkeypatch):
    """Its passes 0 to 7 find out how long two kinds of blocks take, 8 is the first in turns, and 9 the first that counts."""
    machine = Machine(monkeypatch, {SLOW: [*[0.12] * 9, 0.4, 0.12], FAST: [0.15]})
    assert machine.choose(SLOW, FAST).plan == SLOW


def test_more_images_are_taken_where_one_is_too_quick(monkeypatch):
    asked: list[int] = []
    found = find_blocks

    def note(network, image, images):
        asked.append(images)
        return found(network, image, images)

    monkeypatch.setattr(tuning, "find_blocks", note)
    machine = Machine(monkeypatch, {SLOW: [0.004], FAST: [0.006]})
    machine.choose(SLOW, FAST, batch=64)
    assert max(asked) == 8  # of 4 ms each, in 0.05 s
    asked.clear()
    machine.choose(SLOW, FAST, batch=6)
    assert max(asked) == 6


RELATIVE = {"vit, relative positions": replace(SHALLOW["vit"], positions="relative")}
BLOCKS = {**SHALLOW, **{name: TINY[name] for name in (*QUICK, "vit, windows")}, **RELATIVE}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_blocks_of_every_architecture_run_as_the_network_calls_them(name):
    """As many as it has, in fp32 and in bf16, with gradients; and so does the network."""
    config = BLOCKS[name]
    network = sketch(config)
    image = (config.in_channels, *config.image_size)
    blocks = find_blocks(network, image, 2)
    lists = [each for path, each in network.named_modules() if path.rpartition(".")[2].startswith("blocks")]
    assert sum(block.count for block in blocks) == sum(map(len, lists)) > 0
    images = torch.zeros(2, *image, device="meta")
    whole = tuning.Block(network, (images,), {})
    for gradient, plans in (
        (True, (ExecutionPlan("fp32", 1), ExecutionPlan("bf16", 1))),
        (False, (ExecutionPlan("fp32", 1, channels_last=True),)),
    ):
        built = [block.build(gradient=gradient) for block in blocks]
        for run in (*built, whole.build(gradient=gradient, from_images=True)):
            for plan in plans:
                with plan.within():
                    run(plan)
    assert all(parameter.is_meta for parameter in network.parameters())


@pytest.mark.parametrize(("images", "passes"), [(199, 0), (200, 4), (222, 4)])
def test_few_images_are_not_worth_a_measurement(monkeypatch, images, passes):
    """Three blocks of 0.15 s: 3 % of 222 images are less than 3 s. Both kinds are timed, after a first pass; for 199 none."""
    machine = Machine(monkeypatch, {SLOW: [0.15], FAST: [0.1]})
    assert machine.ask(SLOW, FAST, images=images, gradient=False) is None
    assert machine.passes == {SLOW: passes, FAST: 0}


@pytest.mark.parametrize("images", [223, math.inf])
def test_as_many_as_are_worth_it_are_timed_forward_only(monkeypatch, images):
    machine = Machine(monkeypatch, {SLOW: [0.15], FAST: [0.11]})
    choice = machine.choose(SLOW, FAST, images=images, gradient=False)
    assert choice.plan == FAST and not any(machine.built)
    assert str(choice).startswith("bf16; ms of an image, forward: bf16 330, fp32 450 (measured in ")


def test_images_that_are_quick_together_are_not_worth_it_either(monkeypatch):
    """One alone takes 0.1 s in a block, a batch of 16 as long, which is 19 s for 1,000 of them in three blocks."""
    machine = Machine(monkeypatch, {SLOW: [0.1], FAST: [0.05]})
    monkeypatch.setattr(tuning, "_count_images", lambda *_: 16)
    assert machine.ask(SLOW, FAST, images=1000, gradient=False, batch=16) is None
    assert machine.ask(SLOW, FAST, images=6000, gradient=False, batch=16) is not None


def test_a_plan_gives_maps_and_images_the_same_memory_format():
    maps = torch.randn(2, 3, 4, 5)
    laid = ExecutionPlan("fp32", 1, channels_last=True).to_memory_format(maps)
    assert laid.is_contiguous(memory_format=torch.channels_last) and torch.equal(laid, maps)
    assert ExecutionPlan("fp32", 1).to_memory_format(maps) is maps
    seen = []

    class Note(torch.nn.Module):
        def forward(self, maps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            seen.append(maps.is_contiguous(memory_format=torch.channels_last))
            return maps.sum() + tokens.sum()

    block = tuning.Block(Note(), (torch.zeros(2, 3, 4, 5, device="meta"), torch.zeros(2, 3, 4, device="meta")), {})
    run = block.build()
    for channels_last in (False, True, False):
        run(ExecutionPlan("fp32", 1, channels_last))
    assert seen == [False, True, False]
