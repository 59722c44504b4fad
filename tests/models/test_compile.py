"""Compiled models compute what they compute without a compiler, gradients included, and need two graphs for all sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.models import swins
from tests.models.conftest import gradients
from tests.models.test_matrix import build, distance, draw, sizes
from tests.models.tiny import SHALLOW, TINY, TWO_STAGES
from vitrail.models import Backbone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch's own, as it loads its compiler
]

# what has code of its own in a compiled model, but for windows: a table that is interpolated, averages
VARIANTS = {
    "beit, one bilinear table": replace(TINY["beit, one table"], depth=1, bias_resize="bilinear"),
    "pvt v2, linear": replace(TINY["pvt v2, linear"], **TWO_STAGES),
}
CONFIGS = {**SHALLOW, **VARIANTS}
# both kinds of oblong images, a square, odd maps, and at last the native size
GROWTHS = [(0, 3), (1, 1), (2, 0), (0, 0)]


def assert_equal(model: Backbone, compiled: Backbone, images: torch.Tensor) -> None:
    """Logits and the gradients of all parameters, in fp32."""
    logits, expected = compiled(images), model(images)
    assert distance(logits, expected) < 1e-4, images.shape
    found, plain = (gradients(model, each.square().sum()) for each in (logits, expected))
    largest = max(each.abs().max() for each in plain.values())  # some are zero but for rounding
    for name, gradient in plain.items():
        allowed = 1e-3 * gradient.abs().max() + 1e-6 * largest
        assert (found[name] - gradient).abs().max() < allowed, (name, images.shape)


def test_inductor_computes_a_vit_and_its_gradients():
    torch.compiler.reset()
    model = build(SHALLOW["vit"], torch.float32)
    assert_equal(model, torch.compile(model), draw(model.config, dtype=torch.float32))


@pytest.mark.parametrize("name", CONFIGS)
def test_two_graphs_compute_every_size_and_its_gradients(name):
    """A third graph is an error of torch's. Floats are constants here: as inputs they have the first graph traced twice."""
    model = build(CONFIGS[name], torch.float32)
    torch.compiler.reset()
    # torch traces a square first as a square, and then anything: one architecture shows that, the others only the second
    growths = GROWTHS[::-1] if name == "vit" else GROWTHS
    with torch._dynamo.config.patch(recompile_limit=2, specialize_float=True):
        compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
        for size in sizes(model, *growths):
            assert_equal(model, compiled, draw(model.config, size=size, dtype=torch.float32))


# whole windows, filled up, odd maps, and for Swin maps that are smaller than a window
WINDOWED = {"swin": [(48, 72), (40, 33), (29, 41), (16, 40)], "vit": [(48, 64), (40, 32), (32, 56)]}


@torch.no_grad()
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_need_one_graph_and_a_second_one_only_for_maps_below_a_window(name):
    torch.compiler.reset()
    swin, vit = swins.make(dtype=torch.float32, depths=(2, 1)), replace(TINY["vit, windows"], depth=2)
    model, graphs = swin if name == "swin" else build(vit, torch.float32), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=count, dynamic=True, fullgraph=True)
    for size in WINDOWED[name]:
        images = swins.pictures(*size).float()
        torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)
        assert len(graphs) == (2 if size == (16, 40) else 1), size


@pytest.mark.parametrize("changes", [{}, {"positions": "relative", "pool": "map"}], ids=str)
def test_a_vit_that_drops_patches_and_branches_is_one_graph(make, pictures, changes):
    torch.compiler.reset()
    options = {"depth": 2, "drop_path": 0.3, "patch_dropout": 0.2, "dropout": 0.1, "positions_at": "every"}
    model, images = make(torch.float32, **{**options, **changes}), pictures(dtype=torch.float32)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))
    model.train()
    compiled(images).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
