"""`vitrail probe`: frozen features evaluated by every protocol, on data that come in every kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.looked_at import shaken
from tests.models.tiny import TINY
from vitrail.cli import run
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.intervals import bootstrap, bound_proportion, estimate_interval
from vitrail.evaluation.probes import linear
from vitrail.inference.features import Features
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.verbs.probe import probe
from vitrail.verbs.probe.protocols import ProbeProtocol, evaluate_features, keep_shared
from vitrail.weights import load
from vitrail.weights.native import save_model

PROTOCOLS = ("linear", "knn", "fewshot")
QUIET = {"quiet": True, "max_bad": 1, "tune": False, "cache": False}


def silent(line: str) -> None: ...


def tints(images: int, *, seed: int = 0, channels: int = 3, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Noise whose brightness tells the class, (n, 24, 40, C) uint8, and targets."""
    targets = np.arange(images) % classes
    noise = np.random.default_rng(seed).integers(0, 40, (images, 24, 40, channels))
    return (noise + 80 * targets[:, None, None, None]).astype(np.uint8), targets


def ask(model: Any, data: Any, protocol: str, **how: Any) -> Mapping[str, float]:
    return probe(model, data, protocol, **{"k": 5, "shots": (1, 5), "log": silent, **QUIET, **how}).figures


@pytest.mark.parametrize(("protocol", "channels"), [("knn", 1), ("linear", 3), ("fewshot", 1)])
def test_separable_classes_are_classified(protocol: str, channels: int) -> None:
    torch.manual_seed(0)
    model = create_classifier(TINY["vit"], classes=(), in_channels=channels)
    data = {"train": tints(60, channels=channels), "test": tints(45, seed=1, channels=channels)}
    found = probe(model, data, protocol, k=5, shots=(1, 10), log=silent, **QUIET)
    assert found.figures["accuracy"] > 0.95
    assert (found.figures["images"], found.figures["train_images"], found.split) == (45, 60, "test")
    assert found.right.shape == (5 if protocol == "fewshot" else 1, 45)


def test_an_unknown_protocol_by_position_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no protocol 'k-nn'"):
        probe(shaken(), tints(60), "k-nn")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shuffled_labels_are_chance(protocol: str) -> None:
    (images, targets), generator = tints(240), np.random.default_rng(0)
    assert 0.1 < ask(shaken(), (images, generator.permutation(targets)), protocol)["accuracy"] < 0.6


def test_data_without_splits_have_a_part_held_out_and_a_test_set_leaves_train_whole() -> None:
    (images, targets), test = tints(60), tints(9, seed=1)
    alone = probe(shaken(), (images, targets), "knn", k=5, log=silent, **QUIET)
    assert (alone.split, alone.figures["images"], alone.figures["train_images"]) == ("val", 9, 51)
    three = {"train": (images, targets), "val": tints(6, seed=2), "test": test}
    for data in ({"train": (images, targets), "test": test}, three):
        found = probe(shaken(), data, "knn", k=5, log=silent, **QUIET)
        assert (found.split, found.figures["images"], found.figures["train_images"]) == ("test", 9, 60)


def trained_on(place: Path, *, seed: int, validation: float) -> Classifier:
    """A model whose provenance says that it was trained on the images there, but for the part that this holds out."""
    splits, model = open_data(place, seed=seed, validation=validation), shaken()
    held = splits.val.keys.digest() if splits.val is not None else None
    split = {"held_out": splits.held_out, "seed": seed, "validation": validation, "sha256": held}
    model.provenance = {"data": str(place), "split": split}
    return model


def test_a_model_is_evaluated_on_what_was_held_out_when_it_was_trained_on_these_data(tmp_path: Path) -> None:
    for number, (picture, target) in enumerate(zip(*tints(60))):
        (tmp_path / str(target)).mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / str(target) / f"{number}.png")
    model, lines = trained_on(tmp_path, seed=3, validation=0.3), []
    found = probe(model, tmp_path, "knn", k=5, log=lines.append, **QUIET)
    held = open_data(tmp_path, seed=3, validation=0.3).val
    assert held is not None and sorted(found.keys) == sorted(held.keys) and len(held) == 18
    assert not any("warning" in line for line in lines)
    for seen in (trained_on(tmp_path, seed=3, validation=0), trained_on(tmp_path, seed=4, validation=0.3)):
        lines.clear()
        probe(model, tmp_path, "knn", k=5, against=seen, log=lines.append, **QUIET)
        assert sum("trained on some of the images" in line for line in lines) == 1
    model.provenance["split"]["sha256"] = (
        "another"  # the data of the training grew: divided as then, it may have seen some
    )
    lines.clear()
    assert probe(model, tmp_path, "knn", k=5, log=lines.append, **QUIET).keys == found.keys
    assert sum("trained on some of the images" in line for line in lines) == 1
    model.provenance["data"] = "others"
    other = open_data(tmp_path, seed=0, validation=0.15).val
    assert other is not None
    assert sorted(probe(model, tmp_path, "knn", k=5, log=silent, **QUIET).keys) == sorted(other.keys)


