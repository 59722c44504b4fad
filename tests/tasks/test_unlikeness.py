"""How unlike the training images an image is: the distance against scikit-learn's, the threshold, and what of a classifier's
outputs it changes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.exports.exported import classifier_of
from tests.models.conftest import shaken
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.own_metrics import OwnMetrics
from vitrail.evaluation.unlikeness import auroc, summarize_unlikeness
from vitrail.objectives.supervised import Supervised
from vitrail.plugins import LOSSES, METRICS
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.tasks.classification.unlikeness import SHRINKAGE, Unlikeness

SMALL = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 2, "mlp_width": 64}


def draw(images: int, *, seed: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, 6) of three classes with an uneven covariance, and the classes; class 3 of four has no image."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (images,), generator=generator)
    spread = torch.tensor([3.0, 1.0, 1.0, 0.5, 0.2, 0.1])
    means = 4 * torch.eye(3, 6)[:, torch.tensor([1, 3, 0, 2, 4, 5])] + 20
    return (means[labels] + spread * torch.randn(images, 6, generator=generator) + shift), labels


def fit(*, false_alarms: float = 0.05, held_out: int = 200, seed: int = 1) -> Unlikeness:
    return Unlikeness.fit(*draw(400, seed=0), draw(held_out, seed=seed)[0], 4, false_alarms)


def scale(distances: np.ndarray, held_out: np.ndarray, false_alarms: float = 0.05) -> np.ndarray:
    ordered = np.sort(held_out)
    rank = int(np.ceil((len(ordered) + 1) * (1 - false_alarms)))
    threshold, median = ordered[rank - 1 : rank + 1].mean(), np.median(ordered)
    return (distances - median) / (threshold - median)


def mahalanobis(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    from sklearn.covariance import ShrunkCovariance

    return ShrunkCovariance(shrinkage=SHRINKAGE, assume_centered=True).fit(train).mahalanobis(x)


def test_the_distance_is_that_of_scikit_learn():
    (train, labels), held_out, others = draw(400, seed=0), draw(200, seed=1)[0], draw(50, seed=2, shift=1.0)[0]
    means = [train[labels == each].double().mean(0) for each in range(3)]
    inside, mean = (train - torch.stack(means)[labels]).numpy(), train.double().mean(0)

    def relative(x: torch.Tensor) -> np.ndarray:
        nearest = np.min([mahalanobis(inside, (x - each).numpy()) for each in means], axis=0)
        return nearest - mahalanobis((train - mean).numpy(), (x - mean).numpy())

    expected = scale(relative(others), relative(held_out))
    np.testing.assert_allclose(fit()(others), expected, rtol=1e-4, atol=1e-4)
    several = Unlikeness.fit(train, torch.eye(4)[labels], held_out, 4, 0.05)
    plain = [mahalanobis((train - mean).numpy(), (x - mean).numpy()) for x in (others, held_out)]
    np.testing.assert_allclose(several(others), scale(*plain), rtol=1e-4, atol=1e-4)


def test_of_held_out_images_the_median_is_0_and_the_stated_share_is_above_1():
    for share, alarms in ((0.05, 9), (0.2, 39), (0.005, 0)):  # floor(201 share), less one
        found = fit(false_alarms=share)(draw(200, seed=1)[0])
        assert int((found > 1).sum()) == alarms
        assert abs(float(found.quantile(0.5))) < 1e-4


def test_the_share_holds_for_new_images_on_average_over_draws_of_few_held_out_images():
    new = draw(2000, seed=9)[0]
    shares = [float((fit(held_out=19, seed=seed)(new) > 1).float().mean()) for seed in range(10, 210)]
    assert 0.04 < np.mean(shares) < 0.06


def test_too_few_held_out_images_and_images_that_are_all_the_same_are_refused():
    with pytest.raises(ConfigError, match="18 held-out images are too few") as refused:
        fit(held_out=18)
    assert "0.053" in refused.value.remedy
    fit(held_out=18, false_alarms=0.053)
    same = torch.ones(30, 6)
    with pytest.raises(DataError, match="all the same"):
        Unlikeness.fit(same, torch.zeros(30, dtype=torch.long), same, 2, 0.1)


def test_auroc_is_that_of_scikit_learn_with_ties_and_its_interval_holds():
    from sklearn.metrics import roc_auc_score

    generator = np.random.default_rng(0)
    own, others = generator.integers(0, 9, 70), generator.integers(3, 12, 40)
    truth = np.repeat([0, 1], [70, 40])
    assert auroc(own, others)[0] == pytest.approx(roc_auc_score(truth, np.concatenate([own, others])), abs=1e-12)
    inside = 0
    for _ in range(400):  # normal values a distance of 1 apart: the area is Phi(1 / sqrt(2))
        _, low, high = auroc(generator.normal(size=60), generator.normal(1.0, size=90))
        inside += low < 0.76025 < high
    assert 0.92 < inside / 400 < 0.98
    area, low, high = auroc(np.arange(20), np.arange(20, 60))
    assert (area, high) == (1.0, 1.0) and low == pytest.approx(0.025 ** (1 / 20))


def test_the_figures_are_shares_above_the_threshold_with_exact_intervals():
    figures = summarize_unlikeness(torch.tensor([0.0, 0.5, 1.0, 2.0]), np.array([1.5, 3.0, 0.7]))
    assert (figures["unlike"], figures["ood_unlike"], figures["ood_images"]) == (1 / 4, 2 / 3, 3)
    assert figures["ood_auroc"] == 9 / 12
    assert figures["unlike_low"] == pytest.approx(0.0063, abs=1e-4)
    assert list(summarize_unlikeness(torch.ones(4))) == ["unlike", "unlike_low", "unlike_high"]


def fitted(model: Classifier) -> tuple[Classifier, torch.Tensor]:
    """``model`` with a distance to random images, and further images."""
    images = torch.randn(64, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = model.features(images)
    labels = torch.arange(40) % len(model.classes)
    model.set_unlikeness(Unlikeness.fit(features[:40], labels, features[40:], len(model.classes), 0.1), 0.1)
    return model, images[30:50]


def test_losses_and_metrics_of_one_s_own_see_the_classes_alone(monkeypatch):
    shapes = []
    monkeypatch.setitem(LOSSES, "own", lambda outputs, targets: (shapes.append(outputs.shape), outputs.sum())[1])
    monkeypatch.setitem(METRICS, "own", lambda values, targets: (shapes.append(values.shape), 0.0)[1])
    model, images = fitted(shaken(create_classifier("vit-ti16", classes=["ant", "bee"], **SMALL)).eval())
    targets, metrics = torch.zeros(len(images), dtype=torch.int64), OwnMetrics(["own"], model)
    metrics.add(model(images), targets)
    metrics.compute()
    model.train()
    Supervised(model, "own")(images, targets)
    assert shapes == [(len(images), 2)] * 2 and model(images).shape[1] == 2


@pytest.mark.parametrize("multi_label", [False, True])
def test_what_a_model_answers_of_classes_stays_bit_for_bit(multi_label):
    names = ["ant", "bee", "cat", "dog"]
    plain = shaken(create_classifier("vit-ti16", classes=names, multi_label=multi_label, **SMALL)).eval()
    model, images = fitted(
        shaken(create_classifier("vit-ti16", classes=names, multi_label=multi_label, **SMALL)).eval()
    )
    with torch.no_grad():
        before, outputs = plain(images), model(images)
    assert outputs.shape == (20, 5) and torch.equal(outputs[:, :4], before)
    assert torch.equal(model.probabilities(outputs), plain.probabilities(before))
    targets = (torch.arange(80).view(20, 4) % 3 == 0).float() if multi_label else torch.arange(20) % 4
    assert model.loss(outputs, targets) == plain.loss(before, targets)
    assert model.measure(outputs, targets) == plain.measure(before, targets)
    metrics = model.metric(), plain.metric()
    for metric, each in zip(metrics, (outputs, before)):
        metric.update(each, targets, list(map(str, range(20))))
    assert metrics[0].compute() == metrics[1].compute()
    for answer, other, value in zip(model.decode(outputs), plain.decode(before), outputs[:, 4].tolist()):
        assert (answer.top, answer.unlikeness, answer.unknown) == (other.top, value, value > 1)
        assert answer.row() == {**other.row(), "unknown": value > 1, "unlikeness": round(value, 4)}
        assert answer.to_json().items() >= other.to_json().items() and other.unlikeness is None
        assert ("unlike the training images" in str(answer.show())) == (value > 1)
    assert {name: each.shape for name, each in model.reply_arrays(outputs).items() if name == "unlikeness"} == {
        "unlikeness": (20,)
    }


def test_outputs_go_through_a_graph_and_answers_agree_where_both_say_unlike():
    model, images = fitted(classifier_of("deit"))  # of two heads
    with torch.no_grad():
        outputs, graph = model(images), model.graph(images)
    assert tuple(graph) == model.graph_outputs == ("logits", "features", "unlikeness")
    assert torch.equal(model.read_graph(graph), outputs) and torch.equal(graph["unlikeness"], outputs[:, -1])
    named = model.name_outputs(outputs)
    assert model.agreement(named, named) == 1.0
    turned = {**named, "unlikeness": torch.where(torch.arange(20) < 5, 2 - named["unlikeness"], named["unlikeness"])}
    assert model.agreement(named, turned) == 0.75


def test_it_is_computed_in_fp32_under_autocast():
    model, images = fitted(classifier_of("vit"))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features, outputs = model.features(images), model(images)
    expected = model.own["unlikeness"](features.float())
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs[:, -1], expected, rtol=1e-5, atol=1e-5)


def test_a_share_that_is_none_and_a_model_without_a_head_are_refused():
    for classes, share in ((2, 0.0), (2, 1.0), (0, 0.1)):
        with pytest.raises(ConfigError, match="false alarms are"):
            create_classifier("vit-ti16", classes=classes, **SMALL).set_unlikeness(Unlikeness(32, classes), share)
