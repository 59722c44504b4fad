"""The input layer's positions against their tables and a closed form, its filters against numpy, both on a real ViT."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests.models.conftest import shaken
from tests.models.tiny import SMALL, TINY
from vitrail.analysis.embeddings import (
    compute_line_similarity,
    compute_neighbour_rate,
    compute_position_similarity,
    compute_principal_filters,
    extract_filters,
    extract_position_embeddings,
    render_filters,
)
from vitrail.models import ViTConfig, create_backbone
from vitrail.models.positions import sincos2d
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights import load

# of each config the positions (rows, columns, D) that enter with the patches, and the first layer's (D, C, P, Q)
SHAPES = {
    "vit": ((4, 4, 16), (16, 3, 8, 8)),
    "vit, windows": ((5, 3, 16), (16, 3, 8, 8)),
    "vit, root": ((4, 4, 16), (32, 3, 7, 7)),
    "cait": ((4, 4, 12), (12, 3, 8, 8)),
    "beit": (None, (12, 3, 8, 8)),
    "pvt, odd map": ((9, 7, 8), (8, 3, 4, 4)),
    "swin": (None, (8, 3, 4, 4)),
    "bit": (None, (64, 3, 7, 7)),
}


def a_vit(**changes):
    config = ViTConfig(**{**SMALL, "image_size": (24, 32)}, patch_size=8, width=16, depth=2, heads=2, mlp_width=24)
    return shaken(create_backbone(config, **changes)).double().eval()


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def places(rows, columns):
    return list(itertools.product(range(rows), range(columns)))


# positions


@pytest.mark.parametrize("name", SHAPES)
def test_positions_are_what_is_added_to_patches(name):
    model, (shape, _) = shaken(create_backbone(TINY[name])), SHAPES[name]
    found = extract_position_embeddings(model)
    if shape is None:
        assert found is None
        return
    assert found.shape == shape
    assert found.flatten(0, 1).std(0).min() > 0.01  # the patches differ in every dimension
    model.double()
    patches = model.patchify(draw(1, 3, *model.config.image_size))
    added = (model.place(patches).x - patches.x)[0]
    torch.testing.assert_close(extract_position_embeddings(model).flatten(0, 1), added, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_a_classifier_gives_what_its_backbone_does(name):
    model = shaken(create_classifier(TINY[name], classes=7))
    assert torch.equal(extract_filters(model), extract_filters(model.backbone))
    if SHAPES[name][0] is None:
        assert extract_position_embeddings(model) is None
    else:
        assert torch.equal(extract_position_embeddings(model), extract_position_embeddings(model.backbone))


def test_learned_positions_are_the_table_without_the_class_token():
    model = a_vit()
    assert torch.equal(extract_position_embeddings(model).flatten(0, 1), model.pos_embed[0, 1:])


def test_learned_2d_positions_are_half_the_column_and_half_the_row():
    model = a_vit(positions="learned2d")
    found = extract_position_embeddings(model)
    for row, column in places(3, 4):
        expected = torch.cat([model.pos_embed_x[0, column], model.pos_embed_y[0, row]])
        assert torch.equal(found[row, column], expected)


def test_sines_and_cosines_are_those_of_the_grid():
    found = extract_position_embeddings(a_vit(positions="sincos2d"))
    assert torch.equal(found.flatten(0, 1).float(), sincos2d((3, 4), 16))


@pytest.mark.parametrize(
    "changes",
    [{"positions": "none"}, {"positions": "relative"}, {"positions_at": "every"}, {"positions_at": "shared"}],
)
def test_positions_that_do_not_enter_with_the_patches_are_none(changes):
    assert extract_position_embeddings(a_vit(**changes)) is None


def test_a_model_in_training_that_drops_patches_shows_them_all_and_resumes_training():
    model = a_vit(patch_dropout=0.5, dropout=0.5).train()
    assert torch.equal(extract_position_embeddings(model).flatten(0, 1), model.pos_embed[0, 1:])
    assert all(module.training for module in model.modules())


def test_half_precision_stays_and_is_compared_in_fp32():
    found = extract_position_embeddings(a_vit().bfloat16())
    assert found.dtype == torch.bfloat16 and not found.requires_grad
    assert compute_position_similarity(found).dtype == torch.float32


# similarity


def test_the_similarity_of_sines_and_cosines_has_a_closed_form():
    """By cos a cos b + sin a sin b = cos(a - b) it is the mean of cos((x1 - x2) w) and cos((y1 - y2) w) over all w."""
    rows, columns, width = 5, 7, 48
    found = compute_position_similarity(sincos2d((rows, columns), width).unflatten(0, (rows, columns)))
    waves = [10000 ** (-i / (width // 4 - 1)) for i in range(width // 4)]
    for (r1, c1), (r2, c2) in itertools.product(places(rows, columns), repeat=2):
        expected = sum(math.cos((c1 - c2) * w) + math.cos((r1 - r2) * w) for w in waves) / (2 * len(waves))
        assert found[r1, c1, r2, c2].item() == pytest.approx(expected, abs=1e-6)


def test_similarity_is_the_cosine_whatever_the_lengths_and_zeros_are_similar_to_none():
    embeddings = draw(2, 3, 5) * torch.tensor([1e-3, 1.0, 50.0])[:, None]
    embeddings[1, 2] = 0
    found = compute_position_similarity(embeddings)
    assert found.shape == (2, 3, 2, 3) and found.dtype == torch.float32
    for one, other in itertools.product(places(2, 3), repeat=2):
        lengths = (embeddings[one].norm() * embeddings[other].norm()).item()
        expected = (embeddings[one] @ embeddings[other]).item() / lengths if lengths else 0.0
        assert found[*one, *other].item() == pytest.approx(expected, abs=1e-6)


def test_the_neighbour_rate_counts_patches_whose_best_other_is_within_reach():
    similarity = torch.zeros(2, 3, 2, 3)
    best = {  # each patch's most similar other
        (0, 0): (0, 1),  # beside
        (0, 1): (1, 1),  # below
        (0, 2): (1, 1),  # at the corner
        (1, 0): (1, 2),  # two away
        (1, 1): (0, 0),  # at the corner
        (1, 2): (0, 0),  # across the grid
    }
    for one, other in best.items():
        similarity[*one, *one], similarity[*one, *other] = 1.0, 0.5
    assert compute_neighbour_rate(similarity) == pytest.approx(2 / 6)
    assert compute_neighbour_rate(similarity, reach=1.5) == pytest.approx(4 / 6)
    assert compute_neighbour_rate(similarity, reach=2) == pytest.approx(5 / 6)
    assert compute_neighbour_rate(similarity, reach=3) == 1


def test_a_row_does_not_go_on_in_the_next():
    similarity = torch.zeros(3, 3, 3, 3)
    for (r1, c1), (r2, c2) in itertools.product(places(3, 3), repeat=2):
        similarity[r1, c1, r2, c2] = -abs((3 * r1 + c1) - (3 * r2 + c2))
    # for the 4 patches at the inner ends of rows, the next in line lies across the grid and ties with the one beside them
    assert compute_neighbour_rate(similarity) == pytest.approx(5 / 9)


def test_a_tie_with_a_patch_that_is_no_neighbour_does_not_count():
    assert compute_neighbour_rate(torch.ones(3, 3, 3, 3)) == 0
    assert compute_neighbour_rate(torch.ones(3, 3, 3, 3), reach=1.5) == pytest.approx(
        1 / 9
    )  # all are neighbours of the centre
    assert compute_neighbour_rate(torch.ones(2, 1, 2, 1)) == 1
    assert math.isnan(compute_neighbour_rate(torch.ones(1, 1, 1, 1)))


def test_sines_and_cosines_are_most_similar_to_their_neighbours():
    assert compute_neighbour_rate(compute_position_similarity(sincos2d((6, 9), 64).unflatten(0, (6, 9)))) == 1


def test_lines_are_compared_with_pairs_elsewhere_that_are_no_further_apart():
    rows, columns = 5, 4
    similarity = compute_position_similarity(draw(rows, columns, 3))
    means = {"row": [], "column": [], "elsewhere": []}
    for step in (2, 3):
        pairs = {kind: [] for kind in means}
        for (r1, c1), (r2, c2) in itertools.product(places(rows, columns), repeat=2):
            kind = "row" if r1 == r2 else "column" if c1 == c2 else "elsewhere"
            if step - 1 < math.hypot(r1 - r2, c1 - c2) <= step:
                pairs[kind].append(similarity[r1, c1, r2, c2].item())
        for kind, values in pairs.items():
            means[kind].append(np.mean(values))
    found = compute_line_similarity(similarity)
    for kind, values in means.items():
        assert getattr(found, kind) == pytest.approx(np.mean(values), abs=1e-6)


def test_lines_stand_out_of_embeddings_made_of_row_and_column():
    rows, columns = draw(8, 1, 256).expand(-1, 8, -1), draw(1, 8, 256, seed=1).expand(8, -1, -1)
    found = compute_line_similarity(compute_position_similarity(torch.cat([rows, columns], 2)))
    assert found.row == pytest.approx(0.5, abs=0.05) and found.column == pytest.approx(0.5, abs=0.05)
    assert found.elsewhere == pytest.approx(0, abs=0.05)


def test_lines_do_not_stand_out_of_a_similarity_that_only_falls_with_distance():
    similarity = torch.zeros(6, 7, 6, 7)
    for one, other in itertools.product(places(6, 7), repeat=2):
        similarity[*one, *other] = -math.dist(one, other)
    found = compute_line_similarity(similarity)
    assert found.row == pytest.approx(found.column) and found.row < found.elsewhere


def test_a_grid_too_small_to_compare_lines_has_no_figures():
    found = compute_line_similarity(torch.ones(2, 5, 2, 5))
    assert all(math.isnan(each) for each in (found.row, found.column, found.elsewhere))


# filters


@pytest.mark.parametrize("name", SHAPES)
def test_filters_are_a_copy_of_the_first_kernels(name):
    model = shaken(create_backbone(TINY[name])).double()
    filters = extract_filters(model)
    kernels = model.get_parameter(model.first_layer)
    assert filters.shape == SHAPES[name][1] and filters.dtype == torch.float32 and not filters.requires_grad
    assert torch.equal(filters, kernels.float())
    filters.zero_()
    assert kernels.any()


def test_a_copy_is_made_in_fp32_too():
    model = create_backbone(TINY["vit"])
    extract_filters(model).zero_()
    assert model.get_parameter(model.first_layer).any()


def test_filters_are_what_a_single_pixel_adds_to_a_patch():
    model = a_vit(in_channels=5)
    filters, dark = extract_filters(model), torch.zeros(1, 5, 24, 32, dtype=torch.float64)
    lit = dark.clone()
    lit[0, 4, 8 + 2, 16 + 7] = 1  # in the patch of row 1, column 2
    added = (model.patchify(lit).x - model.patchify(dark).x)[0, 1 * 4 + 2]
    torch.testing.assert_close(added.float(), filters[:, 4, 2, 7])


@pytest.mark.parametrize("shape", [(40, 3, 2, 4), (11, 1, 4, 3), (11, 5, 3, 2)], ids=["many", "one", "five"])
def test_components_are_the_eigenvectors_of_the_covariance(shape):
    filters = draw(*shape) + 3  # a mean that is not zero
    components, explained = compute_principal_filters(filters, count=1000)
    there_are = min(shape[0] - 1, math.prod(shape[1:]))
    assert components.shape == (there_are, *shape[1:]) and explained.shape == (there_are,)
    variances, directions = np.linalg.eigh(np.cov(filters.flatten(1).numpy(), rowvar=False))
    variances, directions = variances[::-1][:there_are], directions.T[::-1][:there_are]
    np.testing.assert_allclose(explained, variances / variances.sum(), atol=1e-12)
    cosines = (components.flatten(1).numpy() * directions).sum(1)
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-9)
    assert explained.sum().item() == pytest.approx(1)
    assert torch.allclose(components.flatten(1).norm(dim=1), torch.ones(1, dtype=torch.float64))


def test_a_few_components_are_the_first_of_all():
    filters = draw(40, 3, 2, 4)
    few, every = compute_principal_filters(filters, count=4), compute_principal_filters(filters, count=24)
    assert torch.equal(few.components, every.components[:4]) and torch.equal(few.explained, every.explained[:4])
    assert compute_principal_filters(draw(60, 3, 4, 4)).components.shape == (28, 3, 4, 4)


def test_the_largest_value_of_a_component_is_positive():
    filters = draw(40, 3, 2, 4)
    found, mirrored = compute_principal_filters(filters), compute_principal_filters(-filters)
    flat = found.components.flatten(1)
    assert torch.equal(flat.max(1).values, flat.abs().max(1).values)
    torch.testing.assert_close(found.components, mirrored.components)


def test_principal_filters_of_fp32_are_fp32_and_carry_no_gradient():
    filters = draw(6, 3, 2, 2).float().requires_grad_()
    components, explained = compute_principal_filters(filters)
    assert components.dtype == explained.dtype == torch.float32 and not components.requires_grad


def test_equal_filters_explain_nothing_and_one_has_no_components():
    assert not compute_principal_filters(torch.ones(5, 3, 2, 2)).explained.any()
    assert compute_principal_filters(draw(1, 3, 2, 2)).components.shape == (0, 3, 2, 2)


@pytest.mark.parametrize(("channels", "shown"), [(1, [0, 0, 0]), (2, [0, 0, 0]), (3, [0, 1, 2]), (5, [0, 1, 2])])
def test_pictures_show_zero_as_mid_grey_and_reach_the_end(channels, shown):
    components = draw(4, channels, 3, 5)
    components[:, 0, 0, 0] = 0
    pictures = render_filters(components)
    assert pictures.shape == (4, 3, 5, 3) and pictures.dtype == np.uint8
    assert (pictures[:, 0, 0, 0] == 128).all()
    for picture, component in zip(pictures, components[:, shown].movedim(1, 3).numpy()):
        end = np.abs(component).max()
        np.testing.assert_allclose(picture, 127.5 + 127.5 * component / end, atol=0.5 + 1e-9)
        assert picture.flat[np.abs(component).argmax()] == (255 if component.max() == end else 0)


def test_a_picture_of_nothing_is_grey():
    assert (render_filters(torch.zeros(2, 3, 4, 4)) == 128).all()


# a real ViT


@pytest.fixture(scope="module")
def tiny_vit(real_data):
    return load(real_data / "vit_tiny_patch16_224.safetensors", log=lambda line: None)


def test_the_real_vit_has_learned_where_its_patches_are(tiny_vit):
    """The paper's findings: what is near is similar, and rows and columns stand out."""
    similarity = compute_position_similarity(extract_position_embeddings(tiny_vit))
    assert similarity.shape == 2 * (14, 14)
    assert compute_neighbour_rate(similarity) == 1 and compute_neighbour_rate(similarity, reach=1.5) == 1
    lines = compute_line_similarity(similarity)
    assert min(lines.row, lines.column) > lines.elsewhere + 0.2


def test_28_components_carry_two_fifths_of_the_real_vits_filters(tiny_vit):
    components, explained = compute_principal_filters(extract_filters(tiny_vit))
    assert components.shape == (28, 3, 16, 16)
    assert explained[0].item() == pytest.approx(0.0497, abs=1e-4)
    assert explained.sum().item() == pytest.approx(0.4220, abs=1e-4)
    assert render_filters(components).shape == (28, 16, 16, 3)
