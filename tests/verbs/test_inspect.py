"""`vitrail inspect`: one page, the numbers behind it, and what is said where something cannot be measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.analysis.planted import CONFIG, plant_outliers
from tests.data.sources.layouts import write_masks, write_voc
from tests.looked_at import NAMES, QUIET, picture, shaken
from tests.models.tiny import QUICK, TINY
from tests.slow import slow_except
from tests.tasks.dense_models import create, create_queries
from vitrail.analysis.head_statistics import HeadStatistics
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.models.config import changed
from vitrail.runtime.process import use_threads
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.verbs.inspect import inspect
from vitrail.verbs.inspect import measurements as verb
from vitrail.verbs.inspect.measurements import inspect_model
from vitrail.weights.native import save_model


def silent(line: str) -> None: ...


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        for count in range(5):
            picture(60 + count, 70, seed=count).save(folder / name / f"{count}.png")
    (folder / "bee" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


def test_the_numbers_are_those_of_the_images(photos, tmp_path):
    model = shaken()
    report, numbers = inspect_model(model, tmp_path / "out", str(photos), options=QUIET, log=silent)
    assert report == tmp_path / "out" / "report.html"
    assert json.loads((tmp_path / "out" / "numbers.json").read_text()) == numbers
    assert numbers["images"] == 10
    statistics = HeadStatistics(model)
    statistics.add(torch.cat([model.preprocess(each.read_bytes()) for each in sorted(photos.glob("*/*.png"))]))
    for found, truth in zip(numbers["attention_distance_px"], statistics.figures(), strict=True):
        np.testing.assert_allclose(found, truth.distance, rtol=1e-4)
    assert np.shape(numbers["attention_entropy"]) == (3, 2)
    assert np.shape(numbers["position_similarity"]) == (4, 4, 4, 4)
    assert len(numbers["samples"]) == 5  # of the six that are shown one is broken
    assert np.shape(numbers["samples"][0]["rollout"]) == (4, 4)
    assert set(numbers["shift_response"]) == {"1", "2", "4", "8"}
    assert "broken.jpg" in (tmp_path / "out" / "bad_images.csv").read_text()
    assert "<b>gnu</b>" not in report.read_text()


@pytest.mark.parametrize("name", slow_except(QUICK, {"vit"}))
def test_every_architecture_can_be_inspected(name, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 48, 40, 3), dtype=np.uint8)
    _, numbers = inspect_model(shaken(TINY[name]), tmp_path / "out", images, options=QUIET, log=silent)
    layers = len(shaken(TINY[name]).attention_grids(TINY[name].image_size))
    assert len(numbers.get("attention_distance_px", [])) == layers
    assert len(numbers["locality_px"]) == len(numbers["patch_norms"])
    assert numbers["components_images"] == 4 and 0 < sum(numbers["components_explained"]) <= 1
    assert all(each["median"] > 0 for each in numbers["patch_norms"])
    assert (tmp_path / "out" / "report.html").exists()


def test_a_page_with_a_test_time_register_says_so(tmp_path):
    model, images = create_classifier(CONFIG, classes=NAMES).eval(), np.zeros((12, 64, 64, 3), np.uint8)
    images[:, :8, :8] = np.random.default_rng(0).integers(0, 256, (8, 8, 3))
    plant_outliers(model.backbone, model.preprocess(list(images)))
    for registers in (0, 1):
        out = tmp_path / str(registers)
        report, numbers = inspect(model, data=images, registers=registers, out=out, quiet=True, log=silent)
        artefacts = numbers["findings"]["A few patches have outlier norms (artefacts)"]
        assert (artefacts, "register" in numbers, "Test-time register" in report.read_text()) == (
            not registers,
            bool(registers),
            bool(registers),
        )
    assert [(neuron["block"], neuron["index"]) for neuron in numbers["register"]["neurons"]] == [(1, 5)]
    assert numbers["register"]["norms_before"][1]["largest"] > 100 * numbers["patch_norms"][1]["largest"]
    assert 0 <= numbers["register"]["same_answers"] <= 1
    assert np.shape(numbers["samples"][0]["rollout"]) == (8, 8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"registers": 2}, "one model and images"),
        ({"registers": 2, "data": "photos", "against": "other"}, "one model and images"),
        ({"registers": -1, "data": "photos"}, "registers is -1"),
    ],
    ids=["no images", "two models", "negative"],
)
def test_registers_without_what_they_need_are_refused(given, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        inspect(shaken(), out=tmp_path / "out", **given)


def test_rotary_positions_are_shown_by_offset(photos, tmp_path):
    model = shaken(TINY["vit, dinov3"])
    report, numbers = inspect_model(model, tmp_path / "out", str(photos), options=QUIET, log=silent)
    rows, columns = model.config.grid
    layers = (model.config.depth, model.config.heads, 2 * rows - 1, 2 * columns - 1)
    assert np.shape(numbers["attention_by_offset"]) == np.shape(numbers["rope_kernel_by_offset"]) == layers
    assert numbers["rope"] == "dinov3" and min(numbers["rope_wavelengths_patches"]) == pytest.approx(
        min(rows, columns) / 2
    )
    assert numbers["permuted_without_rotation"]["moved"] < 1e-6
    assert None not in list(numbers["findings"].values())[2:]  # those about positions
    page = report.read_text()
    assert "Rotary positions" in page and "Content-free kernel by offset" in page
    assert "No position embeddings are added" not in page
    images = torch.cat([model.preprocess(each.read_bytes()) for each in sorted(photos.glob("*/*.png"))])
    _, matrices = model.forward_with_attention(images)
    itself = [
        weights[:, :, model.backbone.leading :, model.backbone.leading :].diagonal(dim1=2, dim2=3).mean((0, 2))
        for weights in matrices
    ]
    found = np.array(numbers["attention_by_offset"])[:, :, rows - 1, columns - 1]
    np.testing.assert_allclose(found, torch.stack(itself).detach(), atol=1e-5)


def test_without_images_a_rotary_model_says_what_is_missing(tmp_path):
    report, numbers = inspect_model(shaken(TINY["vit, dinov3"]), tmp_path / "out", options=QUIET, log=silent)
    assert "measured on images" in report.read_text()
    assert "rope" not in numbers and set(numbers["findings"].values()) == {None}


@pytest.mark.slow
def test_other_channels_and_no_head(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 1), dtype=np.uint8)
    model = shaken(changed(TINY["vit"], in_channels=1))
    assert inspect_model(model, tmp_path / "grey", images, options=QUIET, log=silent)[1]["images"] == 3
    np.save(tmp_path / "five.npy", np.random.default_rng(0).integers(0, 256, (3, 32, 32, 5), dtype=np.uint8))
    model = shaken(changed(TINY["vit"], in_channels=5))
    assert (
        inspect_model(model, tmp_path / "five", str(tmp_path / "five.npy"), options=QUIET, log=silent)[1]["images"] == 3
    )


def test_without_images_there_are_filters_and_positions_and_a_note(tmp_path):
    report, numbers = inspect_model(shaken(), tmp_path / "out", options=QUIET, log=silent)
    assert "attention_distance_px" not in numbers
    assert 0 <= numbers["position_neighbour_rate"] <= 1
    assert "No images were given" in report.read_text()


def test_as_many_images_as_asked_for_spread_evenly(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), dtype=np.uint8)
    assert inspect_model(shaken(), tmp_path / "out", images, most=4, options=QUIET, log=silent)[1]["images"] == 4


def test_a_model_without_attention_counts_its_images_too(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    assert inspect_model(shaken(TINY["bit"]), tmp_path / "out", images, options=QUIET, log=silent)[1]["images"] == 3


def test_no_image_at_all_cannot_be_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="most is 0"):
        inspect(shaken(), out=tmp_path / "out", most=0, quiet=True, log=silent)


def test_cost_is_measured_on_one_thread(tmp_path, monkeypatch):
    threads = []

    def fails(*_) -> None:
        threads.append(torch.get_num_threads())
        raise MemoryError

    monkeypatch.setattr("vitrail.verbs.inspect.measurements.measure_cost", fails)
    with use_threads(2), pytest.raises(MemoryError):
        inspect_model(shaken(), tmp_path / "out", cost=True, options=QUIET, log=silent)
    assert threads == [1]


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_images_that_cannot_be_read_are_the_end(name, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    with pytest.raises(DataError, match="none of the images could be read"):
        inspect_model(shaken(TINY[name]), tmp_path / "out", str(tmp_path / "photos"), options=QUIET, log=silent)


@pytest.mark.parametrize(
    "write", [write_voc, partial(write_masks, values={0: 0, 1: 1, 2: 255})], ids=["boxes", "masks"]
)
@pytest.mark.parametrize("task", ["classification", "detection"])
def test_images_of_annotated_data_are_looked_at_without_their_annotation(write, task, tmp_path):
    model = shaken() if task == "classification" else create(task)
    inspect_model(model, tmp_path / "out", write(tmp_path / "data"), options=QUIET, log=silent)
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("task", ["segmentation", "detection"])
def test_a_dense_model_looks_at_images_that_have_classes(task, photos, tmp_path):
    _, numbers = inspect_model(create(task), tmp_path / "out", str(photos), options=QUIET, log=silent)
    assert numbers["images"] == 10


@pytest.mark.parametrize(
    ("make", "title", "other"),
    [
        (create_queries, "Attention of queries", "Prototypes of masks"),
        (create, "Prototypes of masks", "Attention of queries"),
    ],
)
def test_the_page_shows_what_masks_are_made_of(make, title, other, photos, tmp_path):
    report, numbers = inspect_model(make("instances"), tmp_path / "out", str(photos), options=QUIET, log=silent)
    page = report.read_text()
    assert title in page and other not in page
    assert len(list((tmp_path / "out").glob("query-*.png"))) == len(numbers.get("samples", ()))


@pytest.mark.slow
def test_the_command_prints_the_findings_and_the_path_of_the_page(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_model("a", shaken())
    (photos / "bee" / "broken.jpg").unlink()
    assert run(["inspect", "a", "--data", "photos", "--out", "out", "--quiet", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["report"], said["images"]) == ("out/report.html", 10)
    assert run(["inspect", "a", "--out", "out", "--quiet"]) == 0
    *claims, path = capsys.readouterr().out.splitlines()
    assert len(claims) == 4 and path == "out/report.html"
    assert run(["inspect", "a", "--data", "fotos", "--out", "out", "--quiet"]) == 3
    assert "photos" in capsys.readouterr().err
    pictures = sorted(Path("out").glob("*.png"))
    assert {"filters.png", "positions.png"} <= {each.name for each in pictures}
    for each in pictures:
        with Image.open(each) as picture:
            picture.load()


@pytest.mark.slow
def test_cost_is_measured_where_it_is_asked_for(tmp_path):
    _, numbers = inspect_model(shaken(), tmp_path / "out", cost=True, options=QUIET, log=silent)
    assert [each["size"] for each in numbers["cost"]] == [[32, 32], [48, 48], [64, 64], [96, 96]]
    assert [each["patch_size"] for each in numbers["cost_by_patch"]] == [[4, 4], [8, 8], [16, 16]]
    assert [each["tokens"] for each in numbers["cost_by_patch"]] == [65, 17, 5]
    assert json.loads((tmp_path / "out" / "numbers.json").read_text()) == numbers
    assert "cost_by_patch" not in inspect_model(shaken(), tmp_path / "without", options=QUIET, log=silent)[1]
    assert (
        inspect_model(shaken(TINY["swin"]), tmp_path / "swin", cost=True, options=QUIET, log=silent)[1]["cost_by_patch"]
        == []
    )


def test_the_maps_of_samples_that_were_filled_up_are_larger_than_the_picture(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(verb, "write_inspection", lambda out, found: seen.append(found) or out)
    images = np.random.default_rng(0).integers(0, 256, (2, 34, 27, 3), dtype=np.uint8)
    inspect_model(shaken(TINY["swin, odd map"]), tmp_path / "out", images, options=QUIET, log=silent)
    sample = seen[0].samples[0]
    # places of 16 pixels in the last map, of 4 in the first
    assert sample.reach_of("attention") == (48 / 34, 32 / 27)
    assert sample.reach_of("rollout") == sample.reach_of("gradient") == (36 / 34, 28 / 27)
