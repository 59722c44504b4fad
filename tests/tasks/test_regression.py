"""Regression: numbers of images are learned, evaluated, predicted, resumed, exported and served in their own units."""

from __future__ import annotations

import csv
import json
from functools import partial
from io import BytesIO

import numpy as np
import pytest
import sklearn.metrics
import torch
from PIL import Image

import vitrail
from tests.reports.reading import Page
from tests.serving.conftest import start as start
from tests.training.stopping import stopped_after
from vitrail.cli import run
from vitrail.config.compose import compose_run
from vitrail.data.augment.policy import Augment
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.numbers import Numbers
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.models import create_backbone
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks.regression.metric import NumberMetric
from vitrail.tasks.regression.task import Regressor, Values

NAMES = ("light", "slope")
TINY = (
    "model.changes={width: 32, depth: 1, heads: 2, mlp_width: 64, patch_size: [8, 8]}",
    "data.batch=32",
    "optim.name=adamw",
)
QUICK = {"model": "vit-ti16", "recipe": "small-data", "quiet": True, "device": "cpu"}


def draw_ramps(count: int, seed: int, size=(16, 24), channels: int = 3) -> Source:
    """Pictures that get brighter downwards; the numbers are 1000 times their mean, shifted, and the slope."""
    generator = np.random.default_rng(seed)
    middle, slope = generator.uniform(90, 160, count), generator.uniform(-80, 80, count)
    rows = np.linspace(-0.5, 0.5, size[0])
    levels = middle[:, None] + slope[:, None] * rows  # (n, H)
    images = np.broadcast_to(levels[:, :, None, None], (count, *size, channels)).astype(np.uint8)
    values = np.stack([5e4 + 1000 * middle, slope / 1000], 1).astype(np.float32)
    return Source(
        contents=Arrays(images, Strings(f"{n}.png" for n in range(count))), targets=Numbers(values), classes=NAMES
    )


def split(channels: int = 3, count: int = 256) -> Splits:
    parts = {
        name: draw_ramps(each, seed, channels=channels)
        for seed, (name, each) in enumerate({"train": count, "val": 48}.items())
    }
    return Splits(**parts, classes=NAMES, layout="ramps")


def train(out, data=None, **changes):
    settings = (*TINY, *changes.pop("settings", ()))
    given = {"steps": 80, "lr": 3e-3, **QUICK, **changes}
    return vitrail.train(data or split(), out=out, settings=settings, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "ramps")


def metric_of(predicted, true, names=NAMES, parts=(0,)):
    metric = NumberMetric(names)
    for rows in np.split(np.arange(len(true)), parts):
        other = NumberMetric(names)
        other.update(torch.tensor(predicted[rows]), torch.tensor(true[rows]), [f"{row}" for row in rows])
        metric.merge(other)
    return metric


def test_two_numbers_of_different_units_are_learned_and_evaluated(trained):
    figures = trained.figures
    assert next(iter(figures)) == "r2" and figures["r2"] == pytest.approx(
        (figures["light_r2"] + figures["slope_r2"]) / 2
    )
    assert figures["r2_low"] < figures["r2"] < figures["r2_high"] and figures["r2_low"] > 0.9
    assert figures["light_rmse_low"] < figures["light_rmse"] < 0.3 * 1000 * 70 / 12**0.5
    model = trained.load()
    assert isinstance(model, Regressor) and model.preprocessing.size == (16, 24)
    values = split().train.targets.values.astype(np.float64)
    np.testing.assert_allclose(model.mean, values.mean(0))
    np.testing.assert_allclose(model.std, values.std(0))
    assert vitrail.evaluate(trained.folder, split(), quiet=True).figures == pytest.approx(figures, rel=1e-6)


