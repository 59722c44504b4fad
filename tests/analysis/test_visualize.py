"""The figure shows the map that `attention_map` gives, on the picture that the model sees, for all that can be an image."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from tests.analysis.drawn import noise
from tests.analysis.weighing import shaken
from tests.models.tiny import TINY
from tests.slow import slow_except
from vitrail.analysis.attention import attention_map
from vitrail.analysis.render import overlay
from vitrail.analysis.visualize import visualize_attention
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import ViTConfig
from vitrail.tasks.classification.classifier import Classifier, create_classifier

if TYPE_CHECKING:
    from vitrail.analysis.figure import AttentionFigure

VIT = ViTConfig(
    image_size=(24, 40), patch_size=8, width=12, depth=3, heads=3, mlp_width=20, classes=5
)  # a map of 3 x 5
DISTILLED = replace(VIT, prefix=("cls", "dist"))
PATCHES_ONLY = replace(VIT, prefix=(), pool="gap")


def photo(height: int = 60, width: int = 90) -> Image.Image:
    return Image.fromarray(noise(height, width, 3))


def inputs(model: Classifier) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(1, model.config.in_channels, *model.config.image_size, generator=generator)


def figure_of(attention: np.ndarray, *, tokens: int) -> AttentionFigure:
    """The figure itself, which imports matplotlib: half a second."""
    from vitrail.analysis.figure import AttentionFigure

    return AttentionFigure(noise(20, 30, 3), attention, "map", size=(20, 30), cell=(10, 10), tokens=tokens)


def panels(figure: AttentionFigure) -> list[np.ndarray]:
    """The picture, the picture in its light, and the scale."""
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes]


def aspects(figure: AttentionFigure) -> list[float]:
    """Width / height of both panels on the page."""
    boxes = [axes.get_window_extent() for axes in figure.axes[:2]]
    return [box.width / box.height for box in boxes]


def words(figure: AttentionFigure) -> list[str]:
    return [text.get_text() for text in figure.texts]


@pytest.fixture
def undrawn(monkeypatch):
    """`visualize_attention` returns what its figure is made of, and matplotlib draws nothing."""
    monkeypatch.setattr("vitrail.analysis.figure.AttentionFigure", SimpleNamespace)


# what is shown


@pytest.fixture(scope="module")
def shown() -> AttentionFigure:
    """That of a ViT, which tests only read."""
    return visualize_attention(shaken(VIT), photo(), 1)


@pytest.mark.parametrize(
    ("config", "head", "query", "title"),
    [
        (VIT, 2, None, "head 2 (class token)"),
        (DISTILLED, -1, (2, 4), "head 2 (patch in row 2, column 4)"),
        (DISTILLED, 0, None, "head 0 (class and distillation tokens)"),
        (replace(DISTILLED, pool="cls-only"), 0, None, "head 0 (class token)"),
        (PATCHES_ONLY, None, (0, -1), "mean of 3 heads (patch in row 0, column 4)"),
        (replace(VIT, pool="gap"), 0, None, "head 0 (all patches)"),
        (replace(VIT, pool="cls+gap", registers=2, in_channels=5), 0, None, "head 0 (class token and all patches)"),
    ],
)
def test_layer_head_and_query_mean_what_they_mean_there_and_the_title_says_so(config, head, query, title, undrawn):
    model = shaken(config)
    images = inputs(model)
    figure = visualize_attention(model, images, 1, head, query=query)
    assert figure.attention.shape == (3, 5) and figure.attention.dtype == np.float32
    np.testing.assert_allclose(figure.attention, attention_map(model, images, 1, head, query)[0], rtol=1e-6)
    assert figure.title == f"layer 1, {title}"


def test_beside_the_picture_it_is_shown_in_the_light_of_the_map(shown):
    picture, lit, scale = panels(shown)
    assert shown.range == pytest.approx(np.quantile(shown.attention, [0, 0.97]))
    np.testing.assert_array_equal(lit, overlay(picture, shown.attention, range=shown.range))
    assert (np.diff(scale[0].astype(int), axis=0) >= 0).all() and scale[0, -1].sum() > 2 * scale[0, 0].sum()


@pytest.mark.parametrize("name", ["cait", "pvt"])
def test_the_class_token_asks_in_the_layers_that_have_it(name, undrawn):
    model = shaken(TINY[name])
    images = inputs(model)
    for layer, asking in ((0, "all patches"), (-1, "class token")):
        figure = visualize_attention(model, images, layer)
        np.testing.assert_array_equal(figure.attention, attention_map(model, images, layer, 0)[0])
        assert figure.title.endswith(f", head 0 ({asking})")


def test_the_scale_tells_its_ends_and_compares_the_highest_with_an_equal_share():
    attention = np.array([[0.1, 0.2, 0.05], [0.31, 0.02, 0.12]], np.float32)
    figure = figure_of(attention, tokens=7)
    shown = words(figure)
    assert "0.02" in shown and "0.29 or more" in shown
    (mark,) = figure.axes[2].patches
    scale = (1 / 7 - 0.02) / (np.quantile(attention, 0.97) - 0.02)
    assert mark.get_center()[0] / figure.axes[2].get_xlim()[1] == pytest.approx(scale)


def test_an_equal_share_that_is_not_on_the_scale_has_no_mark():
    attention = np.array([[0.01, 0.02, 0.06], [0.03, 0.02, 0.04]], np.float32)  # the rest is the class token's own
    figure = figure_of(attention, tokens=7)
    assert not figure.axes[2].patches
    assert "maximum 0.06, 0.4 times uniform (1/7); 18.0 % on patches" in words(figure)


def test_the_numbers_below_are_those_of_the_map(shown):
    highest, whole = shown.attention.max(), shown.attention.sum()
    line = f"maximum {highest:.2g}, {highest * 16:.1f} times uniform (mark: 1/16); {whole * 100:.1f} % on patches"
    assert "layer 1, head 0 (class token)" in words(shown)
    assert line in words(shown) and "3 × 5 patches of 8 × 8 pixels" in words(shown)


def test_a_map_whose_numbers_are_all_alike_is_dark_and_has_one_number():
    attention = np.full((2, 3), 0.125, np.float32)
    figure = figure_of(attention, tokens=8)
    assert "0.12" in words(figure) and not any("more" in each for each in words(figure))
    assert not figure.axes[2].patches and panels(figure)[1].mean() < 50


def test_the_patch_that_asks_is_outlined_on_both_panels(shown):
    figure = visualize_attention(shaken(VIT), photo(), 1, query=(-1, 3))
    for axes in figure.axes[:2]:
        assert {(*each.get_xy(), each.get_width(), each.get_height()) for each in axes.patches} == {(24, 16, 8, 8)}
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 40), (24, 0))
    assert not shown.axes[0].patches


def test_a_map_that_is_larger_than_the_image_is_laid_where_its_places_are():
    model = shaken(replace(VIT, image_size=(20, 36), pad=True))
    figure = visualize_attention(model, inputs(model), 1)
    picture, lit, _ = panels(figure)
    height, width = picture.shape[:2]
    box = (0.0, 0.0, 24 / 20 * height, 40 / 36 * width)
    assert figure.attention.shape == (3, 5)
    np.testing.assert_array_equal(lit, overlay(picture, figure.attention, box=box, range=figure.range))


# what may be an image


def test_every_form_of_a_picture_gives_the_same_figure(tmp_path, undrawn):
    pixels, model = noise(60, 90, 3), shaken(VIT)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    (tmp_path / "bee.png").write_bytes(buffer.getvalue())
    tensor = torch.from_numpy(pixels).movedim(-1, 0)
    forms = [pixels, tensor[None], [pixels], buffer.getvalue(), tmp_path / "bee.png", str(tmp_path / "bee.png")]
    expected = visualize_attention(model, Image.fromarray(pixels), 2)
    for form in forms:
        figure = visualize_attention(model, form, 2)
        np.testing.assert_array_equal(figure.attention, expected.attention)
        np.testing.assert_array_equal(figure.picture, expected.picture)
    floats = visualize_attention(model, pixels.astype(np.float32) / 255, 2)
    np.testing.assert_allclose(floats.attention, expected.attention, rtol=0.05)
    np.testing.assert_array_equal(floats.picture, expected.picture)


def test_a_float_tensor_in_0_to_1_is_a_picture_and_with_a_batch_axis_or_beyond_an_input(undrawn):
    model = shaken(VIT)
    picture = torch.rand(3, 24, 40, generator=torch.Generator().manual_seed(6))
    as_picture, as_input = model.preprocess([picture]), picture[None]
    for given, images in [(picture, as_picture), (as_input, as_input), (picture * 4 - 2, as_input * 4 - 2)]:
        np.testing.assert_array_equal(
            visualize_attention(model, given, 1).attention, attention_map(model, images, 1, 0)[0]
        )


def test_an_input_is_shown_as_it_was_before_its_normalisation(undrawn):
    model = shaken(VIT)
    model.preprocessing = replace(model.preprocessing, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    pixels = noise(24, 40, 3)
    images = model.preprocess([pixels])
    shown, expected = (visualize_attention(model, each, 1).picture for each in (images, pixels))
    assert shown.shape == (660, 1100, 3) and np.abs(shown.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("form", [torch.Tensor.clone, lambda images: images[0]])
def test_a_backbone_takes_normalised_tensors_and_shows_them_stretched(form, undrawn):
    model = shaken(VIT)
    images = inputs(model) * 7
    figure = visualize_attention(model.backbone, form(images), 1)
    np.testing.assert_array_equal(figure.attention, attention_map(model, images, 1, 0)[0])
    assert (figure.picture.min(), figure.picture.max()) == (0, 255)


@pytest.mark.parametrize(
    ("channels", "picture"),
    [(1, noise(60, 90)), (5, noise(60, 90, 5)), (1, photo()), (3, photo().convert("CMYK")), (3, photo().convert("P"))],
)
def test_pictures_of_other_channels_and_modes_are_shown(channels, picture, undrawn):
    model = shaken(replace(VIT, in_channels=channels))
    figure = visualize_attention(model, picture, 1)
    np.testing.assert_array_equal(figure.attention, attention_map(model, model.preprocess([picture]), 1, 0)[0])
    shown = figure.picture
    assert shown.shape[2] == 3 and shown.std() > 20 and (channels > 1 or (shown[..., :1] == shown).all())


def test_the_part_that_the_model_sees_is_shown_and_in_the_shape_of_the_picture():
    pixels = np.repeat(noise(60, 100, 1), 3, axis=2)
    pixels[:, :30], pixels[:, 70:] = (255, 0, 0), (255, 0, 0)
    seen = Preprocessing(size=(24, 16), resize="short", resize_to=16)
    model = create_classifier(replace(VIT, image_size=(24, 16)), classes=5, preprocessing=seen)
    figure = visualize_attention(model, pixels, 1)
    shown = panels(figure)[0].astype(int)
    assert shown.shape[:2] == (1100, 733) and np.abs(shown - shown[..., :1]).max() == 0
    assert aspects(figure) == pytest.approx([2 / 3] * 2, rel=1e-2)
    squashing = shaken(VIT)
    assert aspects(visualize_attention(squashing, photo(30, 90), 1)) == pytest.approx([3, 3], rel=1e-2)


def test_a_picture_smaller_than_an_input_that_is_not_scaled_has_its_black_border(undrawn):
    preprocessing = Preprocessing(size=(24, 40), resize="none")
    model = create_classifier(VIT, classes=5, preprocessing=preprocessing)
    shown = visualize_attention(model, np.full((12, 20, 3), 200, np.uint8), 1).picture
    assert shown.shape == (660, 1100, 3)
    assert shown[330, 550].tolist() == [200] * 3 and not shown[:150].any() and not shown[:, :250].any()


# the figure as a figure


@pytest.fixture
def pyplot(monkeypatch):
    """As a script imports it; another test does not find it."""
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    del sys.modules["matplotlib.pyplot"]
    import matplotlib.pyplot

    yield matplotlib.pyplot
    matplotlib.pyplot.close("all")


def test_in_a_script_pyplot_shows_it_unless_it_is_saved(tmp_path, pyplot):
    visualize_attention(shaken(VIT), photo(), 0, path=tmp_path / "saved.png")
    assert pyplot.get_fignums() == []
    figure = visualize_attention(shaken(VIT), photo(), 0)
    assert pyplot.gcf() is figure and figure.attention.shape == (3, 5)
    pyplot.savefig(tmp_path / "shown.png", dpi=figure.dpi)
    with Image.open(tmp_path / "shown.png") as shown, Image.open(tmp_path / "saved.png") as saved:
        assert shown.size == saved.size


def test_a_notebook_has_no_second_figure_in_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", SimpleNamespace(figure=pytest.fail))
    monkeypatch.setattr("vitrail.analysis.visualize.in_notebook", lambda: True)
    assert visualize_attention(create_classifier(VIT), photo(), 0).attention.shape == (3, 5)


def test_a_notebook_shows_it_as_a_png_of_its_size(shown):
    picture = Image.open(BytesIO(shown._repr_png_()))
    assert picture.format == "PNG" and picture.width == 1205
    np.testing.assert_allclose(picture.size, shown.get_size_inches() * 100, atol=1)


@pytest.mark.parametrize("ending", slow_except(["png", "JPG", "webp", "svg", "pdf"], {"JPG", "svg"}))
def test_a_saved_figure_is_of_the_format_that_its_name_ends_in(tmp_path, ending, shown):
    path = tmp_path / f"map.{ending}"
    shown.save(path)
    if ending in ("svg", "pdf"):
        assert path.read_bytes().startswith(b"<?xml" if ending == "svg" else b"%PDF")
        return
    with Image.open(path) as saved:
        assert saved.format == {"png": "PNG", "JPG": "JPEG", "webp": "WEBP"}[ending]
        across, down = shown.get_size_inches()
        assert saved.width == 1205 and saved.width / saved.height == pytest.approx(across / down, rel=1e-2)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("size", [(20, 400), (400, 20), (90, 90)])
def test_no_words_leave_the_page_or_run_into_each_other(size):
    figure = visualize_attention(shaken(replace(DISTILLED, pool="cls")), photo(*size), 1, None)
    page, boxes = figure.bbox, [text.get_window_extent() for text in figure.texts]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1 for box in boxes)
    pairs = [(one, other) for place, one in enumerate(boxes) for other in boxes[:place]]
    assert len(boxes) == 7 and not any(one.overlaps(other) for one, other in pairs)
    assert aspects(figure) == pytest.approx([size[1] / size[0]] * 2, rel=2e-2)


def test_the_figure_pickles(shown):
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(shown)).attention, shown.attention)


def test_the_model_is_left_as_it_was():
    model = shaken(VIT).train()
    visualize_attention(model, photo(), 1)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
