"""Labels that may be wrong: the rule by hand, the folds, and labels that were exchanged on purpose."""

from __future__ import annotations

import numpy as np

from tests.evaluation.test_probes import clouds
from vitrail.evaluation.label_errors import FOLDS, find_suspects, predict_held_out, rank_suspects
from vitrail.evaluation.probes import STRENGTHS, predict_folds


def test_as_many_are_suspected_as_are_confidently_of_another_class() -> None:
    targets = np.array([0, 0, 1, 1, 1])
    # the mean probabilities of the given labels are 0.59 and 0.6
    probabilities = np.array([[0.8, 0.2], [0.38, 0.62], [0.1, 0.9], [0.45, 0.55], [0.65, 0.35]])
    assert rank_suspects(probabilities, targets).tolist() == [4, 1]
    # that of the first class is now 0.615, which the last image does not reach
    probabilities[0], probabilities[4] = (0.85, 0.15), (0.61, 0.39)
    assert rank_suspects(probabilities, targets).tolist() == [1]
    assert not len(rank_suspects(np.eye(2)[targets], targets))


def test_held_out_probabilities_are_those_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, targets = clouds(100, apart=0.5)
    folds, chosen = np.random.default_rng(0).integers(0, 4, len(targets)), {}
    for strength in STRENGTHS[2:6]:
        oracle = np.zeros((len(targets), 3))
        for fold in range(4):
            rows = folds == fold
            penalty = strength * (~rows).sum()
            fit = make_pipeline(StandardScaler(), LogisticRegression(C=1 / penalty, tol=1e-9, max_iter=5_000))
            oracle[rows] = fit.fit(train[~rows].astype(np.float64), targets[~rows]).predict_proba(train[rows])
        chosen[strength] = oracle
    best = max(chosen, key=lambda strength: np.log(chosen[strength][np.arange(100), targets]).mean())
    found = np.exp(predict_folds(train, targets, folds, classes=3, strengths=STRENGTHS[2:6]))
    np.testing.assert_allclose(found, chosen[best], atol=1e-3)


def test_an_equal_image_does_not_speak_for_its_own_label() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(100, 200)).astype(np.float32).repeat(2, 0)  # nothing to be learned from
    targets, contents = generator.integers(0, 2, 100).repeat(2), np.arange(100).repeat(2)
    apart = predict_held_out(features, targets, np.arange(200)).argmax(1) == targets
    together = predict_held_out(features, targets, contents).argmax(1) == targets
    assert apart.mean() > 0.75 and together.mean() < 0.65


def test_exchanged_labels_are_found_and_the_least_probable_comes_first() -> None:
    features, targets = clouds(150, apart=4)
    given = targets.copy()
    given[[3, 40, 77]] = (targets[[3, 40, 77]] + 1) % 3
    names = [("train", f"{row}.png") for row in range(150)]
    suspects, notes = find_suspects(features, given, np.arange(150), names, ("ant", "bee", "cat"))
    assert {suspect.path for suspect in suspects} == {"3.png", "40.png", "77.png"} and not notes
    assert all(suspect.suggested == ("ant", "bee", "cat")[targets[int(suspect.path[:-4])]] for suspect in suspects)
    own = [suspect.given_probability for suspect in suspects]
    assert own == sorted(own) and all(suspect.probability > suspect.given_probability for suspect in suspects)


def test_of_very_many_classes_an_even_part_is_examined_and_the_note_is_true(monkeypatch) -> None:
    targets = np.arange(480) // 2 % 40  # 40 classes, in pairs of equal images
    features = np.eye(40, dtype=np.float32)[targets] + np.random.default_rng(0).normal(size=(480, 40), scale=0.01)
    given = targets.copy()
    given[:2] = 39  # an image of the first class
    names = [("train", str(row)) for row in range(480)]
    monkeypatch.setattr("vitrail.evaluation.label_errors.LEAST", 5)
    monkeypatch.setattr("vitrail.evaluation.label_errors.WORK", 40 * 5 * 4**2)
    suspects, notes = find_suspects(features, given, np.arange(480) // 2, names, [str(label) for label in range(40)])
    assert notes == ["labels of 20 of 480 images examined, evenly spaced in 4 of 40 classes"]
    assert (suspects[0].path, suspects[0].given, suspects[0].suggested) == ("0", "39", "0")


def test_small_classes_are_left_out_with_their_counts() -> None:
    features, targets = clouds(150, apart=4)
    kept = np.flatnonzero((targets != 1) | (np.arange(150) < 3 * (FOLDS - 1)))  # all but four of the bees
    names = [("train", f"{row}.png") for row in kept.tolist()]
    suspects, notes = find_suspects(features[kept], targets[kept], kept, names, ("ant", "bee", "cat"))
    assert not suspects
    assert notes == ["labels not examined, of classes with fewer than 5 different images: bee 4"]
    one = targets[kept] != 0  # the cats alone remain
    names = [name for name, known in zip(names, one) if known]
    _, notes = find_suspects(features[kept][one], targets[kept][one], kept[one], names, ("ant", "bee", "cat"))
    assert notes[1:] == ["labels not examined: that takes two classes"]
