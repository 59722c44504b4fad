"""Bytes against sums by hand, exactly or within stated bounds; exponents on points that are made up. No time is asserted."""

from __future__ import annotations

import math

import pytest
import torch

from tests.models.conftest import shaken
from tests.models.tiny import QUICK, SHALLOW, SMALL, TINY
from vitrail.analysis import cost
from vitrail.analysis.cost import (
    CostPoint,
    choose_sizes,
    count_matrix_bytes,
    fit_growth,
    measure_cost,
    measure_cost_by_patch,
    measure_peak_bytes,
)
from vitrail.errors import ConfigError
from vitrail.models import MODELS, Config, ViTConfig, configure, cost_of, create_backbone
from vitrail.models.attention import attention_weights
from vitrail.runtime.timing import Timing
from vitrail.tasks.classification.classifier import create_classifier

CPU = torch.device("cpu")


def made(config: Config = SHALLOW["vit"], **changes) -> torch.nn.Module:
    return shaken(create_backbone(config, **changes))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def layer_bytes(side: int, heads: int = 2) -> int:
    """One layer's matrices for one image of the tiny ViT, with patches of 8 pixels and a class token."""
    return heads * ((side // 8) ** 2 + 1) ** 2 * 4


def points(*pairs: tuple[int, float | None]) -> list[CostPoint]:
    """Of tokens and seconds; what is made with all matrices costs twice that."""
    return [
        CostPoint((8, 8), (4, 4), tokens, seconds, 1, seconds and 2 * seconds, None, tokens**3)
        for tokens, seconds in pairs
    ]


# the measure of memory


def test_the_peak_is_that_of_a_sum_by_hand():
    given, factor = draw(1000), torch.nn.Parameter(draw(1000))

    def step() -> torch.Tensor:
        product = given * factor  # 4,000 bytes
        total = product + 1  # 8,000
        del product  # 4,000
        twice = torch.cat([total, total])  # 12,000
        del total  # 8,000
        twice.view(2, 1000).mul_(2)
        return twice[:500].clone()  # 10,000

    with torch.no_grad():
        assert measure_peak_bytes(step, CPU) == 12_000


def test_what_was_there_before_does_not_count_however_it_is_looked_at():
    given = draw(10, 10)
    assert measure_peak_bytes(lambda: given.T.reshape(10, 10)[2:].add_(1), CPU) == 0
    assert measure_peak_bytes(lambda: given.double(), CPU) == 800


def test_memory_that_is_used_again_counts_again():
    given = draw(1000)
    assert measure_peak_bytes(lambda: [float((given * factor).sum()) for factor in range(50)], CPU) == 4004


def test_the_definition_of_attention_holds_its_logits_and_their_softmax():
    q, k = draw(2, 3, 64, 4), draw(2, 3, 64, 4)
    assert measure_peak_bytes(lambda: attention_weights(q, k), CPU) == 2 * (2 * 3 * 64 * 64 * 4)


# the matrices


@pytest.mark.parametrize("side", [32, 64])
def test_the_matrices_of_a_vit_grow_with_the_square_of_its_tokens(side):
    assert count_matrix_bytes(configure(TINY["vit"], image_size=side)) == 3 * layer_bytes(side)


@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pvt"])
def test_the_matrices_are_counted_before_they_are_made(name):
    model = made(TINY[name]).eval()
    with torch.no_grad():
        _, matrices = model.forward_with_attention(draw(1, 3, *model.config.image_size))
    assert count_matrix_bytes(model.config) == sum(matrix.nbytes for matrix in matrices) > 0


@pytest.mark.parametrize("name", ["swin", "cait"])
def test_a_pass_that_makes_all_matrices_takes_at_least_their_bytes(name):
    [point] = measure_cost(made(TINY[name]), [TINY[name].image_size], batch=2)
    assert point.plain_bytes >= max(2 * count_matrix_bytes(TINY[name]), point.bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_takes_no_more_than_they_one_layer_twice_and_what_the_plain_pass_takes(dtype):
    points = measure_cost(made(TINY["vit"]).to(dtype), [64, 96], batch=2)
    for point, side in zip(points, [64, 96]):
        in_fp32 = 2 * 4 * layer_bytes(side)  # of 3 layers, and the logits of the last
        # q and k are turned into fp32 as well, which takes no more than the model's own tensors do
        assert in_fp32 <= point.plain_bytes <= in_fp32 + 2 * point.bytes


def test_without_them_a_vit_grows_with_its_tokens_and_with_them_with_their_square():
    found = measure_cost(made(TINY["vit"]), [64, 128, 256])
    assert [point.tokens for point in found] == [65, 257, 1025]
    assert fit_growth(found, "bytes") == pytest.approx(1, abs=0.02)
    assert fit_growth(found, "plain_bytes") == pytest.approx(2, abs=0.1)
    assert found[-1].bytes < layer_bytes(256)  # not even one layer's were ever there


def test_without_attention_there_is_nothing_to_make():
    [point] = measure_cost(made(SHALLOW["bit"]), [48])
    assert point.plain_seconds is None and point.plain_bytes is None and point.bytes > 0
    assert count_matrix_bytes(SHALLOW["bit"]) == 0


def test_they_are_not_made_above_the_limit(monkeypatch):
    found = []
    for limit in (2 * layer_bytes(64), 2 * layer_bytes(64) - 1):
        monkeypatch.setattr(cost, "LIMIT", limit)
        found.append(measure_cost(made(), [32, 64], batch=2))
    at, below = found
    assert [point.plain_bytes is None for point in at] == [False, False]
    assert [point.plain_bytes is None for point in below] == [False, True]
    assert below[1].plain_seconds is None and below[1].bytes == at[1].bytes


# the points


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_a_point_says_what_was_measured_and_what_is_counted(name):
    [point] = measure_cost(made(SHALLOW[name]), [(32, 48)])
    counted = cost_of(configure(SHALLOW[name], image_size=(32, 48)))
    assert (point.size, point.patch_size) == ((32, 48), SHALLOW[name].patch_size)
    assert (point.tokens, point.multiply_adds) == (counted.tokens, counted.multiply_adds)


def test_one_pass_warms_up_and_one_more_is_watched():
    model, shapes = made(), []
    model.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    measure_cost(model, [(24, 40), 32], batch=3)
    calls = 1 + cost.REPEATS + 1
    assert shapes == [(3, 3, 24, 40)] * calls + [(3, 3, 32, 32)] * calls


def test_the_seconds_are_the_median_of_one_thread_s_processor_time_divided_by_the_images(monkeypatch):
    timing = Timing((90.0, 20.0, 40.0), (9.0, 2.0, 4.0))
    monkeypatch.setattr(cost, "time_in_turns", lambda functions, **how: dict.fromkeys(functions, timing))
    for threads, seconds in ((1, 4.0 / 2), (2, 40.0 / 2)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        [point] = measure_cost(made(), [32], batch=2)
        assert point.seconds == seconds


def test_a_classifier_costs_what_its_backbone_does_and_stays_in_training():
    model = shaken(create_classifier(SHALLOW["vit"], classes=7, drop_path=0.5, patch_dropout=0.5)).train()
    of_both = [
        [(point.bytes, point.plain_bytes) for point in measure_cost(each, [48])]
        for each in (model, model.backbone, made())
    ]
    assert of_both[0] == of_both[1] == of_both[2]
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["axial", "beit"])
def test_inside_of_inference_mode_nothing_goes_unseen(name):
    model = made(SHALLOW[name])
    with torch.inference_mode():
        [inside] = measure_cost(model, [(32, 48)])
    [outside] = measure_cost(model, [(32, 48)])
    assert (inside.bytes, inside.plain_bytes) == (outside.bytes, outside.plain_bytes)


def test_a_size_that_does_not_divide_is_refused_before_anything_is_measured():
    model, calls = made(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(ConfigError, match="36x32 pixels does not divide into patches of 8x8"):
        measure_cost(model, [32, (36, 32)])
    assert not calls


# patches


def test_other_patches_are_other_models_of_the_same_width_and_depth():
    found = measure_cost_by_patch(configure(SHALLOW["vit"], image_size=(32, 48)), [16, 8, (4, 8)])
    assert [point.patch_size for point in found] == [(16, 16), (8, 8), (4, 8)]
    assert [point.tokens for point in found] == [2 * 3 + 1, 4 * 6 + 1, 8 * 6 + 1]
    for point in found:
        config = configure(SHALLOW["vit"], patch_size=point.patch_size, image_size=(32, 48))
        assert point.size == (32, 48) and point.multiply_adds == cost_of(config).multiply_adds
    assert found[-1].bytes == measure_cost(made(config), [(32, 48)])[0].bytes


def test_patches_that_do_not_divide_the_image_are_refused():
    with pytest.raises(ConfigError, match="32x32 pixels does not divide into patches of 5x5"):
        measure_cost_by_patch(SHALLOW["vit"], [8, 5])


# the exponent


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_power_law_is_found_again(exponent):
    found = points(*((tokens, 0.3 * tokens**exponent) for tokens in (17, 65, 197, 1025)))
    assert fit_growth(found, "seconds") == pytest.approx(exponent)
    assert fit_growth(found, "plain_seconds") == pytest.approx(exponent)
    assert fit_growth(found, "multiply_adds") == pytest.approx(3)
    assert fit_growth(found, "bytes") == 0


def test_it_is_fitted_by_least_squares_of_the_logarithms():
    # logarithms to the base of 2: (0, 0), (1, 1), (2, 0), (3, 3); means 1.5 and 1, so (1.5 - 0.5 * 0 - 0.5 + 3) / 5
    assert fit_growth(points((1, 1.0), (2, 2.0), (4, 1.0), (8, 8.0)), "seconds") == pytest.approx(4 / 5)


def test_points_without_the_figure_are_left_out():
    found = points((10, 1.0), (20, 4.0), (40, None))
    assert fit_growth(found, "plain_seconds") == pytest.approx(2)


@pytest.mark.parametrize("pairs", [[], [(10, 1.0)], [(10, 1.0), (10, 2.0)], [(10, 1.0), (20, None)]], ids=str)
def test_it_is_nan_without_two_numbers_of_tokens(pairs):
    assert math.isnan(fit_growth(points(*pairs), "plain_seconds"))
    assert math.isnan(fit_growth(points((10, 1.0), (20, 2.0)), "plain_bytes"))


# sizes


def patches_of(config: Config, size: tuple[int, int]) -> int:
    return math.prod(configure(config, image_size=size).grid)


@pytest.mark.parametrize("name", [*QUICK, "swin, odd map", "pvt, odd map", "vit-s14", "swin-t", "pvt-tiny"])
def test_default_sizes_are_taken_and_span_nine_times_the_patches(name):
    config = TINY[name] if name in TINY else MODELS[name]
    sizes = choose_sizes(config)
    assert sizes == sorted(set(sizes)) and max(map(max, sizes)) <= 1024
    assert patches_of(config, sizes[-1]) >= 9 * patches_of(config, sizes[0])


@pytest.mark.parametrize(
    ("image_size", "patch_size", "expected"),
    [
        (224, 16, [(224, 224), (336, 336), (448, 448), (672, 672)]),
        (32, 4, [(32, 32), (48, 48), (64, 64), (96, 96)]),
        (384, 16, [(192, 192), (288, 288), (384, 384), (576, 576)]),  # 3 x 384 is too large
        (1024, 16, [(256, 256), (384, 384), (512, 512), (768, 768)]),
        (518, 14, [(252, 252), (378, 378), (504, 504), (756, 756)]),  # 259 are no whole patches
        ((224, 112), 16, [(224, 112), (336, 160), (448, 224), (672, 336)]),
        (300, 300, [(300, 300), (600, 600), (900, 900)]),  # one patch and a half is one
        (512, 256, [(256, 256), (512, 512), (768, 768)]),
        (20, 32, [(32, 32), (64, 64), (96, 96)]),  # less than one patch, filled up
    ],
)
def test_default_sizes_are_multiples_of_the_model_s_own(image_size, patch_size, expected):
    settings = {**SMALL, "image_size": image_size}
    config = ViTConfig(**settings, patch_size=patch_size, width=16, depth=1, heads=2, mlp_width=24, pad=True)
    assert choose_sizes(config) == expected


def test_patches_too_large_for_three_are_refused():
    config = ViTConfig(**{**SMALL, "image_size": 512}, patch_size=512, width=16, depth=1, heads=2, mlp_width=24)
    with pytest.raises(ConfigError, match="1024 pixels hold fewer than 3 patches of 512x512"):
        choose_sizes(config)
