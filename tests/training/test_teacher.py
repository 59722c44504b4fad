"""Teachers: they see the student's images as they themselves want them, and answer in the student's classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import yaml

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import ViTConfig
from vitrail.models.resnet import ResNetConfig
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.training.frozen_networks import CHUNK, Teacher, apply_in_chunks
from vitrail.verbs.train import train
from vitrail.weights.native import save_model

NAMES = ("ant", "bee", "cat")
STUDENT = Preprocessing.paper((32, 32))
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CHANGES = (
    "model.changes={width: 16, depth: 1, heads: 2, mlp_width: 24, patch_size: [4, 4], pool: cls, prefix: [cls, dist]}"
)


def teacher_of(size: int, classes=NAMES, channels: int = 3) -> Classifier:
    torch.manual_seed(0)
    config = ViTConfig(patch_size=8, width=16, depth=2, heads=2, mlp_width=24)
    made = create_classifier(config, classes=classes, image_size=size, in_channels=channels)
    if channels == 3:
        made.preprocessing = replace(made.preprocessing, **IMAGENET)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def test_a_teacher_of_the_same_size_answers_as_if_it_had_been_given_the_pictures_itself():
    model = teacher_of(32)
    pictures = torch.rand(5, 3, 32, 32)
    expected = model(model.preprocessing.normalise(pictures))
    answers = Teacher(model, ("cat", "ant"), STUDENT)(STUDENT.normalise(pictures))
    torch.testing.assert_close(answers, expected[:, [2, 0]], rtol=1e-4, atol=1e-5)
    assert not answers.requires_grad and not any(each.requires_grad for each in model.parameters())


def test_a_teacher_of_another_size_sees_the_pictures_scaled():
    shapes = []
    model = teacher_of(48)
    model.backbone.register_forward_pre_hook(lambda module, given: shapes.append(tuple(given[0].shape)))
    assert Teacher(model, NAMES, STUDENT)(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert shapes == [(2, 3, 48, 48)]


def test_a_teacher_of_colours_sees_grey_images_with_three_equal_channels():
    model, pictures = teacher_of(32), torch.rand(2, 1, 32, 32)
    grey = Preprocessing.paper((32, 32), channels=1)
    answers = Teacher(model, NAMES, grey)(grey.normalise(pictures))
    expected = model(model.preprocessing.normalise(pictures.expand(-1, 3, -1, -1)))
    torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-5)


def test_a_teacher_sees_a_few_images_at_a_time_however_large_the_batch():
    images, seen = torch.rand(CHUNK + 3, 1, 2, 2), []

    def teacher(some):
        seen.append(len(some))
        return some.flatten(1)

    answers = apply_in_chunks(teacher, images)
    assert torch.equal(answers, images.flatten(1)) and seen == [CHUNK, 3]


def test_a_teacher_that_cannot_teach_is_refused():
    with pytest.raises(ConfigError, match="does not know 1 of the 2 classes: dog"):
        Teacher(teacher_of(32), ("ant", "dog"), STUDENT)
    with pytest.raises(ConfigError, match="has no head"):
        Teacher(teacher_of(32, classes=()), (), STUDENT)
    with pytest.raises(ConfigError, match="takes 1 channels, the student 3"):
        Teacher(teacher_of(32, channels=1), NAMES, STUDENT)
    several = teacher_of(32)
    several.multi_label = True
    with pytest.raises(ConfigError, match="several labels"):
        Teacher(several, NAMES, STUDENT)


@pytest.mark.slow
def test_a_deit_is_distilled_from_a_bit_resnet_and_resumes_where_it_stopped(tmp_path):
    torch.manual_seed(0)
    bit = create_classifier(
        ResNetConfig(depths=(1, 1)), classes=[str(digit) for digit in range(10)], image_size=8, in_channels=1
    )
    save_model(tmp_path / "teacher", bit)
    asked = {"model": "vit-ti16", "teacher": tmp_path / "teacher", "quiet": True, "settings": [CHANGES], "batch": 32}
    result = train("digits", **asked, steps=3, out=tmp_path / "run")
    stored = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert stored["objective"]["teacher"] == str((tmp_path / "teacher").resolve())
    lines = (result.folder / "metrics.jsonl").read_text()
    assert '"agreement"' in lines
    longer = train("digits", **asked, steps=4, out=tmp_path / "run")
    assert longer.load().backbone.prefix == ("cls", "dist")
    save_model(tmp_path / "another", bit)
    with pytest.raises(ConfigError, match="other settings"):
        train("digits", **{**asked, "teacher": tmp_path / "another"}, steps=4, out=tmp_path / "run")


def test_an_argument_that_distillation_does_not_have_names_the_nearest(tmp_path):
    save_model(tmp_path / "teacher", teacher_of(8, classes=[str(digit) for digit in range(10)], channels=1))
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        train(
            "digits",
            teacher=tmp_path / "teacher",
            steps=1,
            out=tmp_path / "run",
            quiet=True,
            settings=["objective.changes={temprature: 2}"],
        )
