"""Images per second of models in turns, and the largest batch, found with a stand-in for a device of limited memory."""

from __future__ import annotations

import pytest
import torch

from tests.models.tiny import TINY
from vitrail.analysis import cost
from vitrail.analysis.cost import Memory, bound_bytes, find_largest_batch, measure_cost, measure_memory, measure_speeds
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.runtime.timing import Timing


@pytest.fixture
def device_of():
    """A step that runs out of memory from ``fitting + 1`` images on, and the batches that it was tried with."""

    def build(fitting):
        tried = []

        def step(batch):
            tried.append(batch)
            if batch > fitting:
                raise torch.OutOfMemoryError(f"{batch} images do not fit")

        return step, tried

    return build


@pytest.mark.parametrize("fitting", [0, 1, 2, 3, 5, 7, 31, 32, 33, 48, 63, 64])
def test_the_largest_batch_is_exact_up_to_twice_the_precision(device_of, fitting):
    step, tried = device_of(fitting)
    assert find_largest_batch(step) == fitting
    assert len(tried) == len(set(tried)), "a batch was tried twice"


@pytest.mark.parametrize("fitting", [65, 100, 777, 4095, 8191])
def test_large_batches_are_known_to_three_percent_and_were_run(device_of, fitting):
    step, tried = device_of(fitting)
    found = find_largest_batch(step)
    assert found <= fitting < found * (1 + 1 / 32) + 1
    assert found in tried
    assert len(tried) <= 14 + 5


def test_the_search_ends_at_the_most(device_of):
    step, tried = device_of(10_000)
    assert find_largest_batch(step, 100) == 100
    assert tried == [1, 2, 4, 8, 16, 32, 64, 100]
    step, tried = device_of(80)
    assert find_largest_batch(step, 100) in (79, 80)
    assert max(tried) == 100


def test_another_error_is_not_taken_for_a_full_device():
    def step(batch):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        find_largest_batch(step)


def test_memory_is_given_back_after_the_tensors_of_a_failed_pass_are_gone(monkeypatch):
    """A traceback that is still being handled keeps them, and the cache could not be emptied."""
    alive = []

    class Held:
        def __init__(self):
            alive.append(self)

        def __del__(self):
            order.append("freed")

    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("emptied"))

    def step(batch):
        held = Held()
        alive.clear()
        if batch > 1:
            raise torch.OutOfMemoryError(str(held))

    assert find_largest_batch(step) == 1
    assert order == ["freed", "emptied", "freed", "emptied"]


def test_speeds_are_those_of_passes_in_turns(monkeypatch):
    models = {name: create_backbone(TINY[name]).eval() for name in ("vit", "bit")}

    def time_in_turns(functions, **how):
        assert [function.args[0].shape for function in functions.values()] == [(4, 3, 40, 32), (2, 3, 40, 32)]
        assert [function.func for function in functions.values()] == list(models.values()) and how["rounds"] == 3
        return {"vit": Timing((0.5, 0.25, 1.0), (0.0,) * 3), "bit": Timing((4.0, 2.0, 1.0), (0.0,) * 3)}

    monkeypatch.setattr(cost, "time_in_turns", time_in_turns)
    speeds = measure_speeds(models, (40, 32), {"vit": 4, "bit": 2}, repeats=3)
    assert speeds == {"vit": (4, 8.0, 4.0, 16.0), "bit": (2, 1.0, 0.5, 2.0)}


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_memory_grows_by_each_image_as_predicted(name):
    model = create_backbone(TINY[name]).eval()
    memory = measure_memory(model, (64, 48))
    [point] = measure_cost(model, [(64, 48)], batch=5)
    images = 5 * 3 * 64 * 48 * 4
    assert memory.fixed + 5 * memory.each == pytest.approx(point.bytes + images, rel=0.02)
    assert memory.largest_batch(memory.fixed + 5 * memory.each) == 5
    assert memory.largest_batch(memory.fixed + 5 * memory.each - 1) == 4


def test_the_largest_batch_of_no_memory_is_zero():
    assert Memory(100, 10).largest_batch(109) == 0
    assert Memory(100, 10).largest_batch(50) == 0
    assert Memory(100, 10).largest_batch(110) == 1


@pytest.mark.parametrize("name", ["vit", "bit", "swin"])
def test_the_bound_is_above_what_a_pass_takes_and_allocates_nothing(name):
    config = TINY[name]
    bound = bound_bytes(config, (96, 96))
    memory = measure_memory(create_backbone(config).eval(), (96, 96))
    assert memory.fixed + memory.each <= bound
    assert bound_bytes(config, (4096, 4096)) > 1000 * bound  # of the memory of a machine


def test_an_unsupported_size_is_refused():
    with pytest.raises(ConfigError, match="does not divide"):
        bound_bytes(TINY["vit"], (30, 32))
