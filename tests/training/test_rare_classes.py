"""Trainings with weights of classes and square-root sampling: exact resuming, any micro-batches, and what the model keeps."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.training.logged import list_logged
from tests.training.stopping import stopped_after
from vitrail.config.compose import compose_run
from vitrail.config.schema import identify
from vitrail.data.sources.contents import Units
from vitrail.errors import CheckpointError, ConfigError
from vitrail.training.data import check_rare_classes
from vitrail.training.state import check_same_run

LABELS = np.repeat(["ant", "bee", "cat"], [80, 20, 5])
ARRAYS = np.random.default_rng(0).integers(0, 256, (105, 8, 8, 1), dtype=np.uint8), LABELS
TINY = "{width: 16, depth: 1, heads: 1, mlp_width: 32, patch_size: [4, 4]}"
SETTINGS = (
    f"model.changes={TINY}",
    "augment={mixup: 0.2, cutmix: 1.0, smoothing: 0.1, flip: 0.5}",
    *("compute={threads: 1, tune: false}", "save.evaluations=2", "save.log_every=1"),
)
HOW: dict[str, Any] = {"model": "vit-ti16", "batch": 24, "steps": 8, "quiet": True, "settings": SETTINGS}
RARE: dict[str, Any] = {"class_weights": "auto", "balance": True}
learn = partial(vitrail.train, ARRAYS, **HOW)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return learn(out=tmp_path_factory.mktemp("rare") / "run", **RARE)


def test_a_stopped_training_resumes_bit_for_bit(run, tmp_path):
    again = partial(learn, out=tmp_path / "run", **RARE)
    with stopped_after(5):
        again()
    found = again()
    assert (found.folder / "metrics.jsonl").read_bytes() == (run.folder / "metrics.jsonl").read_bytes()
    ours, theirs = found.load().state_dict(), run.load().state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    with pytest.raises(ConfigError, match=r"objective\.class_weights: 'auto' there, 'none' asked"):
        learn(out=tmp_path / "run", balance=True)


def test_micro_batches_and_equal_weights_change_nothing_but_the_last_bits(run, tmp_path):
    settings = (*SETTINGS, "data.micro_batch=8")
    micro = learn(out=tmp_path / "micro", **{**RARE, "settings": settings})
    assert list_logged(micro) == pytest.approx(list_logged(run), rel=1e-4)
    weights = {"plain": "none", "equal": "ant=2,bee=2,cat=2"}
    plain, equal = (learn(out=tmp_path / name, class_weights=asked) for name, asked in weights.items())
    assert list_logged(equal) == pytest.approx(list_logged(plain), rel=1e-5)
    assert list_logged(run) != pytest.approx(list_logged(plain), rel=1e-2)


def test_the_model_keeps_the_images_of_its_classes_and_their_shares_in_the_loss(run, tmp_path):
    counts = np.array([68, 17, 4])  # 15 % of each class are held out
    provenance = run.load().provenance
    assert provenance["class_images"] == counts.tolist()
    # sqrt(n) draws of a class times weights of 1 / sqrt(n) are equal shares
    assert provenance["class_shares"] == pytest.approx([1 / 3] * 3, rel=1e-5)
    assert "class_shares" not in learn(out=tmp_path / "plain", settings=SETTINGS).load().provenance


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"class_weights": "rar=5"}, r"names the class 'rar'.*\n.*ant, bee, cat"),
        ({"class_weights": "atuo"}, r"class_weights is 'atuo'.*\n.*auto, none, or rare=5,other=2"),
        ({"class_weights": "ant=2,ant=3"}, "each class once"),
        ({"settings": ["objective.class_weights=5"]}, "class_weights is 5"),
        ({"class_weights": "ant=0"}, r"gives 'ant' 0\.0.*\n.*above 0"),
        ({"class_weights": {"ant": float("inf")}}, "gives 'ant' inf"),
        ({"class_weights": "auto", "loss": "sigmoid"}, "with the loss 'sigmoid', not softmax"),
        (
            {"class_weights": "auto", "task": "segment"},
            "class_weights is set, and segmentation has no class of an image",
        ),
        ({"balance": True, "task": "detect"}, "balance is set, and detection has no class of an image"),
    ],
)
def test_what_has_no_rare_classes_is_refused(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        learn(out=tmp_path / "run", **{**HOW, **options})
    assert not (tmp_path / "run").exists()


def test_several_labels_an_image_and_images_that_are_read_in_parts_are_refused(tmp_path):
    several = np.eye(3, dtype=np.float32)[np.arange(105) % 3]
    for options in RARE.items():
        with pytest.raises(ConfigError, match="the images have several labels each"):
            vitrail.train((ARRAYS[0], several), out=tmp_path / "run", **HOW, **dict([options]))

    class Stored:
        multi_label, units = False, Units(np.arange(4), 4, 2)

    check_rare_classes(Stored(), balance=False)  # type: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match=r"these are read in parts.*\n.*--class-weights auto"):
        check_rare_classes(Stored(), balance=True)  # type: ignore[bad-argument-type]


def test_learning_without_labels_has_no_classes():
    for setting in ("data.balance=true", "objective.class_weights=auto"):
        with pytest.raises(ConfigError, match="is set, and mae has no class of an image"):
            compose_run(flags={"data": {"source": "digits"}, "objective": {"name": "mae"}}, settings=[setting])


@pytest.mark.parametrize(("name", "option"), [("head", {"balance": True}), ("student", {"class_weights": "auto"})])
def test_a_head_alone_and_a_student_of_a_teacher_learn_rare_classes_too(run, tmp_path, name, option):
    how = {**HOW, "teacher": run.folder}
    if name == "head":  # of features that are computed once, as nothing is augmented
        how = {**HOW, "model": None, "init": run.folder, "head_only": True, "settings": SETTINGS[2:]}
    plain, rare = (
        vitrail.train(ARRAYS, out=tmp_path / str(number), **how, **options)
        for number, options in enumerate(({}, option))
    )
    assert list_logged(rare) != pytest.approx(list_logged(plain), rel=1e-3)
    assert ("computed once" in (rare.folder / "log.txt").read_text()) == (name == "head")


def test_a_checkpoint_of_other_weights_is_refused():
    def settings(weights):
        return compose_run(flags={"data": {"source": "digits"}, "objective": {"class_weights": weights}})[0]

    def resume(before, now):
        saved = SimpleNamespace(state={"settings": identify(settings(before))}, path="step-1")
        training = SimpleNamespace(run=settings(now), digests={}, folder=SimpleNamespace(path="run"))
        check_same_run(training, saved)  # type: ignore[bad-argument-type]

    resume({"1": 2}, {"1": 2})
    for before, now in (({"1": 2}, {"1": 2, "3": 2}), ("auto", {"1": 2}), ("none", "auto")):
        with pytest.raises(CheckpointError, match=r"objective\.class_weights"):
            resume(before, now)
