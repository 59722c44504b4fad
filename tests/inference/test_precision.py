"""bf16 is taken for many images where it is faster and gives the answers of fp32, and fp32 everywhere else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.models.tiny import TINY
from tests.tasks.dense_models import create, draw_images
from vitrail.errors import ConfigError
from vitrail.inference import precision
from vitrail.inference.comparison import Comparison, compare_outputs
from vitrail.inference.options import InferenceOptions
from vitrail.inference.precision import settle_precision
from vitrail.runtime.tuning import PRECISIONS, Choice
from vitrail.serving.loaded_model import load_model
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.weights.native import save_model

Measured = Callable[[float], list[Any]]
FEW, MANY = 5, 40
LINE = "precision bf16: 1.6 times as fast as fp32; of 32 images 100 % of the answers agree, largest difference "


@pytest.fixture
def measured(monkeypatch, tmp_path) -> Measured:
    """A function from the ratio that is to be measured to the list of what was asked; `MANY` images are worth a measurement."""
    monkeypatch.setattr(precision, "MIN_IMAGES", MANY)
    monkeypatch.setattr(precision, "has_bf16", lambda: True)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))

    def set_ratio(ratio: float) -> list[Any]:
        asked: list[Any] = []

        def recall(network: Any, image: Any, **how: Any) -> Choice:
            asked.append((tuple(image), how["gradient"]))
            return Choice(PRECISIONS[ratio >= 1.3], dict(zip(PRECISIONS, (1e-3 * ratio, 1e-3))), 0.5, gradient=False)

        monkeypatch.setattr(precision, "recall_precision", recall)
        return asked

    return set_ratio


def make_model(name: str = "vit", *, sharpness: float = 40.0) -> Classifier:
    """A model whose classes are far apart, as those of a trained one."""
    torch.manual_seed(0)
    model = create_classifier(TINY[name], classes=tuple("0123456")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    list(model.parameters())[-1].data *= sharpness  # biases of the classes
    return model


def save_images(path: Path, count: int) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    np.savez(path, images=pixels, labels=np.arange(count) % 7)
    return str(path)


def note_precisions(model: torch.nn.Module) -> list[bool]:
    """Whether each call of ``model`` computes in bf16; the calls of the comparison are among them."""
    seen: list[bool] = []
    model.register_forward_pre_hook(lambda *given: seen.append(torch.is_autocast_enabled("cpu")))
    return seen


def predict(model: Any, images: str, **how: Any) -> tuple[list[dict[str, Any]], list[str]]:
    lines: list[str] = []
    rows = vitrail.predict(model, [images], log=lines.append, quiet=True, **how).to_rows()
    return rows, [line for line in lines if line.startswith("precision")]


def test_many_images_are_computed_in_bf16_where_it_is_faster_and_the_answers_agree(measured, tmp_path):
    asked, model, images = measured(1.6), make_model(), save_images(tmp_path / "many.npz", MANY)
    seen = note_precisions(model)
    rows, (line,) = predict(model, images)
    assert asked == [((3, 32, 32), False)]
    assert line.startswith(LINE) and seen[-1]
    fp32, lines = predict(model, images, precision="fp32")
    assert not lines and not seen[-1]
    assert [row["label"] for row in rows] == [row["label"] for row in fp32]
    assert rows != fp32


@pytest.mark.parametrize(("count", "ratio", "how"), [(FEW, 1.6, {}), (MANY, 1.6, {"tune": False}), (MANY, 1.2, {})])
def test_fp32_is_taken_for_few_images_without_measurement_and_where_bf16_is_no_faster(
    measured, tmp_path, count, ratio, how
):
    asked, model, images = measured(ratio), make_model(), save_images(tmp_path / "images.npz", count)
    rows, lines = predict(model, images, **how)
    assert rows == predict(model, images, precision="fp32")[0]
    assert lines == (["precision fp32: bf16 is 1.2 times as fast as fp32"] if ratio == 1.2 else [])
    assert bool(asked) is (ratio == 1.2)


def test_fp32_is_taken_where_the_answers_of_bf16_differ(measured, monkeypatch, tmp_path):
    measured(1.6)
    model, images = make_model(), save_images(tmp_path / "many.npz", MANY)
    monkeypatch.setattr(Classifier, "agreement", lambda *given: 0.75)
    rows, (line,) = predict(model, images)
    assert line.startswith("precision fp32: bf16 is 1.6 times as fast as fp32; of 32 images 75 % of the answers agree")
    assert line.endswith("--precision bf16 takes it all the same")
    assert rows == predict(model, images, precision="fp32")[0]


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (Comparison(32, 1.0, 0.01), True),
        (Comparison(32, 31 / 32, 0.01), True),
        (Comparison(32, 30 / 32, 0.01), False),
        (Comparison(32, 1.0, 0.06), False),
        (Comparison(32, None, 0.01), True),
        (Comparison(32, None, math.nan), False),
        (Comparison(0, 0.0, 0.0), False),
    ],
)
def test_a_comparison_holds_if_the_answers_agree_and_the_outputs_are_close(found, holds):
    assert found.holds() is holds


def test_the_comparison_counts_images_and_takes_the_largest_difference_of_all_batches():
    def exact(images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[2.0, 1.8]]).expand(len(images), -1)

    def fast(images: torch.Tensor) -> torch.Tensor:
        return exact(images) + images[:, :, 0, 0] * torch.tensor([[0.0, 1.0]])

    batches = [torch.full((2, 1, 4, 4), value) for value in (0.0, 0.5, 0.1)]
    found = compare_outputs(exact, fast, batches, make_model())
    assert found.images == 6 and found.agreement == pytest.approx(2 / 3) and found.difference == pytest.approx(0.25)
    batches[0][0] = math.nan
    assert math.isnan(compare_outputs(exact, fast, batches).difference)


@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
def test_objects_and_maps_are_compared_as_an_export_compares_them(task):
    model = create(task)
    images = draw_images(model)
    with torch.inference_mode():
        outputs = model(images)
        torch.testing.assert_close(model.name_outputs(outputs), model.graph(images))
        computes = [partial(InferenceOptions(precision=each).compute, model) for each in ("fp32", "bf16")]
        found = compare_outputs(*computes, [images], model)
        named = [model.name_outputs(compute(images)) for compute in computes]
    assert found == Comparison(2, model.agreement(*named), model.difference(*named))
    assert found.difference > 0


@pytest.mark.parametrize("name", ["answers.csv", "features.npy"])
def test_the_agreement_is_written_beside_the_results_and_removed_with_those_it_was_of(measured, tmp_path, name):
    measured(1.6)
    model, images, out = make_model(), save_images(tmp_path / "many.npz", MANY), tmp_path / name
    write = partial(vitrail.embed if name.endswith("npy") else vitrail.predict, model, [images], quiet=True, out=out)
    write()
    found = json.loads((tmp_path / f"{name}.agreement.json").read_text())
    assert 0 < found.pop("difference") < 0.05
    agreement = None if name.endswith("npy") else 1.0
    assert found == {"images": 32, "agreement": agreement, "runtime": "PyTorch bf16", "exact": "PyTorch fp32"}
    write(precision="fp32")
    assert not (tmp_path / f"{name}.agreement.json").exists()


def test_features_are_compared_by_their_difference(measured, tmp_path):
    measured(1.6)
    model, images, lines = make_model(), save_images(tmp_path / "many.npz", MANY), []
    rows = list(vitrail.embed(model, [images], log=lines.append, quiet=True))
    (line,) = [line for line in lines if line.startswith("precision")]
    assert line.startswith("precision bf16: 1.6 times as fast as fp32; of 32 images largest difference")
    exact = list(vitrail.embed(model, [images], precision="fp32", log=lines.append, quiet=True))
    worst = max(np.abs(row.features - other.features).max() for row, other in zip(rows, exact))
    assert 0 < worst < 0.05 * max(np.abs(row.features).max() for row in exact)


def test_parts_keep_the_precision_that_they_were_begun_in(measured, tmp_path):
    measured(1.6)
    model, images, lines = make_model(), save_images(tmp_path / "many.npz", MANY), []
    how: dict[str, Any] = {"parts": tmp_path / "parts", "part_size": 10, "format": "jsonl", "quiet": True}
    vitrail.predict(model, [images], shard="0/2", log=lines.append, **how)
    assert sum(line.startswith("precision bf16") for line in lines) == 1
    agreement = json.loads((tmp_path / "parts" / "_plan.json").read_text())["about"]["agreement"]
    assert agreement["images"] == 32 and agreement["runtime"] == "PyTorch bf16"
    asked = measured(1.0)  # another machine
    vitrail.predict(model, [images], shard="1/2", log=lines.append, **how)
    assert not asked and (tmp_path / "parts" / "_done.json").is_file()
    with pytest.raises(ConfigError, match="another plan"):
        vitrail.predict(model, [images], precision="fp32", log=lines.append, **how)


@pytest.mark.parametrize("tune", [True, False])
def test_a_server_compares_generated_images_and_states_its_precision(measured, tmp_path, tune):
    measured(1.6)
    path, lines = save_model(tmp_path / "model", make_model()), []
    options = InferenceOptions(precision="auto", tune=tune, batch=4)
    served = load_model(str(path), name=None, options=options, log=lines.append)
    assert served.options.precision == ("bf16" if tune else "fp32")
    found = [line for line in lines if line.startswith("precision")]
    assert len(found) == tune and all(line.startswith(LINE) and "(generated images)" in line for line in found)


def test_a_given_precision_and_an_unsettled_one_of_a_processor_without_bf16_measure_nothing(measured, monkeypatch):
    asked, model = measured(1.6), make_model()
    options = InferenceOptions(precision="bf16", tune=True)
    assert settle_precision(options, model, print) == (options, None)
    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    automatic = replace(options, precision="auto")
    assert settle_precision(automatic, model, print) == (replace(options, precision="fp32"), None) and not asked
