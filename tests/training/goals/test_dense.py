"""Segmenters and detectors are trained from files, judged at the size of the pictures, stopped and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data.sources.open import find_data, open_data
from vitrail.errors import ConfigError, DataError, Preempted
from vitrail.tasks import Detector, Segmenter
from vitrail.training import loop
from vitrail.training.network import choose_size, size_and_channels

COLOURS = {"red": (220, 40, 40), "blue": (40, 40, 220)}
SMALL = (
    "model.changes={width: 32, depth: 2, heads: 2, mlp_width: 64, patch_size: [8, 8], drop_path: 0}",
    "data.batch=8",
)
QUICK = {"quiet": True, "workers": 0, "lr": 3e-3}


def draw_scenes(root: Path, counts: dict[str, int], size: tuple[int, int] = (48, 64)) -> Path:
    """Pictures of a red and a blue rectangle on grey noise, with VOC's boxes and with masks."""
    generator = np.random.default_rng(0)
    height, width = size
    for split, count in counts.items():
        for folder in (
            root / "boxes" / "Annotations",
            root / "boxes" / "JPEGImages",
            root / "boxes" / "ImageSets" / "Main",
        ):
            folder.mkdir(parents=True, exist_ok=True)
        for kind in ("images", "masks"):
            (root / "maps" / kind / split).mkdir(parents=True)
        names = [f"{split}{number}" for number in range(count)]
        (root / "boxes" / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names))
        for name in names:
            picture = generator.integers(90, 130, (height, width, 3)).astype(np.uint8)
            classes, objects = np.zeros((height, width), np.uint8), ""
            for number, (label, colour) in enumerate(COLOURS.items()):
                wide, tall = generator.integers(14, 25, 2).tolist()
                left = number * width // 2 + int(generator.integers(0, width // 2 - wide))
                top = int(generator.integers(0, height - tall))
                picture[top : top + tall, left : left + wide] = colour
                classes[top : top + tall, left : left + wide] = number + 1
                corners = zip(("xmin", "ymin", "xmax", "ymax"), (left + 1, top + 1, left + wide, top + tall))
                box = "".join(f"<{key}>{value}</{key}>" for key, value in corners)
                objects += f"<object><name>{label}</name><bndbox>{box}</bndbox></object>"
            Image.fromarray(picture).save(root / "boxes" / "JPEGImages" / f"{name}.png")
            Image.fromarray(picture).save(root / "maps" / "images" / split / f"{name}.png")
            Image.fromarray(classes).save(root / "maps" / "masks" / split / f"{name}.png")
            head = f"<size><width>{width}</width><height>{height}</height></size>"
            path = root / "boxes" / "Annotations" / f"{name}.xml"
            path.write_text(f"<annotation>{head}{objects}</annotation>")
    (root / "maps" / "classes.txt").write_text("ground\nred\nblue\n")
    return root


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    return draw_scenes(tmp_path_factory.mktemp("scenes"), {"train": 40, "val": 10})


