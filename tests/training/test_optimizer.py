"""Muon against torch's, groups of parameters, averages, and the state that travels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.models.tiny import TINY
from vitrail.config.recipes import find_recipe
from vitrail.config.schema import OptimSettings
from vitrail.models import create_backbone
from vitrail.training.optimizer import (
    Average,
    Muon,
    Optimiser,
    group_parameters,
    orthogonalise,
)

SHAPES = [(32, 32), (96, 32), (32, 128), (128, 32), (32, 96), (96, 32)]


def matrices() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw) for shape in SHAPES]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_singular_vectors_stay_and_singular_values_come_near_one(kind):
    for matrix, found in zip(matrices(), orthogonalise(matrices(), kind), strict=True):
        assert found.dtype == kind
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        inside = left.mT @ found.float() @ right.mT  # diagonal, if the vectors are the same
        values = inside.diagonal()
        assert 0.6 < values.min()
        assert values.max() < 1.3
        assert (inside - values.diag()).abs().max() < 0.03


def test_ten_steps_equal_those_of_torch():
    ours, theirs = ([nn.Parameter(matrix) for matrix in matrices()] for _ in range(2))
    groups = {"lr": 0.02, "weight_decay": 0.1}
    mine = Muon([{"params": ours[:4], **groups}, {"params": ours[4:], **groups, "lr": 0.01}])
    peer = torch.optim.Muon(
        [{"params": theirs[:4], **groups}, {"params": theirs[4:], **groups, "lr": 0.01}],
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    draw = torch.Generator().manual_seed(1)
    for _ in range(10):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        mine.step()
        peer.step()
    for one, other, start in zip(ours, theirs, matrices(), strict=True):
        moved = (other - start).norm()
        assert (one - other).norm() < 0.01 * moved  # bf16 rounds stacked products otherwise
        buffers = (mine.state[one]["momentum_buffer"], peer.state[other]["momentum_buffer"])
        torch.testing.assert_close(*buffers)


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (64, 2, 1, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_kernel_moves_as_the_matrix_of_its_outputs(shape, layout):
    draw = torch.Generator().manual_seed(0)
    start, gradient = (torch.randn(shape, generator=draw) for _ in range(2))
    kernel = nn.Parameter(start.clone(memory_format=layout))
    matrix = nn.Parameter(start.flatten(1).clone())
    kernel.grad, matrix.grad = gradient.clone(memory_format=layout), gradient.flatten(1).clone()
    Muon([kernel], lr=0.1, dtype=torch.float32).step()
    Muon([matrix], lr=0.1, dtype=torch.float32).step()
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach(), rtol=1e-6, atol=1e-6)
    assert not torch.equal(kernel.detach(), start)


def test_a_matrix_without_a_gradient_stays():
    first, second = (nn.Parameter(matrix) for matrix in matrices()[:2])
    first.grad = torch.ones_like(first)
    Muon([first, second], lr=0.1).step()
    assert torch.equal(second, matrices()[1])
    assert not torch.equal(first, matrices()[0])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_length_of_the_gradient_does_not_count(scale):
    wanted = orthogonalise(matrices())
    for found, one in zip(orthogonalise([scale * matrix for matrix in matrices()]), wanted, strict=True):
        assert (found.float() - one.float()).abs().max() < 0.02


def test_a_gradient_of_zeros_moves_nothing():
    assert not orthogonalise([torch.zeros(4, 8)])[0].any()


class TwoLayers(nn.Module):
    """A stand-in with the two verbs that an optimiser asks of a backbone."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.stem, self.block, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def layers(self) -> list[dict[str, nn.Parameter]]:
        parts = ("stem", "block", "head")
        return [{f"{part}.{name}": p for name, p in getattr(self, part).named_parameters()} for part in parts]

    def no_decay(self) -> set[str]:
        return {name for name, parameter in self.named_parameters() if parameter.ndim < 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.block(torch.tanh(self.stem(x)))))


def step(model: TwoLayers, optimiser: Optimiser, seed: int) -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    optimiser.zero_grad()
    model(x).square().mean().backward()
    optimiser.gradient_norm()
    optimiser.step()


def test_layer_decay_scales_by_depth_and_biases_do_not_decay() -> None:
    model = TwoLayers()
    parameters = dict(model.named_parameters())
    groups = group_parameters(model, OptimSettings(layer_decay=0.5, weight_decay=0.1), parameters)
    by_name = {name: (group["scale"], group["weight_decay"]) for group in groups for name in group["names"]}
    assert by_name["stem.weight"] == (0.25, 0.1)
    assert by_name["block.bias"] == (0.5, 0.0)
    assert by_name["head.weight"] == (1.0, 0.1)
    everything = group_parameters(model, OptimSettings(decay_on="all", weight_decay=0.1), parameters)
    assert {group["weight_decay"] for group in everything} == {0.1}


@pytest.mark.parametrize(("depth", "expected"), [(2, 0.75), (12, 0.75), (24, 0.75**0.5), (40, 0.75**0.3)])
def test_an_open_layer_decay_follows_the_depth(depth: int, expected: float) -> None:
    with torch.device("meta"):
        model = create_backbone("vit-ti16", depth=depth, image_size=32, classes=3)
    groups = group_parameters(model, OptimSettings(layer_decay=None), dict(model.named_parameters()))
    scales = {name: group["scale"] for group in groups for name in group["names"]}
    assert scales["head.weight"] == 1.0
    assert scales[f"blocks.{depth - 1}.norm1.weight"] == pytest.approx(expected)
    assert scales["patch_embed.proj.weight"] == pytest.approx(expected ** (depth + 1))


