"""The way that is taken is the one that took least time on the network's own blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.models.tiny import TINY
from vitrail.models import sketch
from vitrail.runtime import tuning
from vitrail.runtime.tuning import Way, choose_way, find_blocks

SLOW, FAST, HALF = Way("fp32", 2), Way("bf16", 2), Way("fp32", 1)


class Machine:
    """A clock, and contexts in which a pass takes as long as is told of each way; counts the passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[Way, Sequence[float]]) -> None:
        self.now, self.costs, self.passes = 0.0, costs, dict.fromkeys(costs, 0)
        monkeypatch.setattr(tuning, "use_threads", self.enter("threads"))
        monkeypatch.setattr(tuning, "in_precision", self.enter("precision"))
        monkeypatch.setattr(tuning.Block, "build", lambda block: self.compute)
        self.threads, self.precision = 0, ""

    def enter(self, name):
        def context(value, *rest):
            setattr(self, name, value)
            return torch.no_grad()

        return context

    def compute(self) -> None:
        way = Way(self.precision, self.threads)
        costs = self.costs[way]
        self.now += costs[min(self.passes[way], len(costs) - 1)]
        self.passes[way] += 1

    def choose(self, *ways: Way, config: str = "vit", batch: int = 1) -> tuning.Choice:
        network = sketch(TINY[config])
        return choose_way(network, (3, *network.config.image_size), ways, batch=batch, clock=lambda: self.now)


@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ({SLOW: [0.1], FAST: [0.05], HALF: [0.2]}, FAST),
        ({SLOW: [0.05], FAST: [0.1], HALF: [0.04]}, HALF),
        ({SLOW: [0.100], FAST: [0.099], HALF: [0.0985]}, SLOW),  # not worth another
        ({SLOW: [0.05], FAST: [9.0, 0.01], HALF: [0.2]}, FAST),  # the first pass does not count
        ({SLOW: [0.1, 0.1, 0.1, 9.0], FAST: [0.1, 0.1, 9.0, 0.02], HALF: [1.0]}, FAST),  # nor does a disturbed one
    ],
)
def test_the_fastest_way_is_taken(monkeypatch, costs, taken):
    machine = Machine(monkeypatch, costs)
    choice = machine.choose(*costs)
    assert choice.way == taken
    if max(map(len, costs.values())) < 3:
        assert choice.seconds[taken] == pytest.approx(3 * costs[taken][-1])  # three blocks
    assert f"{taken.precision}; ms of an image" in str(choice)


def test_time_is_bounded_and_a_hopeless_way_is_tried_once(monkeypatch):
    machine = Machine(monkeypatch, {SLOW: [0.4], FAST: [0.7], HALF: [4.0]})
    choice = machine.choose(SLOW, FAST, HALF, config="beit")
    assert machine.passes[HALF] == 2  # one of them to warm up
    assert 1 < choice.took <= 3 + 2 * 4.0 + 2 * 0.4 + 0.7
    assert choice.way == SLOW


def test_more_images_are_taken_where_one_is_too_quick(monkeypatch):
    asked: list[int] = []
    found = find_blocks

    def note(network, image, images):
        asked.append(images)
        return found(network, image, images)

    monkeypatch.setattr(tuning, "find_blocks", note)
    machine = Machine(monkeypatch, {SLOW: [0.001], FAST: [0.002]})
    machine.choose(SLOW, FAST, batch=64)
    assert max(asked) == 50  # of a millisecond each
    asked.clear()
    machine.choose(SLOW, FAST, batch=8)
    assert max(asked) == 8


@pytest.mark.parametrize("name", TINY)
def test_the_blocks_of_every_architecture_run_as_the_network_calls_them(name):
    """As many as it has, in fp32 and in bf16, with gradients."""
    config = TINY[name]
    network = sketch(config)
    image = (config.in_channels, *config.image_size)
    blocks = find_blocks(network, image, 2)
    lists = [each for path, each in network.named_modules() if path.rpartition(".")[2].startswith("blocks")]
    assert sum(block.count for block in blocks) == sum(map(len, lists)) > 0
    for block in blocks:
        run = block.build()
        for precision in ("fp32", "bf16"):
            with tuning.in_precision(precision, torch.device("cpu")):
                run()
    assert all(parameter.is_meta for parameter in network.parameters())
