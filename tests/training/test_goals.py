"""Encoders, segmenters and detectors from end to end: trained, stopped, resumed bit for bit, evaluated and reported."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.models.tiny import TINY
from tests.slow import slow_except
from tests.training.logged import list_logged
from tests.training.stopping import stopped_after
from vitrail.config.compose import compose_run
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.source import Splits
from vitrail.errors import ConfigError, DataError
from vitrail.models import MODELS
from vitrail.runs.checkpoint import load_newest
from vitrail.runs.folder import RunFolder
from vitrail.tasks import Detector, InstanceSegmenter, Segmenter
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.network import choose_size, size_and_channels
from vitrail.training.prepare import prepare
from vitrail.training.train import Result
from vitrail.verbs.pretrain import pretrain
from vitrail.verbs.train import train
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import load_tokenizer

NAMES = {config.architecture: name for name, config in reversed(MODELS.items())}  # the first of each
DERIVED = {"image_size", "classes", "in_channels"}
STEPS = 4
SIZES = "model.changes={width: 16, depth: 2, heads: 2, mlp_width: 24, patch_size: [2, 2], pool: gap, prefix: [], drop_path: 0.2}"
OF = {
    "masked-patch": "{}",
    "mae": "{decoder_width: 16, decoder_depth: 1, decoder_heads: 2}",
    "moco": "{hidden: 24, out: 8}",
    "simclr": "{hidden: 24, out: 8}",
    "dino": "{prototypes: 20, hidden: 24, bottleneck: 8, local_views: 2, freeze_last: 0.3}",
    "ibot": "{prototypes: 20, hidden: 24, bottleneck: 8, local_views: 1, share_head: false}",
    "beit": "{}",
    "tokenizer": "{}",
}
SETTINGS = ("save.evaluations=2", "save.log_every=2", "save.watched=60", "optim.ema=0.9", "data.micro_batch=8")


@pytest.fixture(scope="module")
def digits() -> Splits:
    """Three hundred of them: what is tested is the way, not how far it leads."""
    found = open_data("digits").train
    assert found is not None
    return Splits(train=found.subset(np.arange(240)), val=found.subset(np.arange(240, 300)), classes=found.classes)


@pytest.fixture(scope="module")
def tokenizer(digits: Splits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn("tokenizer", digits, tmp_path_factory.mktemp("tokenizer") / "run").folder


def learn(objective: str, data: Any, out: Path, *settings: str, sizes: str = SIZES, **how: Any) -> Result:
    sizes = (
        "model.changes={patch_size: [2, 2], width: 8, depth: 1, levels: [4, 4]}" if objective == "tokenizer" else sizes
    )
    given = {"steps": STEPS, "batch": 16, "quiet": True, **how}
    model = None if objective == "tokenizer" or "init" in how else "vit-ti16"
    words = [*([] if "init" in how else [sizes]), f"objective.changes={OF[objective]}", *SETTINGS, *settings]
    return pretrain(data, objective=objective, model=model, out=out, settings=words, **given)  # type: ignore[arg-type]


def given_to(objective: str, tokenizer: Path) -> dict[str, Any]:
    return {"tokenizer": tokenizer} if objective == "beit" else {}


@pytest.mark.slow
@pytest.mark.parametrize("objective", slow_except(["mae", "ibot", "tokenizer"], {"mae"}))
def test_a_stopped_run_resumes_bit_for_bit(objective, digits, tmp_path):
    whole = learn(objective, digits, tmp_path / "whole")
    with stopped_after(3):
        learn(objective, digits, tmp_path / "parts")
    assert_same_run(whole, learn(objective, digits, tmp_path / "parts"))


def assert_same_run(whole: Result, parts: Result) -> None:
    one, other = (load_newest(each.folder / "checkpoints") for each in (whole, parts))
    assert one is not None and other is not None and one.state == other.state
    for group, tensors in one.tensors.items():
        assert all(torch.equal(tensor, other.tensors[group][name]) for name, tensor in tensors.items()), group
    logs = [(each.folder / "metrics.jsonl").read_bytes() for each in (whole, parts)]
    assert logs[0] == logs[1]
    assert whole.figures == parts.figures


# every objective by another kind of architecture that it supports
PAIRS = {
    "mae": "beit",
    "masked-patch": "swin",
    "beit": "vit",
    "moco": "bit",
    "simclr": "pvt",
    "dino": "axial",
    "ibot": "swin",
}
OBLONG = np.random.default_rng(0).integers(0, 256, (40, 64, 32, 1), np.uint8), np.arange(40) % 2


def changes_of(name: str) -> dict[str, Any]:
    """What distinguishes a small config from the named one of its architecture."""
    default, changes = MODELS[NAMES[TINY[name].architecture]].to_dict(), TINY[name].to_dict()
    return {key: value for key, value in changes.items() if key not in DERIVED and value != default[key]}


def describe(objective: str, name: str, tokenizer: Path) -> dict[str, Any]:
    """A short run of a small config by an objective, in bf16."""
    config = TINY[name]
    settings = [f"model.changes={json.dumps(changes_of(name))}", f"objective.changes={OF[objective]}", *SETTINGS]
    how = {"objective": objective, "model": NAMES[config.architecture], "steps": STEPS, "batch": 16, "quiet": True}
    return {**how, "settings": [*settings, "compute.precision=bf16"], **given_to(objective, tokenizer)}


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "name"), PAIRS.items())
def test_an_encoder_is_resumed_evaluated_inspected_and_fine_tuned(objective, name, tokenizer, tmp_path):
    """Oblong images of one channel in bf16."""
    how = describe(objective, name, tokenizer)
    run = pretrain(OBLONG, **how, out=tmp_path / "run")
    with stopped_after(3):
        pretrain(OBLONG, **how, out=tmp_path / "parts")
    assert_same_run(run, pretrain(OBLONG, **how, out=tmp_path / "parts"))
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [each for each in records if "knn" in each]
    assert [each["step"] for each in evaluated] == [0, 2, 4]
    assert all(0 <= each["knn"] <= 1 and each["effective_rank"] >= 1 for each in evaluated)
    assert run.figures["knn"] == evaluated[-1]["knn"] and run.figures["knn_untrained"] == evaluated[0]["knn"]
    assert np.isfinite(run.figures["loss"])
    page = run.report.read_text()
    assert "effective rank" in page.lower() and page.count("<img") >= 8
    assert "vitrail train" in (run.folder / "card.md").read_text()
    encoder = run.load()
    assert encoder.classes == () and encoder.provenance["objective"] == objective
    tuned = train(OBLONG, init=run.folder, steps=2, batch=8, out=tmp_path / "tuned", quiet=True).load()
    assert tuned.classes == ("0", "1") and tuned.config == replace(encoder.config, classes=2)


def test_a_tokenizer_is_compared_with_the_mean_colour_and_kept_as_one(digits, tokenizer):
    figures = json.loads((tokenizer / "status.json").read_text())["figures"]
    assert {"psnr_held_out", "psnr_mean_colour", "codes_in_use"} <= figures.keys()
    assert 1 <= figures["codes_in_use"] <= 16
    assert load_tokenizer(tokenizer, lambda line: None).tokenizer.config.levels == (4, 4)
    page, card = (tokenizer / "report.html").read_text(), (tokenizer / "card.md").read_text()
    for words in (page, card):
        assert "tokenizer of 16 codes" in words and "--objective beit --tokenizer" in words and "--init" not in words


def test_the_report_of_beit_shows_what_is_hidden_and_which_codes_are_guessed(digits, tokenizer, tmp_path):
    page = learn("beit", digits, tmp_path / "run", tokenizer=tokenizer).report.read_text()
    assert page.count("<img") == 4 * 8
    assert all(f"Image 8, {name}" in page for name in ("images", "masked", "codes", "predicted"))


@pytest.mark.slow
def test_labels_are_not_needed(tmp_path, capsys):
    chance = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(40):
        pixels = chance.integers(0, 256, (20, 28, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    run = learn(
        "mae",
        tmp_path / "photos",
        tmp_path / "run",
        "data.max_bad=0.1",
        "compute.precision=bf16",
        size=(16, 24),
        sizes=SIZES.replace("[2, 2]", "[4, 4]"),
        workers=1,
        quiet=False,
    )
    said = "".join(capsys.readouterr())
    assert "(val held out of train)\nclasses  none: the images have no labels\n" in said
    assert "1 image could not be read; it is listed" in run.report.read_text()
    assert "knn" not in run.figures and run.figures["effective_rank"] > 1
    assert "broken.png" in (run.folder / "bad_images.csv").read_text()
    assert "LABELLED-IMAGES" in run.report.read_text()


@pytest.mark.slow
def test_training_resumes_from_an_encoder_by_another_objective(digits, tmp_path):
    first = learn("mae", digits, tmp_path / "mae")
    second = learn("simclr", digits, tmp_path / "simclr", init=first.folder)
    assert second.load().config.width == 16
    assert second.figures["knn_untrained"] == first.figures["knn"]


@pytest.mark.slow
def test_weights_to_start_from_keep_their_network_whatever_the_recipe_makes_of_a_fresh_one(digits, tmp_path):
    model = create_classifier(TINY["vit"], classes=3, image_size=8, patch_size=2, in_channels=1)
    save_model(tmp_path / "model", model)
    run = learn("mae", digits, tmp_path / "run", init=tmp_path / "model")
    kept, before = run.load().config, model.config
    assert all(getattr(kept, name) == getattr(before, name) for name in ("prefix", "pool", "gelu", "positions"))
    assert "which the weights decide: left out" in (run.folder / "log.txt").read_text()
    assert learn("mae", digits, tmp_path / "run", init=tmp_path / "model").figures == run.figures  # the same run


@pytest.mark.parametrize("objective", slow_except(["mae", "simclr"], {"mae"}))
def test_pictures_that_a_transform_makes_are_learned_from_and_shown(objective, tmp_path):
    """The images are no whole patches, nor as large as the network takes them: only the transform makes them so."""
    photos = np.random.default_rng(0).integers(0, 256, (40, 9, 11, 1), np.uint8)

    def cropped(picture: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(picture)[None, :8, :8] / np.float32(255))

    run = learn(objective, photos, tmp_path / "run", transform=cropped, size=8)
    assert run.report.read_text().count("<img") >= 2


def test_a_batch_that_holds_images_twice_is_warned_of_where_they_are_compared(digits, tmp_path):
    few = Splits(train=digits.train.subset(np.arange(40)), val=digits.val, classes=digits.classes)
    for objective, batch, warned in (("simclr", 16, False), ("simclr", 64, True), ("mae", 64, False)):
        flags = {"data": {"source": "few", "batch": batch}, "objective": {"name": objective}}
        run, _ = compose_run(flags=flags, settings=("model.name=vit-ti16", SIZES, f"objective.changes={OF[objective]}"))
        said: list[str] = []
        prepare(run, RunFolder(tmp_path / f"{objective}-{batch}"), data=few, log=said.append)
        assert any("each is to be unlike itself" in line for line in said) is warned, (objective, batch)


@pytest.mark.slow
def test_an_image_counts_once_however_many_views_are_made_of_it(digits, tmp_path):
    run = learn("simclr", digits, tmp_path / "run")
    laps = [json.loads(line) for line in (run.folder / "timing.jsonl").read_text().splitlines()]
    counted = sum(lap["seconds"] * lap["images_per_second"] for lap in laps if "seconds" in lap)
    assert counted == pytest.approx(STEPS * 16, rel=0.05)


@pytest.mark.parametrize(
    ("objective", "name"),
    [("mae", "axial"), ("mae", "vit, stem"), ("mae", "vit, windows"), ("masked-patch", "bit"), ("beit", "pvt v2")],
)
def test_an_objective_refuses_what_it_cannot_train_before_the_run_begins(objective, name, tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"does not support|stem|window=0"):
        pretrain(OBLONG, **describe(objective, name, tokenizer), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"objective": "beit"}, "give it with --tokenizer"),
        ({"objective": "beit", "tokenizer": "somewhere"}, "there are no weights"),
        ({"objective": "mae", "tokenizer": "somewhere"}, "'mae' does not use a tokenizer"),
        ({"objective": "mae", "settings": ["objective.teacher=somewhere"]}, "'mae' does not use a teacher"),
        ({"objective": None}, "no objective was named"),
        pytest.param(
            {"objective": "mae", "model": "swin-t"}, "choose one of these architectures", marks=pytest.mark.slow
        ),
        ({"objective": "tokenizer", "model": "vit-b16"}, "a tokenizer has no model name"),
        ({"objective": "mae", "settings": ["objective.changes={mask: 0.5}"]}, "did you mean 'mask_ratio'"),
        ({"objective": "mae", "settings": ["model.head_only=true"]}, "has no head"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_trained(how, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        pretrain("digits", steps=1, out=tmp_path / "run", quiet=True, **how)


def test_learning_without_labels_is_not_asked_of_train(tmp_path):
    with pytest.raises(ConfigError, match="vitrail pretrain"):
        train("digits", settings=["objective.name=mae"], steps=1, out=tmp_path / "run", quiet=True)


def test_three_images_are_too_few(tmp_path):
    with pytest.raises(DataError, match="hold 3 training images"):
        learn("mae", np.zeros((3, 8, 8, 3), np.uint8), tmp_path / "run")


COLOURS = {"red": (220, 40, 40), "blue": (40, 40, 220)}
SMALL = (
    "model.changes={width: 32, depth: 2, heads: 2, mlp_width: 64, patch_size: [8, 8], drop_path: 0}",
    "data.batch=8",
)
QUICK = {"quiet": True, "workers": 0, "lr": 3e-3}


def draw_scenes(root: Path, counts: dict[str, int], size: tuple[int, int] = (48, 64)) -> Path:
    """Pictures of a red and a blue rectangle on grey noise, with VOC's boxes, with masks, and with COCO's outlines."""
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
        (root / "outlines" / split).mkdir(parents=True)
        images, annotations = [], []
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
                right, bottom = left + wide, top + tall
                owner = {"id": len(annotations) + 1, "image_id": len(images), "category_id": number, "iscrowd": 0}
                place = {"bbox": [left, top, wide, tall], "area": wide * tall}
                outline = [[left, top, right, top, right, bottom, left, bottom]]
                annotations.append({**owner, **place, "segmentation": outline})
            images.append({"id": len(images), "file_name": f"{name}.png", "width": width, "height": height})
            Image.fromarray(picture).save(root / "outlines" / split / f"{name}.png")
            Image.fromarray(picture).save(root / "boxes" / "JPEGImages" / f"{name}.png")
            Image.fromarray(picture).save(root / "maps" / "images" / split / f"{name}.png")
            Image.fromarray(classes).save(root / "maps" / "masks" / split / f"{name}.png")
            head = f"<size><width>{width}</width><height>{height}</height></size>"
            path = root / "boxes" / "Annotations" / f"{name}.xml"
            path.write_text(f"<annotation>{head}{objects}</annotation>")
        categories = [{"id": number, "name": label} for number, label in enumerate(COLOURS)]
        document = {"images": images, "annotations": annotations, "categories": categories}
        (root / "outlines" / f"instances_{split}.json").write_text(json.dumps(document))
    (root / "maps" / "classes.txt").write_text("ground\nred\nblue\n")
    return root


TASKS = {"maps": None, "boxes": None, "outlines": "instances"}  # by kind of scenes; None follows the annotation


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
@pytest.mark.parametrize(
    ("kind", "steps", "figure", "least"),
    [("maps", 25, "miou", 0.5), ("boxes", 60, "ap50", 0.2), ("outlines", 60, "ap50", 0.2)],
)
def test_training_lowers_the_loss(kind, steps, figure, least, scenes, tmp_path):
    run = vitrail.train(scenes / kind, out=tmp_path / "run", task=TASKS[kind], steps=steps, settings=SMALL, **QUICK)
    assert run.figures[figure] > least


def test_the_task_follows_the_annotation_of_the_data(scenes, segmented, detected):
    assert find_data(scenes / "maps").task == "segmentation" and find_data(scenes / "boxes").task == "detection"
    assert find_data(open_data(scenes / "boxes")).task == "detection" and find_data("digits").task is None
    assert "recipe: segment" in (segmented.folder / "config.yaml").read_text()
    assert "task: detection" in (detected.folder / "config.yaml").read_text()
    assert isinstance(segmented.load(), Segmenter) and isinstance(detected.load(), Detector)


def test_a_segmenter_is_evaluated_on_whole_pictures(scenes, segmented):
    model = segmented.load()
    assert (model.preprocessing.size, model.preprocessing.resize) == ((48, 64), "fit")
    weights = dict(zip(model.classes, model.class_weights))
    assert weights["ground"] < 1 < weights["red"]
    evaluated = vitrail.evaluate(segmented.folder, scenes / "maps", quiet=True)
    assert evaluated.figures["miou"] == pytest.approx(segmented.figures["miou"], abs=1e-6)
    report = (segmented.folder / "report.html").read_text()
    assert "Per-class metrics" in report and re.search(r'<th scope="row"[^>]*>ground</th>', report)
    records = [json.loads(line) for line in (segmented.folder / "metrics.jsonl").read_text().splitlines()]
    assert any("val_miou" in record for record in records)


def test_a_detector_is_evaluated_and_its_boxes_lie_in_the_pictures(scenes, detected):
    model = detected.load()
    model.threshold = 0.0  # four steps make no score high
    names = sorted((scenes / "boxes" / "JPEGImages").glob("val*.png"))
    answers = model.predict(names)
    assert any(len(answer.boxes) for answer in answers)
    assert all(answer.boxes.max(initial=0) <= 64 for answer in answers)
    assert {label for answer in answers for label in answer.labels} <= set(COLOURS)
    evaluated = vitrail.evaluate(detected.folder, scenes / "boxes", quiet=True)
    assert evaluated.figures["ap"] == pytest.approx(detected.figures["ap"], abs=1e-6)


def test_masks_of_an_instance_segmenter_lie_in_the_pictures_and_are_evaluated(scenes, tmp_path):
    data = scenes / "outlines"
    run = vitrail.train(data, out=tmp_path / "run", task="instances", steps=4, settings=SMALL, **QUICK)
    model = run.load()
    assert isinstance(model, InstanceSegmenter) and "recipe: instances" in (run.folder / "config.yaml").read_text()
    answers = model.predict(sorted((data / "val").glob("*.png")), threshold=0)
    assert all(mask.size == (48, 64) for answer in answers for mask in answer.masks) and any(map(len, answers))
    evaluated = vitrail.evaluate(run.folder, data, quiet=True)
    assert {"ap", "box_ap"} <= evaluated.figures.keys()
    assert evaluated.figures["ap"] == pytest.approx(run.figures["ap"], abs=1e-6)
    assert "A mask is right if" in (run.folder / "report.html").read_text()


@pytest.mark.slow
def test_the_threshold_of_a_detector_is_the_best_on_the_validation_split_unless_it_is_given(scenes, detected, tmp_path):
    assert detected.load().threshold == detected.figures["threshold"] != 0.3
    settings = (*SMALL, "model.head={threshold: 0.25}")
    given = vitrail.train(scenes / "boxes", out=tmp_path / "run", steps=1, settings=settings, **QUICK)
    assert given.load().threshold == 0.25


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "head"), [*((kind, None) for kind in TASKS), ("outlines", "queries")])
def test_a_stopped_training_resumes_to_the_same_steps_and_micro_batches_take_them(
    kind, head, scenes, tmp_path, monkeypatch
):
    # dropout of the head draws for each micro-batch
    monkeypatch.setattr(torch.nn.Dropout2d, "forward", lambda self, x: x)
    settings = (*SMALL, "save.log_every=1")
    train = partial(vitrail.train, scenes / kind, task=TASKS[kind], head=head, steps=3, settings=settings, **QUICK)
    whole = train(out=tmp_path / "whole")
    if head is None:  # queries draw masks of attention for each micro-batch
        micro = train(out=tmp_path / "micro", settings=(*settings, "data.micro_batch=2"))
        assert list_logged(micro) == pytest.approx(list_logged(whole), rel=1e-3)
    with stopped_after(2):
        train(out=tmp_path / "parts")
    parts = train(out=tmp_path / "parts")
    assert parts.figures == whole.figures
    assert (parts.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


def test_the_wrong_task_for_the_data_is_refused_with_the_right_one(scenes, tmp_path):
    for kind, task, message in (
        ("boxes", "segment", "boxes without outlines, and segmentation needs a class for every pixel"),
        ("maps", "detect", "classes of pixels, and detection needs boxes"),
        ("boxes", "instances", "boxes without outlines, and instances needs the outline of every object"),
        ("maps", "instances", "classes of pixels, and instances needs objects with outlines"),
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_except(["maps", "boxes"], {"maps"}))
def test_a_setting_of_the_head_reads_the_maps_of_four_blocks(kind, scenes, tmp_path):
    settings = (*SMALL, "model.changes.depth=5", "model.head={maps: four}", "data.batch=8")
    model = vitrail.train(scenes / kind, out=tmp_path / "run", steps=1, settings=settings, **QUICK).load()
    assert model.maps == "four" and model.dense_layers == (0, 1, 2, 4)


def test_inputs_follow_the_size_of_the_pictures_up_to_a_number_of_pixels(scenes):
    train = open_data(scenes / "maps").train
    assert choose_size(train, (16, 16), 10_000) == (48, 64)
    assert choose_size(train, (16, 16), 48 * 64 // 4) == (32, 32)
    assert choose_size(train, (32, 32), 10_000) == (64, 64)


def test_bad_images_say_nothing_on_the_size_of_all(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jpg").symlink_to(f"{name}.jpg")
    assert size_and_channels(open_data([tmp_path / "a.jpg", tmp_path / "b.jpg"], labelled=False).train) == (None, None)


@pytest.mark.parametrize("kind", slow_except(["maps", "boxes"], {"maps"}))
def test_an_encoder_learns_from_the_images_of_annotated_data_alone(kind, scenes, tmp_path):
    settings = ("model.name=vit-ti16", *SMALL, "model.size=[48, 64]")
    run = vitrail.pretrain(
        scenes / kind, objective="mae", out=tmp_path, steps=1, settings=settings, quiet=True, workers=0
    )
    assert run.load().classes == ()