@pytest.fixture(scope="module")
def segmented(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "maps"
    return vitrail.train(scenes / "maps", out=out, steps=4, settings=SMALL, **QUICK)


@pytest.fixture(scope="module")
def detected(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "boxes"
    return vitrail.train(scenes / "boxes", out=out, steps=4, settings=SMALL, **QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "steps", "figure", "least"), [("maps", 25, "miou", 0.5), ("boxes", 60, "ap50", 0.2)])
def test_what_is_trained_learns(kind, steps, figure, least, scenes, tmp_path):
    run = vitrail.train(scenes / kind, out=tmp_path / "run", steps=steps, settings=SMALL, **QUICK)
    assert run.figures[figure] > least


def test_the_task_follows_the_annotation_of_the_data(scenes, segmented, detected):
    assert find_data(scenes / "maps").task == "segmentation" and find_data(scenes / "boxes").task == "detection"
    assert find_data(open_data(scenes / "boxes")).task == "detection" and find_data("digits").task is None
    assert "recipe: segment" in (segmented.folder / "config.yaml").read_text()
    assert "task: detection" in (detected.folder / "config.yaml").read_text()
    assert isinstance(segmented.load(), Segmenter) and isinstance(detected.load(), Detector)


def test_a_segmenter_is_judged_on_whole_pictures(scenes, segmented):
    model = segmented.load()
    assert (model.preprocessing.size, model.preprocessing.resize) == ((48, 64), "fit")
    weights = dict(zip(model.classes, model.class_weights))
    assert weights["ground"] < 1 < weights["red"]
    judged = vitrail.evaluate(segmented.folder, scenes / "maps", quiet=True)
    assert judged.figures["miou"] == pytest.approx(segmented.figures["miou"], abs=1e-6)
    report = (segmented.folder / "report.html").read_text()
    assert "Per-class metrics" in report and re.search(r'<th scope="row"[^>]*>ground</th>', report)
    records = [json.loads(line) for line in (segmented.folder / "metrics.jsonl").read_text().splitlines()]
    assert any("val_miou" in record for record in records)


def test_a_detector_is_judged_and_its_boxes_lie_in_the_pictures(scenes, detected):
    model = detected.load()
    model.threshold = 0.0  # four steps make no score high
    names = sorted((scenes / "boxes" / "JPEGImages").glob("val*.png"))
    answers = model.predict(names)
    assert any(len(answer.boxes) for answer in answers)
    assert all(answer.boxes.max(initial=0) <= 64 for answer in answers)
    assert {label for answer in answers for label in answer.labels} <= set(COLOURS)
    judged = vitrail.evaluate(detected.folder, scenes / "boxes", quiet=True)
    assert judged.figures["ap"] == pytest.approx(detected.figures["ap"], abs=1e-6)


def test_the_threshold_of_a_detector_is_the_best_on_the_validation_split_unless_it_is_given(scenes, detected, tmp_path):
    assert detected.load().threshold == detected.figures["threshold"] != 0.3
    settings = (*SMALL, "model.head={threshold: 0.25}")
    given = vitrail.train(scenes / "boxes", out=tmp_path / "run", steps=1, settings=settings, **QUICK)
    assert given.load().threshold == 0.25


def losses_of(run) -> list[float]:
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maps", "boxes"])
def test_a_stopped_training_resumes_to_the_same_steps_and_micro_batches_take_them(kind, scenes, tmp_path, monkeypatch):
    # dropout of the head draws for each micro-batch
    monkeypatch.setattr(torch.nn.Dropout2d, "forward", lambda self, x: x)
    settings = (*SMALL, "save.log_every=1")
    train = partial(vitrail.train, scenes / kind, steps=3, settings=settings, **QUICK)
    whole = train(out=tmp_path / "whole")
    micro = train(out=tmp_path / "micro", settings=(*settings, "data.micro_batch=2"))
    assert losses_of(micro) == pytest.approx(losses_of(whole), rel=1e-3)
    take_step = loop.take_step

    def stopping(training, batch):
        loss = take_step(training, batch)
        if training.progress.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", stopping)
        with pytest.raises(Preempted):
            train(out=tmp_path / "parts")
    parts = train(out=tmp_path / "parts")
    assert parts.figures == whole.figures
    assert (parts.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


def test_the_wrong_task_for_the_data_is_refused_with_the_right_one(scenes, tmp_path):
    for kind, task, message in (
        ("boxes", "segment", "boxes without outlines, and segmentation needs a class for every pixel"),
        ("maps", "detect", "classes of pixels, and detection needs boxes"),
        ("boxes", "classify", "classes of images are required, and the data have classes of objects"),
    ):
        with pytest.raises(DataError, match=message):
            vitrail.train(scenes / kind, out=tmp_path / "run", task=task, steps=1, settings=SMALL, **QUICK)
    plain = (*SMALL, "augment.mixup=0", "augment.cutmix=0")
    with pytest.raises(DataError, match="classes of images, and detection needs boxes"):
        vitrail.train("digits", out=tmp_path / "run", task="detect", steps=1, settings=plain, **QUICK)
    settings = (*SMALL, "model.head={levles: [8]}")
    with pytest.raises(ConfigError, match=r"model\.head sets 'levles'"):
        vitrail.train(scenes / "boxes", out=tmp_path / "run", steps=1, settings=settings, **QUICK)
    with pytest.raises(ConfigError, match="mixing images and smoothing labels have no meaning for the task detection"):
        vitrail.train(scenes / "boxes", out=tmp_path / "run", steps=1, settings=(*SMALL, "augment.mixup=0.2"), **QUICK)
    assert not (tmp_path / "run").exists()


def test_arguments_of_the_head_and_weights_to_start_from(scenes, segmented, tmp_path):
    settings = ("model.head={levels: [8, 16], head_width: 32, most: 7}", "data.batch=8")
    run = vitrail.train(
        scenes / "boxes", out=tmp_path / "run", init=segmented.folder, steps=1, settings=settings, **QUICK
    )
    model = run.load()
    assert (model.levels, model.head_width, model.most) == ((8, 16), 32, 7)


def test_inputs_follow_the_size_of_the_pictures_up_to_a_number_of_pixels(scenes):
    train = open_data(scenes / "maps").train
    assert choose_size(train, (16, 16), 10_000) == (48, 64)
    assert choose_size(train, (16, 16), 48 * 64 // 4) == (32, 32)
    assert choose_size(train, (32, 32), 10_000) == (64, 64)


def test_bad_images_say_nothing_on_the_size_of_all(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jpg").symlink_to(f"{name}.jpg")
    assert size_and_channels(open_data([tmp_path / "a.jpg", tmp_path / "b.jpg"], labelled=False).train) == (None, None)


@pytest.mark.parametrize("kind", ["maps", "boxes"])
def test_an_encoder_learns_from_the_images_of_annotated_data_alone(kind, scenes, tmp_path):
    settings = ("model.name=vit-ti16", *SMALL, "model.size=[48, 64]")
    run = vitrail.pretrain(
        scenes / kind, objective="mae", out=tmp_path, steps=1, settings=settings, quiet=True, workers=0
    )
    assert run.load().classes == ()
