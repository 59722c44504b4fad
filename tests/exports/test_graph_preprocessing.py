"""Graphs that take whole pictures: what they show the network is what Pillow makes of them, at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.export import Dim

from tests.exports.exported import classifier_of, expected
from vitrail.data.preprocessing import INTERPOLATIONS, WHOLE_PIXELS, Preprocessing
from vitrail.errors import ConfigError
from vitrail.exports.graph import quiet_exporters, to_onnx
from vitrail.exports.graph_preprocessing import Preparation
from vitrail.exports.quantise import to_int8
from vitrail.images.decode import decode
from vitrail.tasks.classification.classifier import Classifier

# one pixel, the model's own size, smaller and larger on either side, strips of which no more than the crop is scaled
SIZES = ((1, 1), (7, 5), (16, 16), (20, 31), (97, 33), (33, 97), (130, 260), (2, 600), (600, 3), (251, 199))
WAYS: tuple[dict[str, Any], ...] = (
    {"size": (16, 16)},
    {"size": (24, 16)},
    {"size": (16, 16), "resize_to": 19},
    {"size": (16, 40), "resize": "short", "resize_to": 19, "rounding": "round"},
    {"size": (16, 16), "resize": "short", "resize_to": 18, "crop_rounding": "floor"},
    {"size": (24, 20), "resize": "short", "resize_to": 21},
    {"size": (224, 224), "resize": "short", "resize_to": 248},
)
BORDERED: tuple[dict[str, Any], ...] = ({"size": (31, 17)}, {"size": (30, 16), "crop_rounding": "floor"})


def preparing(channels: int, **way: Any) -> Preprocessing:
    return Preprocessing(mean=(0.45,) * channels, std=(0.3,) * channels, **way)


def noise(channels: int, size: tuple[int, int], count: int = 1) -> np.ndarray:
    """(B, H, W, C), as different from pixel to pixel as can be."""
    draw = np.random.default_rng(sum(size) + channels)
    return draw.integers(0, 256, (count, *size, channels), dtype=np.uint8)


def planes(pictures: np.ndarray) -> torch.Tensor:
    """(B, H, W, C) to (B, C, H, W)."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def assert_same_pixels(preprocessing: Preprocessing, pictures: np.ndarray) -> None:
    found = Preparation(preprocessing).frame(planes(pictures)).numpy()
    wanted = np.stack([preprocessing.picture(picture) for picture in pictures])
    np.testing.assert_array_equal(found, wanted, err_msg=f"{preprocessing}, {pictures.shape}")


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_pixels_are_pillows_own_at_every_size(interpolation):
    for place, way in enumerate(WAYS):
        for size in SIZES:
            channels = 1 if place % 2 == 0 else 4
            assert_same_pixels(preparing(channels, interpolation=interpolation, **way), noise(channels, size))


@pytest.mark.parametrize("way", BORDERED, ids=str)
def test_a_picture_that_is_not_scaled_gets_a_black_border_where_it_is_small(way):
    for size in SIZES:
        assert_same_pixels(preparing(3, resize="none", **way), noise(3, size, count=2))
    black = Preparation(preparing(3, resize="none", **way)).frame(torch.full((1, 3, 7, 5), 255, dtype=torch.uint8))
    assert black.sum() == 3 * 7 * 5 * 255


def test_the_sizes_above_reach_strips_of_which_only_the_crop_is_scaled():
    tall, wide = preparing(3, size=(224, 224), resize="short", resize_to=248).resized(2, 600)
    assert tall * wide > WHOLE_PIXELS


def test_photographs_are_pillows_own_too(real_data):
    paths = sorted((real_data / "imagenet_val" / "images").iterdir())[: len(INTERPOLATIONS)]
    for path, interpolation in zip(paths, INTERPOLATIONS, strict=True):
        photograph = np.array(decode(path.read_bytes()))
        for way in (WAYS[1], WAYS[-1]):
            assert_same_pixels(preparing(3, interpolation=interpolation, **way), photograph[None])


def test_pictures_are_normalised_as_by_the_classifier():
    model = classifier_of("vit")
    pictures = noise(3, (50, 41), count=3)
    prepared = Preparation(model.preprocessing)(planes(pictures))
    assert torch.equal(prepared, model.preprocess(pictures))


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def looking(name: str, **way: Any) -> Classifier:
    model = classifier_of(name)
    return Classifier(model.backbone, model.classes, preparing(model.config.in_channels, **way)).eval()


