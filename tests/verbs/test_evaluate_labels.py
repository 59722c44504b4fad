"""Data whose labels are not those of the training: several acceptable answers, one in place of several, other classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from tests.weights.kinds import a_model
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.models import create_backbone
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert
from vitrail.weights import adapt, load
from vitrail.weights.native import save_model

CLASSES = ("ant", "bee", "cat", "dog")
QUIET = {"quiet": True, "tune": False}


@pytest.fixture
def model() -> Classifier:
    return a_model(classes=CLASSES).eval()


@pytest.fixture
def best(model: Classifier, tmp_path: Path) -> list[str]:
    """What the model says of the six images 0.png to 5.png in ``tmp_path``."""
    draw = np.random.default_rng(0)
    for number in range(6):
        pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    with torch.no_grad():  # without their mean, the logits favour no class
        model.backbone.head.bias.sub_(model(model.preprocess(paths)).mean(0))
    labels = [answer.label for answer in model.predict(paths)]
    assert {"cat", "dog"} & set(labels) and len(set(labels)) > 2
    return labels


def manifest(folder: Path, labels: list[str]) -> Path:
    path = folder / "labels.csv"
    path.write_text("path,label\n" + "".join(f"{number}.png,{label}\n" for number, label in enumerate(labels)))
    return path


def others(name: str) -> str:
    """All classes but one."""
    return ";".join(other for other in CLASSES if other != name)


def figures(model: object, data: object, **options: object) -> dict[str, float]:
    return vitrail.evaluate(model, data, log=lambda line: None, **QUIET, **options).figures


def test_real_accuracy_counts_any_acceptable_answer_and_leaves_out_images_without_one(model, best, tmp_path):
    labels = [best[0], f"{others(best[1])};{best[1]}", others(best[2]), others(best[3]), f" {best[4]} ; {best[4]}", ""]
    found = figures(model, manifest(tmp_path, labels))
    assert found["real_top1"] == pytest.approx(3 / 5)  # images 0, 1 and 4 of 0 to 4
    assert (found["images"], found["without_label"]) == (5, 1)
    assert found["real_top1_low"] < 3 / 5 < found["real_top1_high"]


def test_the_command_prints_real_accuracy(model, best, tmp_path, capsys):
    saved = save_model(tmp_path / "model", model)
    data = manifest(tmp_path, [f"{name};{others(name)}" for name in best[:5]] + [others(best[5])])
    assert run(["evaluate", str(saved), str(data), "--quiet", "--per-class"]) == 0
    assert "real_top1       0.8333" in capsys.readouterr().out


def test_a_model_of_several_labels_is_evaluated_on_images_with_one(best, tmp_path):
    labels = ["ant", "bee", "cat", "dog", "ant", "bee"]
    several = a_model(classes=CLASSES, multi_label=True).eval()
    found = figures(several, manifest(tmp_path, labels))
    assert found == pytest.approx(figures(several, manifest(tmp_path, [f"{labels[0]};", *labels[1:]])), nan_ok=True)
    assert "map" in found


def test_a_temperature_is_not_fitted_to_other_labels(model, best, tmp_path):
    with pytest.raises(ConfigError, match="the images have several labels each, unlike those"):
        figures(model, manifest(tmp_path, ["ant;bee"] * 6), calibrate=True)
    with pytest.raises(ConfigError, match="the images have one label each, unlike those"):
        figures(a_model(classes=CLASSES, multi_label=True), manifest(tmp_path, ["ant"] * 6), calibrate=True)


def test_images_without_any_acceptable_answer_give_no_figure(model, best, tmp_path):
    with pytest.raises(DataError, match="no image could be evaluated"):
        figures(model, manifest(tmp_path, [";"] * 6))


def test_a_class_map_lays_the_classes_of_the_data_on_those_of_the_model(model, best, tmp_path):
    data = manifest(tmp_path, [f"their {name}" for name in best[:4]] + ["their wall", f"not {best[5]}"])
    lines = [f"their {name},{name}" for name in CLASSES] + [f"not {name},{others(name)}" for name in CLASSES]
    (tmp_path / "one.csv").write_text("\n".join(lines[:4]) + "\n")
    said: list[str] = []
    one = vitrail.evaluate(model, data, class_map=tmp_path / "one.csv", log=said.append, **QUIET).figures
    assert (one["top1"], one["images"]) == (1, 4)  # the wall is in no line, and "not ..." neither
    assert said[-1] == "classes  4 of 6 images have a class of one.csv; the others are left out"
    (tmp_path / "several.csv").write_text("\n".join(lines))
    several = figures(model, data, class_map=tmp_path / "several.csv")
    assert (several["real_top1"], several["images"]) == (pytest.approx(4 / 5), 5)


def test_a_class_map_that_does_not_fit_is_refused_with_a_clear_message(model, best, tmp_path):
    data = manifest(tmp_path, ["their ant"] * 6)
    for text, words in {
        "their ant,aunt": "the class map names 'aunt', no class of the model\n  hint: did you mean 'ant'",
        "their ant,ant,bee": "row 1 has 3 fields",
        "ant,ant": "no image has a class that the class map lists\n  hint: name classes of the data .* their ant",
    }.items():
        (tmp_path / "map.csv").write_text(text)
        with pytest.raises((ConfigError, DataError), match=words):
            figures(model, data, class_map=tmp_path / "map.csv")


def test_predictions_are_restricted_to_the_classes_of_the_labels(model, best, tmp_path):
    logits = model(model.preprocess([tmp_path / f"{number}.png" for number in range(6)])).detach()
    better = ["ant" if row[0] > row[1] else "bee" for row in logits]  # of these two
    labels = [*better[:5], "ant" if better[5] == "bee" else "bee"]
    found = figures(model, manifest(tmp_path, labels), restrict=True)
    assert found["top1"] == pytest.approx(5 / 6)
    assert found["top1"] > figures(model, manifest(tmp_path, labels))["top1"]
    expected = -logits[:, :2].log_softmax(1)[range(6), [CLASSES.index(label) for label in labels]].mean()
    assert found["nll"] == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ConfigError, match="among all classes"):
        figures(model, manifest(tmp_path, labels), restrict=True, calibrate=True)


def test_logits_are_adjusted_by_the_shares_of_the_classes_in_the_training(model, best, tmp_path):
    model.provenance["class_images"], model.temperature = [10, 20, 30, 40], 2.0
    logits = model(model.preprocess([tmp_path / f"{number}.png" for number in range(6)])).detach()
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4])
    adjusted = (logits / 2).softmax(1) / shares**1.5  # (6, 4)
    labels = [CLASSES[each] for each in adjusted.argmax(1).tolist()]
    assert labels != best
    data, out = manifest(tmp_path, labels), tmp_path / "out"
    found = vitrail.evaluate(model, data, logit_adjust=1.5, out=out, log=lambda line: None, **QUIET)
    assert found.figures["top1"] == 1 > figures(model, data)["top1"]
    expected = -(adjusted / adjusted.sum(1, keepdim=True)).log().amax(1).mean()
    assert found.figures["nll"] == pytest.approx(float(expected), rel=1e-5)
    assert figures(model, data, logit_adjust=0.0) == figures(model, data)
    assert [row["label"] for row in found.predictions] == labels
    assert "1.5 times the log of each class" in (out / "report.html").read_text()


def test_logits_are_not_adjusted_where_the_training_is_not_known_or_another_option_excludes_it(model, best, tmp_path):
    data = manifest(tmp_path, best)
    with pytest.raises(ConfigError, match="not known how many images of each class"):
        figures(model, data, logit_adjust=1.0)
    model.provenance["class_images"] = [10, 20, 30, 40]
    for tau in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"logit_adjust is {tau}"):
            figures(model, data, logit_adjust=tau)
    with pytest.raises(ConfigError, match="a temperature is fitted to logits that are not adjusted"):
        figures(model, data, logit_adjust=1.0, calibrate=True)
    save_model(tmp_path / "saved", model)
    assert run(["evaluate", str(tmp_path / "saved"), str(data), "--logit-adjust", "1", "--quiet"]) == 0
    model.multi_label = True
    with pytest.raises(ConfigError, match="for a model that chooses one class"):
        figures(model, data, logit_adjust=1.0)


def numbered(folder: Path, classes: int) -> Path:
    """Saves weights without class names, and three images of each class in folders of its number."""
    fields = {"image_size": 16, "patch_size": 8, "width": 192, "depth": 1, "heads": 3, "mlp_width": 16}
    backbone = create_backbone("vit-ti16", **fields, classes=classes)
    torch.nn.init.ones_(backbone.head.weight)
    save_file(backbone.state_dict(), folder / "bare.safetensors")
    for number in range(classes):
        (folder / "data" / str(number)).mkdir(parents=True)
        for copy in range(3):
            Image.new("RGB", (16, 16), (20 * number, 80 * copy, 0)).save(folder / "data" / str(number) / f"{copy}.png")
    return folder / "bare.safetensors"


def test_outputs_without_names_are_not_matched_with_folders_of_numbers_in_two_possible_orders(tmp_path):
    path, data = numbered(tmp_path, 12), tmp_path / "data"
    words = r"the order of numbers \(0, 1, 2, \.\.\.\), or of text \(0, 1, 10, 11, \.\.\.\), as with torchvision's ImageFolder"
    for source in (path, convert(path, tmp_path / "native", "native").path):
        with pytest.raises(ConfigError, match=words) as caught:
            figures(source, data)
        assert "--classes FILE" in caught.value.remedy
    names = tmp_path / "names.txt"
    for order in (sorted(map(str, range(12))), list(map(str, range(12)))):
        names.write_text("\n".join(order))
        assert figures(path, data, classes=names)["images"] == 36
    named = convert(path, tmp_path / "named", "native", classes=names).path
    assert figures(named, data)["images"] == 36


def test_outputs_without_names_are_matched_with_folders_of_numbers_in_one_order_and_with_labels(tmp_path):
    path, data = numbered(tmp_path, 10), tmp_path / "data"
    assert figures(path, data)["images"] == 30
    (tmp_path / "more").mkdir()
    path = numbered(tmp_path / "more", 12)
    rows = "".join(f"more/data/{number}/0.png,{number}\n" for number in range(12))
    (tmp_path / "labels.csv").write_text(f"path,label\n{rows}")
    assert figures(path, tmp_path / "labels.csv")["images"] == 12


def test_a_head_whose_order_of_classes_is_ambiguous_is_replaced(tmp_path):
    for count, kept in ((10, True), (12, False)):
        (tmp_path / str(count)).mkdir()
        start = load(numbered(tmp_path / str(count), count), log=lambda line: None)
        model = adapt(start, classes=list(map(str, range(count))))
        assert bool(model.backbone.head.weight.any()) == kept
        assert adapt(start, image_size=32).backbone.head.weight.any()
