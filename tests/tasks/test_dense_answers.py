"""Answers that lie in a picture: how they are drawn, with which colours, and how they look as tables and in notebooks."""

from __future__ import annotations

import io
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ConfigError, DataError
from vitrail.tasks.answer import Answers
from vitrail.tasks.dense.drawing import INK, PLACES, class_colours, find_middle
from vitrail.tasks.detection.answer import Detections
from vitrail.tasks.segmentation.answer import Segmentation

NAMES = ("cat", "dog", "background", *(f"class {number}" for number in range(20)))
GREY = Image.new("RGB", (200, 100), (128, 128, 128))


def detections(*boxes, classes=NAMES, **more) -> Detections:
    scores = np.linspace(0.9, 0.5, len(boxes), dtype=np.float32)
    found = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(found, scores, classes[: len(boxes)], (100, 200), classes, **more)


def luminance(colour) -> float:
    levels = np.array(colour) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colours_are_those_of_the_names_in_any_order_and_unlike_one_another():
    colours = class_colours(NAMES)
    assert class_colours(NAMES[::-1]) == colours
    assert colours["background"] == (0, 0, 0)
    assert class_colours(["cat"])["cat"] == class_colours(["cat", "tree"])["cat"]
    for first, second in combinations(
        sorted(NAMES), 2
    ):  # of two names for one place, the first in the alphabet keeps it
        assert class_colours([second, first])[first] == class_colours([first])[first]
    few = class_colours([f"name {number}" for number in range(PLACES)]).values()
    assert min(np.abs(np.subtract(one, other)).sum() for one, other in combinations(few, 2)) > 60
    assert len(set(class_colours([str(number) for number in range(24)]).values())) == 24


def test_black_words_are_readable_on_every_colour():
    for colour in class_colours([f"name {number}" for number in range(3 * PLACES)]).values():
        assert (luminance(colour) + 0.05) / (luminance(INK) + 0.05) > 4.5, colour


def test_a_box_is_drawn_on_its_own_pixels_and_is_scaled_with_the_picture():
    answer = detections((40, 30, 100, 80))
    drawn = np.asarray(answer.draw(GREY))
    is_box = (drawn == answer.colours["cat"]).all(-1)
    rows, columns = (is_box[30:].any(axis) for axis in (1, 0))
    assert np.flatnonzero(rows)[[0, -1]].tolist() == [0, 49] and np.flatnonzero(columns)[[0, -1]].tolist() == [40, 99]
    assert (drawn[40:70, 50:90] == 128).all()  # inside of it the picture is as it was
    large = np.asarray(answer.draw_over(GREY.resize((800, 400))))
    assert (large[319, 200] == answer.colours["cat"]).all()
    assert np.asarray(GREY).max() == 128


def test_the_most_certain_object_lies_on_top_and_names_stay_in_the_picture():
    answer = detections((0, 0, 200, 100), (0, 0, 200, 100), classes=("a" * 300, "b"))
    drawn = np.asarray(answer.draw(GREY))
    assert (drawn[50, 0] == answer.colours["a" * 300]).all()
    assert drawn.shape == (100, 200, 3)


def test_classes_are_tinted_but_not_the_background_nor_what_was_not_seen():
    levels = np.full((50, 100), 2, np.uint8)
    levels[:, 50:] = 0
    levels[:, :10] = 255
    answer = Segmentation(levels, NAMES)
    drawn = np.asarray(answer.draw(GREY)).astype(int)
    assert (drawn[:, :98] == 128).all()
    assert (drawn[2, 150] == np.round(128 + 0.45 * (np.array(answer.colours["cat"]) - 128))).all()
    assert ((drawn == answer.colours["cat"]).all(-1).sum()) > 50  # its name


def test_the_middle_of_a_mask_lies_in_its_thickest_part():
    mask = np.zeros((60, 80), bool)
    mask[5, :] = mask[30:50, 10:30] = True
    x, y = find_middle(mask)
    assert 15 < 80 * x < 25 and 35 < 60 * y < 45
    dot = np.zeros((500, 700), bool)
    dot[333, 501] = True
    x, y = find_middle(dot)
    assert (round(700 * x - 0.5), round(500 * y - 0.5)) == (501, 333)


def test_a_map_is_a_png_of_indices_with_the_colours_of_the_classes():
    levels = np.array([[0, 1, 1], [22, 255, 2]], np.uint8)
    answer = Segmentation(levels, NAMES)
    image = Image.open(io.BytesIO(answer.to_png()))
    assert image.mode == "P" and np.array_equal(np.asarray(image), levels)
    assert np.asarray(image.convert("RGB"))[0, 1].tolist() == list(answer.colours["dog"])


def test_a_table_has_a_row_for_each_object_or_class_and_one_for_a_picture_without():
    found = detections((1, 2, 3, 4.125), (0, 0, 9, 9), key="a.png")
    rows = Answers([found, detections(key="b.png")]).to_rows()
    box = {"x0": 1.0, "y0": 2.0, "x1": 3.0, "y1": 4.12}
    assert rows[0] == {"path": "a.png", "label": "cat", "score": 0.9, **box}
    assert [row["path"] for row in rows] == ["a.png", "a.png", "b.png"]
    assert rows[2] == {"path": "b.png", **dict.fromkeys(("label", "score", "x0", "y0", "x1", "y1"))}
    shares = Segmentation(np.array([[0, 1, 1, 255]], np.uint8), NAMES).rows()
    assert shares == [{"label": "dog", "share": 0.5}, {"label": "cat", "share": 0.25}]


def test_a_notebook_shows_the_drawn_picture_and_a_list_of_what_is_on_it():
    hostile = "<script>alert(1)</script>"
    answer = detections((10, 10, 50, 50), classes=(hostile,))
    shown = Answers([answer], [GREY])._repr_html_()
    assert "<img" in shown and "90.0%" in shown and hostile not in shown
    assert "no objects" in Answers([detections()], [GREY])._repr_html_()
    levels = np.zeros((10, 20), np.uint8)
    shown = Answers([Segmentation(levels, NAMES)], [b"no picture"])._repr_html_()
    assert "<img" not in shown and "cat" in shown and "100.0%" in shown


def test_an_answer_without_a_picture_says_what_it_needs(tmp_path):
    with pytest.raises(ConfigError, match=r"answer\.draw\(picture\)"):
        detections().draw()
    with pytest.raises(DataError, match="cannot be drawn on"):
        detections(key=str(tmp_path / "missing.png")).draw()
    GREY.save(tmp_path / "grey.png")
    assert detections((1, 1, 20, 20), key=str(tmp_path / "grey.png")).draw().size == (200, 100)