def test_groups_change_rate_and_decay_of_the_first_pattern_that_matches() -> None:
    model = create_backbone("vit-ti16", depth=2, image_size=32, classes=3)
    groups = {
        "blocks.1.mlp.*": {"lr": 0.5},
        "blocks.*.weight": {"weight_decay": 0.3, "lr": 2},
        "head.bias": {"weight_decay": 0.2},
    }
    settings = OptimSettings(layer_decay=0.5, weight_decay=0.1, groups=groups)
    found = {
        name: (group["scale"], group["weight_decay"])
        for group in group_parameters(model, settings, dict(model.named_parameters()))
        for name in group["names"]
    }
    assert found.keys() == dict(model.named_parameters()).keys()
    assert found["patch_embed.proj.weight"] == (0.125, 0.1)
    assert found["blocks.0.attn.qkv.weight"] == (0.5, 0.3)
    assert found["blocks.0.attn.qkv.bias"] == (0.25, 0.0)
    assert found["blocks.1.mlp.fc1.weight"] == (0.25, 0.1)
    assert found["head.weight"] == (1.0, 0.1)
    assert found["head.bias"] == (1.0, 0.2)


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_an_optimiser_rebuilt_from_its_tensors_resumes_bit_for_bit(name: str) -> None:
    settings = OptimSettings(name=name, lr=0.05, layer_decay=0.7)  # type: ignore[arg-type]
    first = TwoLayers()
    optimiser = Optimiser(first, settings, dict(first.named_parameters()))
    for seed in range(3):
        step(first, optimiser, seed)
    second = TwoLayers()
    second.load_state_dict(first.state_dict())
    resumed = Optimiser(second, settings, dict(second.named_parameters()))
    resumed.load_tensors({path: tensor.clone() for path, tensor in optimiser.tensors().items()})
    for seed in range(3, 6):
        step(first, optimiser, seed)
        step(second, resumed, seed)
    for one, other in zip(first.parameters(), second.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["vit", "bit", "pvt v2"])
def test_muon_takes_matrices_and_kernels_of_hidden_layers(name: str) -> None:
    backbone = create_backbone(TINY[name])
    parameters = dict(backbone.named_parameters())
    muon, adamw = Optimiser(backbone, OptimSettings(name="muon"), parameters).parts
    taken = {name for group in muon.param_groups for name in group["names"]}
    assert taken.isdisjoint(name for group in adamw.param_groups for name in group["names"])
    ends = {*backbone.layers()[0], *backbone.layers()[-1]}
    depthwise = {name for name in parameters if "dwconv" in name}
    assert taken == {
        name for name, weight in parameters.items() if name.endswith(".weight") and weight.ndim > 1
    } - ends - depthwise  # fmt: skip
    assert any(parameters[name].ndim == 4 for name in taken) == (name != "vit")


def test_adamw_with_its_rate_set_takes_the_step_of_the_definition() -> None:
    model = TwoLayers()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser = Optimiser(model, OptimSettings(weight_decay=0.1, clip=None), dict(model.named_parameters()))
    optimiser.set_rate(0.01)
    step(model, optimiser, 0)
    for name, parameter in model.named_parameters():
        decay = 0.1 if parameter.ndim == 2 else 0.0
        # after one step the bias-corrected moments are g and g², so Adam moves by the sign of the gradient
        expected = before[name] * (1 - 0.01 * decay) - 0.01 * parameter.grad / (parameter.grad.abs() + 1e-8)
        torch.testing.assert_close(parameter.detach(), expected)


def test_clipping_bounds_the_norm_and_reports_the_one_before() -> None:
    model = TwoLayers()
    optimiser = Optimiser(model, OptimSettings(clip=0.5), dict(model.named_parameters()))
    (1000 * model(torch.ones(4, 3))).square().sum().backward()
    exact = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    torch.testing.assert_close(optimiser.gradient_norm(), exact)
    clipped = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    torch.testing.assert_close(clipped, torch.tensor(0.5), atol=1e-5, rtol=0)


def test_the_average_follows_its_recurrence() -> None:
    model = TwoLayers()
    parameters = dict(model.named_parameters())
    average = Average(parameters, decay=0.9)
    expected = parameters["block.weight"].detach().clone()
    for count in range(30):
        with torch.no_grad():
            parameters["block.weight"].add_(0.1)
        average.update(parameters, count)
        decay = min(0.9, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * parameters["block.weight"].detach()
    torch.testing.assert_close(average.tensors["block.weight"], expected)


def test_polyak_s_average_is_the_mean_until_its_decay_is_reached_and_the_recipe_reaches_it() -> None:
    parameters = {"weight": nn.Parameter(torch.zeros(1, dtype=torch.float64))}
    average = Average(parameters, decay=0.9999, ramp=2.0)
    for count in range(40):
        with torch.no_grad():
            parameters["weight"].add_(1.0)
        average.update(parameters, count)
    torch.testing.assert_close(average.tensors["weight"].item(), sum(range(41)) / 41)
    run = find_recipe("paper-finetune/imagenet-512").run
    assert run.schedule.steps is not None
    assert run.optim.ema is not None
    polyak = Average({}, run.optim.ema, run.optim.ema_ramp)
    assert polyak.decay_at(9_997) < 0.9999 == polyak.decay_at(9_998) == polyak.decay_at(run.schedule.steps - 1)
    assert Average({}, 0.9999).decay_at(run.schedule.steps - 1) < 0.9996  # the usual ramp is made for shorter memories
    assert Average({}, 0.9999, ramp=1.0).decay_at(0) == 0.9999