def assert_answers_of_the_model(model: Classifier, path: Path) -> None:
    """At every size and several batches; pixels that are others by one level are allowed for."""
    session = session_of(path)
    for count, size in enumerate(SIZES, start=1):
        pictures = noise(model.config.in_channels, size, count)
        found = session.run(None, {"pictures": planes(pictures).numpy()})
        for given, wanted in zip(found, expected(model, model.preprocess(pictures)).values(), strict=True):
            np.testing.assert_allclose(given, wanted, atol=1e-3, err_msg=str(pictures.shape))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, Path]:
    path = tmp_path_factory.mktemp("pictures") / "vit.onnx"
    model = looking("vit", size=(32, 40), resize="short", resize_to=36)
    assert to_onnx(model, path, pictures=True)
    return model, path


@pytest.mark.slow
def test_a_graph_of_pictures_answers_as_the_model_does_at_every_size(written):
    model, path = written
    (given,) = session_of(path).get_inputs()
    assert (given.name, given.type, given.shape) == ("pictures", "tensor(uint8)", ["batch", 3, "height", "width"])
    assert_answers_of_the_model(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin", "beit, one cubic table"])
def test_graphs_of_pictures_of_other_architectures_answer_even_where_images_have_one_size(name, tmp_path):
    model = looking(name, size=classifier_of(name).config.image_size)
    assert to_onnx(model, tmp_path / "a.onnx", pictures=True)
    assert_answers_of_the_model(model, tmp_path / "a.onnx")


@pytest.mark.slow
def test_onnxruntimes_pixels_are_pillows_too_but_for_one_level_in_rare_ties(tmp_path):
    """One graph of every kernel, and of every way to scale and crop."""
    short, squash = {"size": (24, 20), "resize": "short", "resize_to": 21}, {"size": (32, 32)}
    prepared = [
        preparing(3, **(short if place % 2 == 0 else squash), interpolation=name)
        for place, name in enumerate(INTERPOLATIONS)
    ]
    prepared.append(preparing(3, size=(31, 17), resize="none"))
    graph = AllOf(Preparation(each) for each in prepared)
    opened = {axis: Dim.DYNAMIC for axis in (0, 2, 3)}
    with quiet_exporters():
        program = torch.export.export(graph, (planes(noise(3, (64, 64), 2)),), dynamic_shapes={"pictures": opened})
        torch.onnx.export(program, dynamo=True, verbose=False, opset_version=20, input_names=["pictures"]).save(
            tmp_path / "a.onnx"
        )
    session, others, counts = session_of(tmp_path / "a.onnx"), [0] * len(prepared), [0] * len(prepared)
    for size in SIZES:
        pictures = noise(3, size, count=2)
        found = session.run(None, {"pictures": planes(pictures).numpy()})
        for place, (preprocessing, given) in enumerate(zip(prepared, found, strict=True)):
            pixels = (preprocessing.denormalise(torch.from_numpy(given)) * 255).round().numpy()
            difference = np.abs(pixels - np.stack([preprocessing.picture(picture) for picture in pictures]))
            assert difference.max() <= 1, (preprocessing, size)
            others[place] += np.count_nonzero(difference)
            counts[place] += difference.size
    rare = [few < count / 1000 for few, count in zip(others, counts)]
    assert all(rare), list(zip(prepared, others, counts))


class AllOf(torch.nn.ModuleList):
    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(module(pictures) for module in self)


@pytest.mark.slow
def test_int8_takes_pictures_too(written, tmp_path):
    model, path = written
    assert to_int8(path, tmp_path / "int8.onnx") > 0
    pictures = noise(3, (97, 33), count=4)
    found = session_of(tmp_path / "int8.onnx").run(["features"], {"pictures": planes(pictures).numpy()})[0]
    wanted = expected(model, model.preprocess(pictures))["features"]
    np.testing.assert_allclose(found, wanted, atol=0.1 * wanted.abs().max().item())


@pytest.mark.parametrize(
    ("how", "words"), [({"resize": "fit"}, "'fit'"), ({"pixel_range": (0.0, 4095.0)}, "0 to 4095")]
)
def test_preprocessing_that_a_graph_cannot_do_is_refused(how, words):
    with pytest.raises(ConfigError, match=f"{words}.*\n.*export without pictures"):
        Preparation(Preprocessing(size=(8, 8), **how))