def test_the_interval_is_exact_over_images_and_wider_where_shots_are_drawn() -> None:
    (images, targets), generator = tints(240), np.random.default_rng(0)
    data = (images, np.where(generator.random(240) < 0.4, generator.permutation(targets), targets))
    found = probe(shaken(), data, "knn", k=5, log=silent, **QUIET)
    assert (found.figures["accuracy_low"], found.figures["accuracy_high"]) == estimate_interval(found.right[0])
    few = probe(shaken(), data, "fewshot", shots=(2,), log=silent, **QUIET)
    assert few.figures["accuracy"] == pytest.approx(few.right.mean())
    low, high = bootstrap(few.right.mean(0))
    assert few.figures["accuracy_low"] < low < few.figures["accuracy"] < high < few.figures["accuracy_high"]


def test_every_number_of_shots_has_its_figures_and_the_largest_is_the_accuracy() -> None:
    lines: list[str] = []
    found = probe(shaken(), tints(60), "fewshot", shots=(5, 1, 25), log=lines.append, **QUIET)
    assert found.figures["accuracy"] == found.figures["accuracy_5shot"]
    assert found.figures.keys() >= {"accuracy_1shot", "accuracy_1shot_low", "accuracy_1shot_high"}
    assert "accuracy_25shot" not in found.figures
    assert lines[0].startswith("data     ")
    assert any("25 left out: a class has only 17 to learn from" in line for line in lines)
    head, rows = found.table()
    assert (head[0], [row[0] for row in rows]) == ("shots", ["1", "5"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_against_itself_makes_no_difference(protocol: str) -> None:
    found = ask(shaken(), tints(60), protocol, against=shaken())
    assert found["against_accuracy"] == found["accuracy"]
    assert found["difference"] == 0
    _, most = bound_proportion(0, found["images"])  # the share of images on which two such models may differ
    assert (found["difference_low"], found["difference_high"]) == (-most, most)


@pytest.mark.parametrize("protocol", ["knn", "fewshot"])
def test_a_model_is_told_from_one_that_sees_nothing(protocol: str) -> None:
    blind = shaken()
    with torch.no_grad():
        dict(blind.named_parameters())["backbone.patch_embed.proj.weight"].zero_()
    found = probe(shaken(), tints(150), protocol, k=5, shots=(5,), against=blind, log=silent, **QUIET)
    assert 0.3 < found.figures["difference_low"] < found.figures["difference"]
    head, rows = found.table()
    assert len(head) == len(rows[0]) == 8


def test_each_of_two_models_reads_images_its_own_way(tmp_path: Path) -> None:
    other = create_classifier(replace(TINY["vit"], image_size=(48, 16)), classes=("a", "b"))
    other.preprocessing = other.preprocessing.override(mean=[0.1], std=[0.9], resize=60)
    save_model(tmp_path / "other", other)
    alone = ask(tmp_path / "other", tints(60), "knn")["accuracy"]
    assert ask(shaken(), tints(60), "knn", against=tmp_path / "other")["against_accuracy"] == alone


def test_two_models_are_compared_on_the_images_that_both_could_read(tmp_path: Path) -> None:
    for name, shade in (("dark", 20), ("light", 200)):
        (tmp_path / "grey" / name).mkdir(parents=True)
        for count in range(12):
            Image.new("L", (40, 40), shade + count).save(tmp_path / "grey" / name / f"{count}.png")
    (tmp_path / "grey" / "dark" / "3.png").write_bytes(b"no picture")
    found = ask(shaken(), tmp_path / "grey", "knn", against=shaken(TINY["swin"]), max_bad=0.5)
    assert found["accuracy"] == found["against_accuracy"] == 1
    assert found["images"] + found["train_images"] == 23


def test_images_that_one_model_could_not_read_count_for_neither() -> None:
    source = open_data(tints(12), validation=0).train
    assert source is not None
    values = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    whole = Features(source, np.arange(12), values)
    holed = Features(source, np.delete(np.arange(12), 4), np.delete(values, 4, axis=0))
    first, second = keep_shared([whole, holed])
    np.testing.assert_array_equal(first.values, second.values)
    assert first.keys == second.keys
    found = evaluate_features(ProbeProtocol(protocol="knn", k=1), "val", [first, second], [first, second], log=silent)
    assert found.figures["accuracy"] == 1


def test_a_model_without_a_head_is_loaded_and_probed_as_one_with_it(tmp_path: Path) -> None:
    bare = create_classifier(replace(TINY["vit"], classes=0), classes=())
    save_model(tmp_path / "bare", bare)
    assert load(tmp_path / "bare", log=silent).classes == ()
    assert ask(tmp_path / "bare", tints(60), "linear") == ask(bare, tints(60), "linear")


def test_a_model_of_other_channels_is_fitted_to_images_in_memory() -> None:
    lines: list[str] = []
    found = probe(shaken(), tints(60, channels=1), "knn", k=5, log=lines.append, **QUIET)
    assert found.figures["images"] == 9
    assert any("channels 1 in the data, 3 in the weights" in line for line in lines)


def test_the_linear_probe_reports_its_regularisation(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    probe(shaken(), tints(60), "linear", log=lines.append, **QUIET)
    assert any("L2 penalty" in line for line in lines)
    monkeypatch.setattr("vitrail.verbs.probe.protocols.linear", partial(linear, strengths=(1e-3,)))
    monkeypatch.setattr("vitrail.evaluation.probes.ITERATIONS", 1)
    probe(shaken(), tints(60), "linear", log=lines.append, **QUIET)
    assert any("is the edge" in line for line in lines)
    assert any("stopped before the minimum" in line for line in lines)


def test_invalid_options_are_refused_before_the_model_runs() -> None:
    model = shaken()
    model.backbone.features = None  # type: ignore[method-assign]
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"protocol": "k-nn"}, "did you mean 'knn'"),
        ({"protocol": "knn", "k": 0}, "1 neighbour"),
        ({"protocol": "knn", "k": 52}, "from 1 to 51"),
        ({"protocol": "fewshot", "shots": ()}, "1,5,10,25"),
        ({"protocol": "fewshot", "shots": (0, 5)}, "1,5,10,25"),
        ({"protocol": "fewshot", "seeds": 0}, "once or more"),
    ]
    for wrong, words in mistakes:
        with pytest.raises(ConfigError, match=words):
            probe(model, tints(60), log=silent, **QUIET, **wrong)


