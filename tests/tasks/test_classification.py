"""The classifier: from pictures of every kind to named answers; its losses."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from tests.models.conftest import shaken
from vitrail.data.augment.policy import Augment
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.classification.classifier import Classifier, create_classifier, sigmoid_loss, softmax_loss
from vitrail.tasks.task import BACKBONE_VERBS

SMALL = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 2, "mlp_width": 64}


@pytest.fixture(scope="module")
def model() -> Classifier:
    return shaken(create_classifier("vit-ti16", classes=["ant", "bee", "cat", "dog", "emu", "fox"], **SMALL)).eval()


@pytest.fixture(scope="module")
def photograph() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def test_a_picture_of_every_kind_gives_the_same_input(model, photograph):
    array = np.array(photograph)
    file = BytesIO()
    photograph.save(file, "PNG")
    kinds = [photograph, array, torch.from_numpy(array).permute(2, 0, 1), file.getvalue()]
    batch = model.preprocess(kinds)
    assert batch.shape == (4, 3, 32, 32)
    assert batch.dtype == torch.float32
    for other in batch[1:]:
        assert torch.equal(other, batch[0])
    assert torch.equal(model.preprocess(photograph), batch[:1])
    exact = torch.from_numpy(array).permute(2, 0, 1).double() / 255
    for dtype, step in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        found = model.preprocess(exact.to(dtype).requires_grad_())
        torch.testing.assert_close(found, batch[:1], atol=1 / 127 + 4 * step, rtol=0)
    floats = model.preprocess(exact)
    torch.testing.assert_close(floats, batch[:1], atol=1 / 127, rtol=0)  # no rounding to 8 bits after the resize


def test_the_input_is_what_pillow_and_the_paper_say(model, photograph):
    expected = np.asarray(photograph.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1) / 127.5 - 1
    torch.testing.assert_close(model.preprocess(photograph)[0], torch.from_numpy(expected).float())


def test_four_dimensions_and_iterators_are_several_pictures_and_none_is_an_empty_batch(model, photograph):
    array = np.array(photograph)
    several = model.preprocess(np.stack([array, array[::-1]]))
    assert torch.equal(several, model.preprocess(iter([array, array[::-1]])))
    assert several.shape == (2, 3, 32, 32)
    assert model.preprocess([]).shape == (0, 3, 32, 32)
    assert model.predict([]) == []


def test_an_image_has_no_five_channels():
    model = create_classifier(
        "vit-ti16", classes=2, in_channels=5, image_size=32, patch_size=8, width=16, depth=1, heads=2
    )
    with pytest.raises(DataError, match="picture 0 cannot be used: images cannot have 5 channels"):
        model.preprocess(Image.new("RGB", (40, 40)))


def test_a_file_that_cannot_be_used_is_named(model, tmp_path):
    (tmp_path / "junk.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"picture 0 \(\S+junk\.jpg\) cannot be used: not a JPEG"):
        model.predict(tmp_path)


def test_invalid_pictures_are_refused_by_index_and_reason(model, photograph):
    for picture, reason in (
        ("cat.jpg", "cat.jpg: No such file or directory"),
        ("https://example.org/cat.jpg", "is a URL, which is not fetched"),
        (3.5, "it is a float"),
        (np.zeros((5, 5, 3), np.int32), "it holds int32"),
        (np.full((5, 5, 3), 255.0), "values run from 0 to 255"),
        (np.full((5, 5, 3), np.nan), "values run from nan to nan"),
        (np.zeros((5, 5, 4), np.uint8), r"an array of shape \(5, 5, 4\); \(H, W, 3\) is required"),
        (np.zeros((3, 5, 5), np.uint8), r"shape \(3, 5, 5\) has the channels first; give torch.from_numpy\(array\)"),
        (np.zeros((0, 5, 3), np.uint8), r"it has no pixels: its shape is \(0, 5, 3\)"),
        (np.zeros(5, np.uint8), r"an array of shape \(5,\)"),
        (np.zeros((5, 5, 3), bool), "it holds bool"),
        (torch.zeros(1, 5, 5), r"a tensor of shape \(1, 5, 5\); \(3, H, W\) is required"),
        (torch.zeros(5, 5, 3), r"a tensor of shape \(5, 5, 3\); \(3, H, W\) is required"),
        (torch.zeros(2, 2, 3, 5, 5), "a tensor of shape"),
        (torch.zeros(3, 5, 5, dtype=torch.int64), "it holds int64"),
        (torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0)), "values run from -"),
        (torch.zeros(3, 5, 5, device="meta"), "it has no values: it is on the device meta"),
        ([1, 2], "it is a list"),
        (None, "it is a NoneType"),
        (b"no image", "not a JPEG"),
    ):
        with pytest.raises(DataError, match=rf"picture 1( \(\S+\))? cannot be used: .*{reason}"):
            model.preprocess([photograph, picture])
        with pytest.raises(DataError, match="picture 0"):
            model.predict(picture)


def test_a_path_is_read_and_a_folder_is_all_of_its_images(model, photograph, tmp_path):
    (tmp_path / "deep").mkdir()
    photograph.save(tmp_path / "deep" / "a.png")
    photograph.rotate(90).save(tmp_path / "b.png")
    (tmp_path / "notes.txt").write_text("no image")
    expected = model.predict([photograph.rotate(90), photograph])
    names = [str(tmp_path / name) for name in ("b.png", "deep/a.png")]
    assert [answer.key for answer in model.predict(tmp_path)] == names
    assert [answer.top for answer in model.predict(str(tmp_path))] == [answer.top for answer in expected]
    assert model.predict(tmp_path / "b.png")[0].score == pytest.approx(expected[0].score)
    assert [answer.key for answer in model.predict([photograph, names[0]])] == ["", names[0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no images"):
        model.predict(tmp_path / "empty")


def test_predictions_are_the_largest_probabilities_by_name(model, photograph):
    p = model(model.preprocess(photograph)).softmax(1)[0]
    (answer,) = model.predict(photograph, top=3)
    best = p.argsort(descending=True)[:3].tolist()
    assert [label for label, _ in answer.top] == [model.classes[place] for place in best]
    assert [score for _, score in answer.top] == pytest.approx(p[best].tolist())
    assert (answer.label, answer.score) == answer.top[0]
    assert len(model.predict(photograph, top=100)[0].top) == 6
    assert sum(score for _, score in model.predict(photograph, top=6)[0].top) == pytest.approx(1)


def test_many_pictures_are_answered_in_order_and_as_if_alone(model, monkeypatch):
    pictures = np.random.default_rng(1).integers(0, 256, (5, 20, 20, 3), dtype=np.uint8)
    together = model.predict(pictures)
    monkeypatch.setattr("vitrail.tasks.task.BATCH", 2)
    for answer, again in zip(together, model.predict(pictures)):
        assert [label for label, _ in answer.top] == [label for label, _ in again.top]
        assert answer.score == pytest.approx(again.score)
    assert len({answer.top for answer in together}) == 5


def test_a_model_without_a_head_gives_features_and_predicts_nothing(photograph):
    model = create_classifier("vit-ti16", classes=0, **SMALL)
    assert model(model.preprocess(photograph)).shape == (1, 32)
    with pytest.raises(ConfigError, match="no head to predict with"):
        model.predict(photograph)


def test_at_least_one_label_is_asked_for(model, photograph):
    with pytest.raises(ConfigError, match="top is 0"):
        model.predict(photograph, top=0)


def test_predicting_uses_no_dropout_and_leaves_the_mode_as_it_was(photograph):
    model = shaken(create_classifier("vit-ti16", classes=4, dropout=0.5, **SMALL)).train()
    assert model.predict(photograph) == model.predict(photograph)
    assert model.training
    assert model.backbone.training
    model.eval()
    model.predict(photograph)
    assert not model.training


def test_the_temperature_flattens_probabilities_and_leaves_logits(photograph):
    model = shaken(create_classifier("vit-ti16", classes=4, **SMALL)).eval()
    logits = model(model.preprocess(photograph)).detach()
    sharp = model.predict(photograph)[0]
    model.temperature = 4.0
    assert torch.equal(model(model.preprocess(photograph)).detach(), logits)
    assert model.predict(photograph)[0].score == pytest.approx(float((logits / 4).softmax(1).max()))
    assert model.predict(photograph)[0].score < sharp.score


def test_with_several_labels_each_has_a_probability_of_its_own(photograph):
    model = shaken(create_classifier("vit-ti16", classes=4, multi_label=True, **SMALL)).eval()
    scores = dict(model.predict(photograph, top=4)[0].top)
    expected = model(model.preprocess(photograph)).sigmoid()[0].tolist()
    assert [scores[name] for name in model.classes] == pytest.approx(expected)


def test_the_verbs_are_the_backbones(model):
    images = torch.randn(2, 3, 32, 32)
    tokens = model.encode(model.place(model.patchify(images)))
    torch.testing.assert_close(model.head(model.pool(tokens)), model(images))
    torch.testing.assert_close(model.pool(model.forward_features(images)), model.pool(tokens))
    logits, attention = model.forward_with_attention(images)
    torch.testing.assert_close(logits, model.backbone(images))
    assert len(attention) == 2
    assert model.config is model.backbone.config
    assert (model.width, model.prefix) == (32, model.backbone.prefix)
    assert len(model.layers()) == 4
    assert model.no_decay() == model.backbone.no_decay()
    assert model.first_layer == model.backbone.first_layer and model.first_layer in model.layers()[0]
    torch.testing.assert_close(model.feature_maps(images)[-1], model.backbone.feature_maps(images)[-1])
    assert model.attention_grids((32, 32)) == model.backbone.attention_grids((32, 32))


def test_no_verb_of_the_backbone_is_forgotten(model):
    public = {name for name in dir(type(model.backbone)) if not name.startswith("_")} - set(dir(nn.Module))
    assert public - {"reset_head", "resize_tensors", "leading"} <= set(dir(Classifier)) | BACKBONE_VERBS


def test_a_model_by_name_takes_changes_and_a_number_or_names_of_classes():
    model = create_classifier("vit-s16", classes=3, **{**SMALL, "image_size": (16, 24)}, in_channels=5)
    assert model.classes == ("0", "1", "2")
    assert model(torch.randn(1, 5, 16, 24)).shape == (1, 3)
    assert model.preprocessing == Preprocessing.paper((16, 24), channels=5)
    given = Preprocessing.timm(32)
    assert create_classifier("vit-s16", classes=["a", "b"], preprocessing=given, **SMALL).preprocessing is given


def test_invalid_options_are_refused():
    for arguments, words in (
        ({"classes": ["a", "b", "a"]}, "class names repeat: a"),
        ({"classes": "names.txt"}, "classes is the text 'names.txt'"),
        ({"classes": 2, "preprocessing": Preprocessing.paper(32, channels=1)}, "1 channels, the model 3"),
        ({"classes": 2, "widht": 64}, "widht"),
    ):
        with pytest.raises(ConfigError, match=words):
            create_classifier("vit-ti16", **SMALL, **arguments)


def test_names_must_be_as_many_as_outputs_and_a_temperature_positive(model):
    with pytest.raises(ConfigError, match="2 class names for 6 outputs"):
        Classifier(model.backbone, ("a", "b"), model.preprocessing)
    with pytest.raises(ConfigError, match="temperature is 0"):
        Classifier(model.backbone, model.classes, model.preprocessing, temperature=0)


def test_softmax_loss_of_indices_is_that_of_their_one_hot_targets():
    logits, targets = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5
    expected = -logits.log_softmax(1)[range(8), targets].mean()
    torch.testing.assert_close(softmax_loss(logits, targets), expected)
    torch.testing.assert_close(softmax_loss(logits, F.one_hot(targets, 5)), expected)
    soft = torch.rand(8, 5).softmax(1)
    torch.testing.assert_close(softmax_loss(logits, soft), -(soft * logits.log_softmax(1)).sum(1).mean())


def test_sigmoid_loss_is_the_mean_over_images_and_classes():
    logits, targets = torch.tensor([[0.0, 2.0]]), torch.tensor([1])
    expected = -(torch.tensor(0.5).log() + torch.tensor(2.0).sigmoid().log()) / 2
    torch.testing.assert_close(sigmoid_loss(logits, targets), expected)
    torch.testing.assert_close(sigmoid_loss(logits, torch.tensor([[0.0, 1.0]])), expected)


def test_binarised_targets_count_every_class_of_a_mixed_image_whole():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    mixed = torch.tensor([[0.7, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 0.01, 0.99]])
    whole = sigmoid_loss(logits, mixed.ceil())
    torch.testing.assert_close(sigmoid_loss(logits, mixed, binarise=True), whole)
    assert not torch.isclose(sigmoid_loss(logits, mixed), whole)


def test_mixed_and_smoothed_targets_are_shares_of_two_classes_and_of_all():
    task, ids = (
        create_classifier("vit-ti16", classes=4, **SMALL),
        np.stack([np.zeros(3), np.arange(3), np.zeros(3)], 1).astype(int),
    )
    images, targets = torch.arange(3.0)[:, None, None, None].expand(3, 3, 8, 8), torch.tensor([0, 1, 3])
    mixed, shares = task.targets.mix(images, targets, ids, Augment(mixup=0.8), seed=0)
    weight = mixed[1, 0, 0, 0]  # 1 where the image is its own, 0 where it is the first one
    torch.testing.assert_close(shares[1], torch.stack([1 - weight, weight, weight * 0, weight * 0]))
    assert 0 < weight < 1
    _, smoothed = task.targets.mix(images, targets, ids, Augment(smoothing=0.2), seed=0)
    torch.testing.assert_close(smoothed[0], torch.tensor([0.85, 0.05, 0.05, 0.05]))
    _, plain = task.targets.mix(images, targets, ids, Augment(), seed=0)
    assert torch.equal(plain, targets)


@pytest.mark.parametrize("loss", [softmax_loss, sigmoid_loss])
def test_losses_are_computed_in_fp32_whatever_the_logits(loss):
    logits = (torch.randn(64, 10, generator=torch.Generator().manual_seed(0)) * 5).bfloat16()
    targets = torch.rand(64, 10).softmax(1)
    found = loss(logits, targets)
    assert found.dtype == torch.float32
    assert torch.equal(found, loss(logits.float(), targets))