def test_figures_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    true = generator.normal([3, -1e4], [2, 50], (60, 2)).astype(np.float32)
    predicted = (true + generator.normal(0, [1, 30], (60, 2))).astype(np.float32)
    figures, exact = metric_of(predicted, true, parts=(13, 40)).compute(), (true.astype(float), predicted.astype(float))
    assert figures["r2"] == pytest.approx(sklearn.metrics.r2_score(*exact), rel=1e-9)
    for k, name in enumerate(NAMES):
        one = [each[:, k] for each in exact]
        assert figures[f"{name}_r2"] == pytest.approx(sklearn.metrics.r2_score(*one), rel=1e-9)
        assert figures[f"{name}_mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(*one), rel=1e-9)
        assert figures[f"{name}_rmse"] == pytest.approx(sklearn.metrics.root_mean_squared_error(*one), rel=1e-9)
    # a sample is what the same images, some of them several times, are evaluated to
    weights = generator.multinomial(60, np.full(60, 1 / 60), size=3)
    drawn = metric_of(predicted, true).resample(weights)
    for row, times in enumerate(weights):
        again = [each.repeat(times, 0) for each in exact]
        assert drawn["r2"][row] == pytest.approx(sklearn.metrics.r2_score(*again), rel=1e-9)
        mae = sklearn.metrics.mean_absolute_error(*again, multioutput="raw_values")
        assert drawn["slope_mae"][row] == pytest.approx(mae[1], rel=1e-9)


def test_figures_by_hand_and_those_that_are_not_defined():
    figures = metric_of(np.float32([[2], [2], [5]]), np.float32([[1], [2], [3]]), names=("x",)).compute()
    assert figures == pytest.approx({"r2": 1 - 5 / 2, "mae": 1, "rmse": (5 / 3) ** 0.5})
    constant = metric_of(np.float32([[1.5], [2]]), np.float32([[0.1], [0.1]]), names=("x",))
    assert np.isnan(constant.compute()["r2"]) and constant.compute()["mae"] == pytest.approx(1.65, rel=1e-6)
    mean = metric_of(np.zeros((50, 1), np.float32), np.float32(np.arange(50) - 24.5)[:, None], names=("x",))
    assert mean.compute()["r2"] == 0 and "not shown to be better than the mean" in mean.explain_failure(mean.compute())


def test_worst_images_are_those_with_the_largest_errors_in_std():
    true = np.float32([[0, 0], [10, 1000], [20, 2000], [30, 3000]])
    found = true + np.float32([[1, 0], [0, 500], [9, 0], [0, 0]])
    assert metric_of(found, true).worst(3).tolist() == [2, 1, 0]


def test_the_report_shows_answers_against_targets_and_pictures(trained):
    page = Page((trained.folder / "report.html").read_text())
    assert {"numbers", "worst-pictures", "examples"} <= {*page.sections}
    dots = (trained.folder / "plots" / "predicted-1.svg").read_text()
    assert dots.count("<circle") == 48 and "light" in dots and "stroke-dasharray" in dots
    assert "Classes" not in page.said and "light: true" in page.said
    rows = list(csv.DictReader((trained.folder / "predictions.csv").read_text().splitlines()))
    assert [*rows[0]] == ["path", "true_light", "predicted_light", "true_slope", "predicted_slope"]
    np.testing.assert_allclose([float(row["true_slope"]) for row in rows], split().val.targets.values[:, 1], rtol=1e-4)
    assert "val_r2" in (trained.folder / "metrics.jsonl").read_text()


def test_answers_are_in_the_units_of_the_table(trained, tmp_path):
    images, values = split().val.images, split().val.targets.values
    paths = [tmp_path / f"{row}.png" for row in range(4)]
    for row, path in enumerate(paths):
        Image.fromarray(images[row]).save(path)
    answers = list(vitrail.predict(trained.folder, paths, quiet=True))
    found = np.array([[answer.values[name] for name in NAMES] for answer in answers])
    assert (np.abs(found - values[:4]) < 0.5 * values.std(0)).all()
    table = vitrail.predict(trained.folder, paths, out=tmp_path / "table.csv", quiet=True).read_text().splitlines()
    assert table[0] == "path,light,slope,error"
    np.testing.assert_allclose([float(cell) for cell in table[1].split(",")[1:3]], found[0], rtol=1e-5)
    assert Values({"x": 1 / 3}).row() == {"x": 0.333333} and "light" in answers[0]._repr_html_()


def test_the_server_gives_numbers_by_their_names_and_an_array(trained, start):
    file, model = BytesIO(), trained.load()
    Image.fromarray(split().val.images[0]).save(file, "PNG")
    expected = model.predict(file.getvalue())[0].values
    with start(lambda: LoadedModel(trained.load(), "ramps")) as client:
        reply = client.post("/v1/predict", files={"image": ("a.png", file.getvalue())}).json()
        assert reply["predictions"][0]["values"] == pytest.approx(expected, rel=1e-4)
        assert [output["name"] for output in client.get("/v2/models/ramps").json()["outputs"]] == ["values"]
        assert "values" in client.get("/openapi.json").json()["components"]["schemas"]["Answer"]["properties"]


@pytest.mark.parametrize("channels", [1, 5])
def test_other_channels_and_smooth_l1_in_bf16(channels, tmp_path):
    changes = {"steps": 3, "precision": "bf16", "loss": "smooth-l1", "settings": ("compute.compile=false",)}
    run = train(tmp_path / "run", split(channels, count=64), **changes)
    model, images = run.load(), split(channels).val.images[:5]
    assert model.config.in_channels == channels and model.training is False
    with torch.inference_mode():
        outputs = model(model.preprocess(images))
        with torch.autocast("cpu", torch.bfloat16):
            half = model(model.preprocess(images))
    assert outputs.dtype == half.dtype == torch.float32 and outputs.shape == (5, 2)
    named = [model.name_outputs(each) for each in (outputs, half)]
    # not of bf16's eight bits: the mean is 25 times the std
    assert 0 < model.difference(*named) < 0.05


def test_a_stopped_training_resumes_bit_for_bit(tmp_path):
    again = partial(train, data=split(count=64), steps=4, settings=("save.log_every=1",))
    whole = again(tmp_path / "whole")
    with stopped_after(2):
        again(tmp_path / "parts")
    parts = again(tmp_path / "parts")
    assert parts.figures == whole.figures
    assert (parts.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


def test_a_model_is_saved_with_its_scale_and_another_scale_keeps_the_head(trained, tmp_path):
    model = trained.load()
    images = model.preprocess(split().val.images[:3])
    for name in ("copy", "copy.safetensors"):
        assert torch.equal(vitrail.load(vitrail.save(model, tmp_path / name))(images), model(images))
    data = split(count=64)
    data.train.targets.values[:] *= 2
    run = train(tmp_path / "run", data, model=None, init=trained.folder, steps=1, lr=1e-12)
    assert run.load().std == pytest.approx(data.train.targets.values.astype(float).std(0))
    assert torch.allclose(run.load().backbone.state_dict()["head.weight"], model.backbone.state_dict()["head.weight"])
    config = tmp_path / "copy" / "config.json"
    content = json.loads(config.read_text())
    for wrong in ([0.0, 1.0], [1.0], None, [1.0, "tall"]):
        config.write_text(json.dumps({**{k: v for k, v in content.items() if k != "checksum"}, "std": wrong}))
        with pytest.raises(CheckpointError):
            vitrail.load(tmp_path / "copy")


@pytest.mark.slow
def test_an_exported_graph_gives_the_numbers_in_their_units(trained, tmp_path):
    pytest.importorskip("onnxruntime")
    exported = vitrail.export(trained.folder, tmp_path / "a.onnx", check=split(), images=32, quiet=True)
    assert exported.figures["metric"] == "r2" and exported.figures["agreement"] == 1
    graph, model = vitrail.load(tmp_path / "a.onnx"), trained.load()
    images = model.preprocess(split().val.images[:5])
    assert model.difference(*(model.name_outputs(each(images).detach()) for each in (model, graph))) < 1e-4
    assert vitrail.evaluate(graph, split(), quiet=True).figures == pytest.approx(trained.figures, rel=1e-4)


def test_losses_are_those_of_standardised_numbers():
    backbone = create_backbone("vit-ti16", classes=2, image_size=16, patch_size=8, width=32, depth=1, heads=2)
    model = Regressor(backbone, NAMES, Preprocessing.paper(16), mean=(5, 0), std=(10, 0.1))
    outputs, targets = torch.tensor([[5.0, 0.0], [25.0, 0.1]]), torch.tensor([[15.0, 0.0], [5.0, 0.05]])
    # the errors are 1, 0, 2 and 0.5 std
    assert model.loss(outputs, targets).item() == pytest.approx((1 + 4 + 0.25) / 4)
    assert model.loss(outputs, targets, loss="smooth-l1").item() == pytest.approx((0.5 + 1.5 + 0.125) / 4)
    for given in ({"loss": "softmax", "binarise": False}, {"loss": None, "binarise": True}):
        with pytest.raises(ConfigError):
            model.loss_options(given.pop("loss"), **given)
    near = {"values": targets}
    assert model.agreement({"values": targets + torch.tensor([[0.09, 0], [0, 0.0011]])}, near) == 0.5
    assert model.difference({"values": targets + torch.tensor([[5.0, 0], [0, 0.01]])}, near) == pytest.approx(0.5)


def test_every_recipe_shows_whole_pictures_unmixed_unless_settings_say_otherwise():
    for recipe in (None, "finetune", "deit", "plain-vit"):
        flags = {"task": "regress", "data": {"source": "x.csv"}}
        run, _ = compose_run(recipe=recipe, flags=flags)
        policy = run.augment
        assert (policy.crop, policy.crop_area, policy.mixes, policy.smoothing) == ("squash", (1.0, 1.0), False, 0)
        assert run.task == "regression" and run.objective.loss is None
    assert compose_run(flags=flags, settings=("augment.crop=inception",))[0].augment.crop == "inception"
    assert compose_run(recipe="deit", flags={**flags, "task": "classify"})[0].augment.mixes
    Regressor.targets.check_policy(policy, "regression")
    for change in ({"mixup": 0.2}, {"cutmix": 1.0}, {"smoothing": 0.1}):
        with pytest.raises(ConfigError, match="no meaning for the task regression"):
            Regressor.targets.check_policy(Augment(**change), "regression")


def test_data_that_it_cannot_learn_from_are_refused(tmp_path):
    data = split(count=16)
    data.train.targets.values[:, 1] = 3
    with pytest.raises(DataError, match="slope is 3 for every training image"):
        train(tmp_path / "run", data, steps=1)
    with pytest.raises(DataError, match="learns from numbers, and the data have classes of images"):
        vitrail.train("digits", out=tmp_path / "run", task="regress", steps=1, settings=TINY, quiet=True)
    data.train.targets.values[:, 1] = np.nan
    with pytest.raises(DataError, match="the data have no numbers of slope"):
        train(tmp_path / "run", data, steps=1)
    backbone = create_backbone("vit-ti16", classes=1, image_size=16, patch_size=8, width=32, depth=1, heads=2)
    with pytest.raises(ConfigError, match="a number is called 'error'"):
        Regressor(backbone, ("error",), Preprocessing.paper(16))


def test_the_commands_read_the_columns_of_a_table(tmp_path, monkeypatch, capfd):
    source = split(count=40).train
    for row, image in enumerate(source.images):
        Image.fromarray(image).save(tmp_path / f"{row}.png")
    lines = [f"{row}.png,{light},{slope}\n" for row, (light, slope) in enumerate(source.targets.values.tolist())]
    (tmp_path / "numbers.csv").write_text("path,light,slope\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    named = ("--task", "regress", "--columns", "label=slope+light")
    assert run(["data", "check", "numbers.csv", *named]) == 0
    settings = [word for setting in TINY for word in ("--set", setting)]
    how = ("--steps", "2", "--size", "16x24", "--model", "vit-ti16", "--out", "run", "--quiet", *settings)
    assert run(["train", "numbers.csv", *named, *how]) == 0
    assert vitrail.load("run").classes == ("slope", "light")
    capfd.readouterr()
    assert run(["evaluate", "run", "numbers.csv", "--quiet", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures["split"] == "val" and figures["images"] == 5 and "slope_mae_high" in figures