def test_data_that_cannot_be_probed_are_refused() -> None:
    images, targets = tints(60)
    with pytest.raises(DataError, match="give shots up to 17"):
        ask(shaken(), (images, targets), "fewshot", shots=(18, 25))
    with pytest.raises(DataError, match="several labels"):
        ask(shaken(), (images, np.eye(3)[targets]), "knn")
    with pytest.raises(DataError, match="no labels"):
        ask(shaken(), images, "knn")
    with pytest.raises(DataError, match="1 class"):
        ask(shaken(), (images, 0 * targets), "knn")
    with pytest.raises(DataError, match="no split to evaluate on"):
        ask(shaken(), (images[:3], targets[:3]), "knn", k=1)


def test_the_command_prints_a_table_and_one_line_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "kept"))
    save_model(tmp_path / "model", shaken())
    images, targets = tints(60)
    np.savez(tmp_path / "tints.npz", images=images, labels=targets)
    command = ["probe", str(tmp_path / "model"), str(tmp_path / "tints.npz"), "--protocol", "fewshot", "--shots", "1,5"]
    assert run([*command, "--against", str(tmp_path / "model"), "--no-cache", "--quiet", "--json"]) == 0
    assert not (tmp_path / "kept").exists()
    said = capsys.readouterr()
    table = [line for line in said.err.splitlines() if line.split()[0] in ("shots", "1", "5")]
    told = json.loads(said.out)
    assert told["protocol"] == "fewshot"
    assert told.keys() >= {"split", "accuracy", "accuracy_low", "accuracy_high", "accuracy_5shot", "difference"}
    assert len(table) == 3
    assert run([*command, "--quiet"]) == 0
    assert len(list((tmp_path / "kept").glob("*/*"))) == 2


@pytest.mark.slow
def test_a_real_model_has_the_accuracies_that_its_features_are_known_for(real_data: Path, tmp_path: Path) -> None:
    how = {**QUIET, "cache": tmp_path, "log": silent}
    model, photos = real_data / "vit_tiny_patch16_224.safetensors", real_data / "hymenoptera"
    nearest = probe(model, photos, "knn", k=5, **how)
    assert abs(int(nearest.right.sum()) - 148) <= 1
    assert nearest.figures["images"] == 153
    assert int(probe(model, photos, "linear", **how).right.sum()) >= 145
