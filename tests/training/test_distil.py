"""Distillation of features from end to end: teachers of other sizes and kinds, the bank, cached outputs, stopped and resumed."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.models.conftest import shaken
from tests.models.tiny import TINY
from tests.slow import slow_except
from tests.training.logged import list_logged
from tests.training.stopping import stopped_after
from tests.training.test_goals import NAMES, assert_same_run, changes_of
from vitrail import weights
from vitrail.config.compose import compose_run
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, DataError
from vitrail.runs.checkpoint import load_newest
from vitrail.runs.folder import RunFolder
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training import teacher_features
from vitrail.training.frozen_networks import FeatureTeacher, choose_teacher_size
from vitrail.training.prepare import prepare
from vitrail.verbs.pretrain import pretrain
from vitrail.weights.native import save_model

DRAWN = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
IMAGES = DRAWN, np.arange(60) % 3
SETTINGS = (
    *("save.evaluations=1", "save.log_every=1", "save.watched=60", "data.micro_batch=4", "compute.tune=false"),
    *("compute.threads=1", "compute.precision=fp32"),
)
STUDENT = "model.changes={width: 16, depth: 1, heads: 2, mlp_width: 24, patch_size: [8, 8]}"


def make_teacher(name: str = "vit", **changes: Any) -> vitrail.Classifier:
    torch.manual_seed(0)
    made = create_classifier(replace(TINY[name], classes=0), classes=(), **changes)
    shaken(made.backbone)
    return made


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    save_model(folder, make_teacher())
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def learn(out: Path | None, teacher: Path | None, *settings: str, data: Any = IMAGES, **how: Any) -> Any:
    given = {"model": "vit-ti16", "steps": 4, "batch": 8, "quiet": True, "size": 32, **how}
    words = [*([STUDENT] if given["model"] == "vit-ti16" else []), *SETTINGS, *settings]
    return pretrain(data, objective="distil", teacher=teacher, out=out, settings=words, **given)


@pytest.mark.parametrize(
    ("patch", "own", "grid", "size"),
    [
        (14, 224, (14, 14), (196, 196)),  # a student of 224 with patches of 16: as many cells
        (16, 224, (8, 8), (224, 224)),  # a small one: in the teacher's own size
        (16, 224, (16, 4), (448, 112)),  # in the shape of the student's grid, and as many pixels
        (16, 224, (7, 7), (224, 224)),
    ],
)
def test_a_teacher_sees_images_in_the_student_s_grid_or_in_its_own_size(patch, own, grid, size):
    config = replace(TINY["vit"], patch_size=(patch, patch), image_size=(own, own))
    model = create_classifier(config, classes=())
    assert choose_teacher_size(model, grid) == size
    student = Preprocessing.paper((32, 32))
    outputs = FeatureTeacher(model, student, grid)(torch.randn(2, 3, 32, 32))
    assert outputs.shape == (2, 16 + grid[0] * grid[1] * 16) and not outputs.requires_grad
    lengths = outputs.unflatten(1, (-1, 16)).norm(dim=2)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_a_teacher_that_has_one_size_sees_images_in_it():
    model = make_teacher("cait")
    assert choose_teacher_size(model, (3, 5)) in ((24, 40), model.preprocessing.size)
    channels = make_teacher(in_channels=5)
    with pytest.raises(ConfigError, match="takes 5 channels, the student 3"):
        FeatureTeacher(channels, Preprocessing.paper((32, 32)), (4, 4))


def test_a_teacher_gives_its_own_features_and_normed_map():
    model, pictures = make_teacher(), torch.rand(3, 3, 32, 32)
    own, student = model.preprocessing, replace(Preprocessing.paper((32, 32)), mean=(0.1,) * 3, std=(0.7,) * 3)
    outputs = FeatureTeacher(model, student, (4, 4))(student.normalise(pictures))
    seen = own.normalise(pictures)
    units = torch.nn.functional.normalize
    torch.testing.assert_close(outputs[:, :16], units(model.features(seen).detach()), rtol=1e-4, atol=1e-5)
    expected = units(model.backbone.dense_maps(seen)[-1].detach()).flatten(2).mT.flatten(1)
    torch.testing.assert_close(outputs[:, 16:], expected, rtol=1e-4, atol=1e-5)


# every kind of student that has other maps, one teacher of another kind, images of 1 and 5 channels, oblong
PAIRS = {"swin": ("bit", 3), "bit": ("vit", 1), "pvt": ("vit, dinov3", 5), "vit": ("swin", 3), "cait": ("beit", 3)}


@pytest.mark.slow
@pytest.mark.parametrize("student", slow_except(PAIRS, {"swin"}))
def test_students_learn_from_teachers_of_other_kinds(student, tmp_path):
    """In bf16, on oblong images; the run is stopped, resumed, and its encoder is fine-tuned."""
    kind, channels = PAIRS[student]
    save_model(tmp_path / "teacher", make_teacher(kind, in_channels=channels, image_size=(32, 32)))
    drawn = np.random.default_rng(0).integers(0, 256, (40, 64, 32, channels), np.uint8), np.arange(40) % 2
    how = {"model": NAMES[TINY[student].architecture], "size": None, "data": drawn}
    settings = (f"model.changes={json.dumps(changes_of(student))}", "compute.precision=bf16", "optim.ema=0.5")
    whole = learn(tmp_path / "whole", tmp_path / "teacher", *settings, **how)
    with stopped_after(3):
        learn(tmp_path / "parts", tmp_path / "teacher", *settings, **how)
    assert_same_run(whole, learn(tmp_path / "parts", tmp_path / "teacher", *settings, **how))
    assert np.isfinite(whole.figures["loss"]) and whole.load().config.in_channels == channels
    tuned = vitrail.train(drawn, init=whole.folder, steps=1, batch=8, out=tmp_path / "tuned", quiet=True)
    assert tuned.load().classes == ("0", "1")


def test_figures_of_the_teacher_stand_beside_those_of_the_student(teacher, tmp_path):
    run = learn(tmp_path / "run", teacher)
    records = [row for row in run.history if "teacher_knn" in row]
    assert [row["step"] for row in records] == [0, 4] and len({row["teacher_knn"] for row in records}) == 1
    assert run.figures["teacher_knn"] == records[0]["teacher_knn"]
    assert all({"images_loss", "patches_loss", "teacher_cosine"} <= row.keys() for row in run.history if "lr" in row)
    page, card = run.report.read_text(), (run.folder / "card.md").read_text()
    assert "teacher" in page.lower() and "distil" in card
    assert run.load().provenance["teacher"] == str(teacher.resolve())
    saved = load_newest(run.folder / "checkpoints")
    assert saved is not None and saved.tensors["objective"]["bank"].shape == (16, 16)


@pytest.mark.slow
def test_outputs_are_cached_where_images_are_only_flipped(teacher, tmp_path, monkeypatch):
    """The losses are those of a teacher that computes each batch."""
    policy = ("augment.crop=none", "augment.flip=0.5", "optim.lr=1e-3")
    cached = learn(tmp_path / "cached", teacher, *policy, steps=16)
    assert (
        "outputs for 114 views are computed once" in (tmp_path / "cached" / "log.txt").read_text()
    )  # of 57 training images
    monkeypatch.setattr(teacher_features, "CACHE_BYTES", 0)
    computed = learn(tmp_path / "computed", teacher, *policy, steps=16)
    assert "views" not in (tmp_path / "computed" / "log.txt").read_text()
    assert list_logged(cached) == pytest.approx(list_logged(computed), rel=2e-3)
    monkeypatch.undo()


@pytest.mark.slow
def test_the_cache_has_all_images_where_a_batch_repeats_them(teacher, tmp_path):
    how = {"steps": 16, "batch": 8}
    repeated = learn(tmp_path / "run", teacher, "augment.crop=none", "data.repeats=2", **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_features, "CACHE_BYTES", 0)
        computed = learn(tmp_path / "computed", teacher, "augment.crop=none", "data.repeats=2", **how)
    assert list_logged(repeated) == pytest.approx(list_logged(computed), rel=2e-3)


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_cached_outputs_are_those_of_the_flipped_image(flip, teacher, tmp_path):
    flags = {"data": {"source": "digits"}, "objective": {"name": "distil", "teacher": str(teacher)}}
    words = [STUDENT, *SETTINGS, "model.name=vit-ti16", "model.size=[32, 32]", "schedule.steps=100", "data.batch=8"]
    run, _ = compose_run(flags=flags, settings=[*words, "augment.crop=none", f"augment.flip={flip}"])
    with closing(RunFolder(tmp_path / "run")) as place:
        place.open()
        training = prepare(run, place, data=IMAGES, log=lambda line: None).training
        batch = next(training.batches(0, 1))
        images, outputs = training.inputs(batch)
    network = FeatureTeacher(weights.load(teacher), training.inputs.augmented.preprocessing, (4, 4))
    torch.testing.assert_close(outputs, network(images), rtol=0, atol=1e-3)
    assert not torch.allclose(outputs, network(images.flip(3)), rtol=0, atol=1e-2)
    assert training.inputs.frozen is None  # so that its operations do not count
    assert len(training.inputs.cache.values) == 1 + (flip > 0)


def test_cached_outputs_are_those_of_the_part_of_a_photograph_that_steps_see(teacher, tmp_path):
    """Of oblong files, of which training without a crop takes the square in the centre, and evaluation all, squashed."""
    (tmp_path / "photos").mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((80, 40)).save(tmp_path / "photos" / f"{number:02}.png")
    flags = {"data": {"source": str(tmp_path / "photos")}, "objective": {"name": "distil", "teacher": str(teacher)}}
    words = [STUDENT, *SETTINGS, "model.name=vit-ti16", "model.size=[32, 32]", "schedule.steps=4", "data.batch=4"]
    run, _ = compose_run(flags=flags, settings=[*words, "augment.crop=none", "data.workers=0"])
    with closing(RunFolder(tmp_path / "run")) as place:
        place.open()
        training = prepare(run, place, log=lambda line: None).training
        with closing(training.batches(0, 1)) as batches:
            images, outputs = training.inputs(next(batches))
    network = FeatureTeacher(weights.load(teacher), training.inputs.augmented.preprocessing, (4, 4))
    torch.testing.assert_close(outputs, network(images), rtol=0, atol=1e-3)


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_the_micro_batch(teacher, tmp_path):
    runs = [learn(tmp_path / str(size), teacher, f"data.micro_batch={size}") for size in (2, 8)]
    assert list_logged(runs[0]) == pytest.approx(list_logged(runs[1]), rel=1e-5)


def test_a_bad_image_leaves_its_place_in_the_bank(teacher, tmp_path):
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(DRAWN[:30]):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02}.png")
    (tmp_path / "photos" / "05.png").write_bytes(b"no image")
    words = ("data.max_bad=0.2", "objective.changes={bank: 25}")
    run = learn(tmp_path / "run", teacher, *words, data=tmp_path / "photos", workers=0)
    saved = load_newest(run.folder / "checkpoints")
    assert saved is not None
    torch.testing.assert_close(saved.tensors["objective"]["bank"].norm(dim=1), torch.ones(25), atol=1e-3, rtol=0)
    assert "05.png" in (run.folder / "bad_images.csv").read_text() and "teacher_knn" not in run.figures


@pytest.mark.slow
def test_a_dry_run_estimates_the_bank(teacher, tmp_path):
    lines: list[str] = []
    learn(None, teacher, "augment.crop=none", dry_run=True, steps=100, log=lines.append)
    assert any("features of 16 images" in line for line in lines) and any("for 114 views" in line for line in lines)


@pytest.mark.slow
def test_another_teacher_and_none_are_refused(teacher, tmp_path):
    learn(tmp_path / "run", teacher)
    save_model(tmp_path / "other", make_teacher("beit"))
    with pytest.raises(ConfigError, match="other settings"):
        learn(tmp_path / "run", tmp_path / "other", steps=5)
    copied = tmp_path / "copied"
    save_model(copied, make_teacher())
    learn(tmp_path / "second", copied, steps=2)
    save_model(copied, make_teacher("beit"))
    with pytest.raises(DataError, match="teacher"):
        learn(tmp_path / "second", copied, steps=3)
    with pytest.raises(ConfigError, match="none is given"):
        learn(tmp_path / "third", None)
    with pytest.raises(ConfigError, match="'mae' does not use a teacher"):
        pretrain(IMAGES, objective="mae", teacher=teacher, out=tmp_path / "fourth", quiet=True)


def test_a_teacher_of_colours_teaches_a_student_of_grey_images(teacher, tmp_path):
    run = learn(tmp_path / "run", teacher, data=(DRAWN[..., :1], IMAGES[1]))
    assert run.load().config.in_channels == 1 and np.isfinite(run.figures["loss"])
    assert "knn" in run.figures and "teacher_knn" not in run.figures  # arrays have one channel
