"""`vitrail explain --masks`: the table, the files, and what is left out or refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.looked_at import picture, shaken
from tests.models.tiny import TINY
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.inference.options import InferenceOptions
from vitrail.verbs.explain import scores
from vitrail.verbs.explain.scores import measure_localisation
from vitrail.weights.native import save_model

QUIET = InferenceOptions(device="cpu", quiet=True)


@pytest.fixture
def photos(tmp_path):
    """Four photographs, a mask for three of them, of which one covers all."""
    for folder in ("photos", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(4):
        picture(32, 40, seed=number).save(tmp_path / "photos" / f"{number}.png")
    for number, right in ((0, 20), (1, 10), (2, 40)):
        mask = np.zeros((32, 40), np.uint8)
        mask[:, :right] = 1
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    return tmp_path


def evaluate(photos, model=None, log=lambda line: None, **changes):
    model = shaken() if model is None else model
    return measure_localisation(model, [str(photos / "photos")], photos / "masks", inference=QUIET, log=log, **changes)


def test_images_with_a_mask_are_measured_and_summarised(photos, monkeypatch):
    """Shares are set here: images 0 and 1 with areas 1/2 and 1/4."""
    nothing = float("nan")
    first, second = (
        {"rollout": (0.7, 0.5), "gradient": (nothing, nothing)},
        {"rollout": (0.35, 0.3), "gradient": (0.2, 0.1)},
    )
    given = iter([first, second])
    monkeypatch.setattr(scores, "measure_shares", lambda model, images, mask: next(given))
    said = []
    result = evaluate(photos, log=said.append, out=photos / "out")
    assert said == [
        f"1 image without a mask in {photos / 'masks'} left out",
        "1 image left out: the mask covers nothing or everything of what the model sees",
    ]
    assert result.area == 0.375
    rollout, gradient = result.scores
    assert rollout.inside == pytest.approx(0.525)
    assert rollout.gain == pytest.approx((0.15, 0.1, 0.2))
    assert (rollout.above, result.holds) == (1.0, True)
    assert (gradient.inside, gradient.gain, gradient.above, gradient.overlap) == (0.2, None, 0.0, 0.1)
    assert rollout.row() == ("rollout", "0.525", "+0.150 [+0.100, +0.200]", "100%", "0.400")
    figures = json.loads((photos / "out" / "masks.json").read_text())
    assert (figures["images"], figures["rollout_gain"], figures["holds"]) == (2, pytest.approx(0.15), True)
    with open(photos / "out" / "masks.csv", newline="") as file:
        assert [(row["rollout"], row["rollout overlap"]) for row in csv.DictReader(file)] == [
            ("0.7", "0.5"),
            ("0.35", "0.3"),
        ]


@pytest.mark.parametrize(
    ("shares", "holds"), [(((0.5, 0.6), (0.5, 0.4)), None), (((0.5, 0.4), (0.5, 0.3)), False), (((0.5, 0.6),), None)]
)
def test_the_finding_holds_does_not_or_is_not_clear(shares, holds):
    measured = [{"path": str(at), "area": area, "rollout": share} for at, (area, share) in enumerate(shares)]
    rows = [{**row, "rollout overlap": 0.5} for row in measured]
    assert scores._summarise_shares(rows).holds is holds


def test_the_area_is_that_of_what_the_model_sees(photos):
    result = evaluate(photos)  # squashed to 32 x 32, nothing is cropped
    assert [row["area"] for row in result.rows] == pytest.approx([0.5, 0.25])
    assert [score.method for score in result.scores] == [
        *(f"layer {layer}" for layer in range(3)),
        "best head",
        "rollout",
        "gradient",
    ]


def test_python_and_the_command_line_print_the_same_figures(photos, capsys):
    model = save_model(photos / "model", shaken())
    args = [str(photos / "photos"), "--masks", str(photos / "masks"), "--device", "cpu", "--quiet"]
    assert run(["explain", str(model), *args, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = vitrail.explain(str(model), str(photos / "photos"), masks=photos / "masks", device="cpu", quiet=True)
    assert printed == pytest.approx(result.figures(), abs=1e-6)
    assert run(["explain", str(model), *args]) == 0
    out = capsys.readouterr().out
    assert "over 2 images whose masks cover 37.5% of what the model sees" in out
    assert "the model attends to regions that are semantically relevant" in out


def test_masks_without_attention_or_area_are_refused(photos):
    with pytest.raises(DataError, match=r"nowhere is not a folder of masks"):
        measure_localisation(shaken(), [str(photos / "photos")], photos / "nowhere", inference=QUIET)
    (photos / "empty").mkdir()
    with pytest.raises(DataError, match=r"none of 4 images has a mask in .*empty\n.*0\.png"):
        measure_localisation(shaken(), [str(photos / "photos")], photos / "empty", inference=QUIET)
    with pytest.raises(ConfigError, match="no attention"):
        evaluate(photos, shaken(TINY["bit"]))
    with pytest.raises(ConfigError, match="two tables"):
        vitrail.explain(shaken(), str(photos / "photos"), masks=photos / "masks", faithfulness=True)
    for number in (0, 1):
        (photos / "masks" / f"{number}.png").unlink()
    with pytest.raises(DataError, match="no image with a mask could be measured"):
        evaluate(photos)
    for folder in ("a", "b"):
        (photos / folder).mkdir()
        picture(32, 40).save(photos / folder / "2.png")
    with pytest.raises(ConfigError, match=r"stands for .*a/2\.png and .*b/2\.png"):
        measure_localisation(shaken(), [str(photos / "a"), str(photos / "b")], photos / "masks", inference=QUIET)
