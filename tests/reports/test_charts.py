"""Charts: every mark lies where its number says."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from vitrail.reports import charts
from vitrail.reports.charts import (
    Axis,
    Series,
    line_chart,
    smooth_values,
    standalone,
    thin,
    zone_strip,
)
from vitrail.tasks.classification.metric import reliability


def strip(value: tuple[float, float, float], zone: tuple[float, float]) -> tuple[list[float], list[dict]]:
    """Where the dot of a strip lies, and its rectangles: the zone, then the interval."""
    drawn = zone_strip(value, zone, "{:g}".format, colour="cobalt", label="here", says="a strip")
    root = ElementTree.fromstring(drawn)
    dots = [float(each.attrib["cx"]) for each in root.iter() if each.tag.endswith("}circle")]
    return dots, [each.attrib for each in root.iter() if each.tag.endswith("}rect")]


def edges(box: dict[str, str]) -> tuple[float, float]:
    return float(box["x"]), float(box["x"]) + float(box["width"])


def test_a_strip_shows_the_interval_over_the_zone_on_one_scale():
    place = lambda value: 14 + (value + 0.08) / 1.16 * (charts.STRIP - 28)  # noqa: E731 - 8 % around 0 to 1
    dots, (zone, interval) = strip((0.5, 0.2, 1.0), (0.25, math.inf))
    assert dots == [pytest.approx(place(0.5), abs=0.06)]
    assert edges(interval) == (pytest.approx(place(0.2), abs=0.06), pytest.approx(place(1.0), abs=0.11))
    assert edges(zone) == (pytest.approx(place(0.25), abs=0.06), pytest.approx(charts.STRIP - 14, abs=0.11))


def test_a_strip_of_a_single_value_has_a_scale():
    dots, _ = strip((0.0, 0.0, 0.0), (0.0, math.inf))
    assert dots == [pytest.approx(charts.STRIP / 2, abs=0.06)]


def numbers(drawing: str, name: str, *keys: str, **where: str) -> list[tuple[float, ...]]:
    """The attributes ``keys`` of all elements of a drawing with this name and these attributes."""
    found = (each.attrib for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith("}" + name))
    return [tuple(float(each[key]) for key in keys) for each in found if where.items() <= each.items()]


def test_lines_and_ticks_of_a_chart_lie_where_a_pencil_puts_them():
    """From (0, 0) at (50, 214) to (10, 1) at (440, 42), with ticks in quarters."""
    line = Series("loss", np.array([0.0, 5.0, 10.0]), np.array([0.0, 0.25, 1.0]), "cobalt")
    drawing = line_chart("Loss", [line])
    assert 'd="M50.0 214.0h0 L245.0 171.0 L440.0 42.0"' in drawing
    assert numbers(drawing, "line", "y1", "y2") == [(y, y) for y in (214, 171, 128, 85, 42)]
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*text-anchor="(end|middle)">([\d.]+)</text>', drawing)
    assert [each[3] for each in labels] == ["0", "0.25", "0.5", "0.75", "1", "0", "5", "10"]  # no half steps
    assert [float(x) for x, *_ in labels[5:]] == [50.0, 245.0, 440.0]


def test_long_numbers_beside_an_axis_are_smaller_so_that_they_fit():
    line = Series("drift", np.arange(3.0), np.array([0.0, 0.0001, 0.0002]), "cobalt")
    texts = [each for each in ElementTree.fromstring(line_chart("Drift", [line])).iter() if each.tag.endswith("}text")]
    words = {each.text: float(each.attrib["font-size"]) for each in texts}
    assert words["0.0001"] == words["0.0002"] == 11 and words["0.00015"] == pytest.approx(11 * 6 / 7)


def test_an_axis_has_round_ticks_at_their_places():
    axis = Axis(0.3, 10.2, 0, 99)
    assert axis.ticks() == pytest.approx([2.5, 5, 7.5, 10])
    assert [axis.at(tick) for tick in (0.3, 10.2)] == pytest.approx([0, 99])
    log = Axis(0.1, 200, 0, 90, log=True)
    assert log.ticks() == pytest.approx([0.1, 1, 10, 100])
    assert log.place(np.array([0.1, 200])) == pytest.approx([0, 90])
    assert charts.log_axis(np.array([1.0, 60.0]), 0, 1, "{:g}".format).marks == pytest.approx([1, 2, 5, 10, 20, 50])
    values = np.array([-0.4, math.nan, 7.0])
    assert (charts.vertical_axis(values, "{:g}".format).low, charts.tight_axis(values, "{:g}".format).low) == (-2, -0.4)


def test_a_value_and_its_interval_stand_on_a_scale_of_448_units():
    drawing = charts.strip(0.5, (0.25, 0.75), "", 0.125, "chance")
    assert numbers(drawing, "circle", "cx") == [(230.0,)]
    assert numbers(drawing, "rect", "x", "width") == [(118.0, 224.0)]
    assert numbers(drawing, "line", "x1", "x2")[1] == (62.0, 62.0)
    assert "chance: 12.5" in drawing


def test_cells_of_a_confusion_matrix_are_as_strong_as_the_root_of_their_share():
    drawing = charts.confusion_chart(np.array([[3, 1], [0, 4]]), ["a", "b"])
    boxes = numbers(drawing, "rect", "x", "y", "width", "opacity")
    # 36 + 60 column + 0.75, 46 + 60 row + 0.75; 0.9 sqrt(share) + 0.06, and 0.4 for none
    assert boxes == [
        (36.8, 46.8, 58.5, 0.84),
        (96.8, 46.8, 58.5, 0.51),
        (36.8, 106.8, 58.5, 0.4),
        (96.8, 106.8, 58.5, 0.96),
    ]
    assert re.findall(r'fill="var\(--(cobalt|ruby|rule)\)"', drawing) == ["cobalt", "ruby", "rule", "cobalt"]
    assert "<title>1 image of a predicted as b (25.0\u202f%)</title>" in drawing


def test_the_bars_of_a_reliability_diagram_reach_from_the_smaller_to_the_larger():
    bins = reliability(np.array([0.8, 0.8, 0.8, 0.8]), np.array([True, True, True, False]), bins=2)
    accuracy, gap, count = numbers(charts.reliability_chart(bins), "rect", "x", "y", "height")
    # the bin above 0.5; from 246 at 0 to 32 at 1
    assert accuracy == (246.0, 85.5, 160.5) and gap == (246.0, 74.8, 10.7) and count == (246.0, 282.0, 44.0)


def test_a_heat_map_has_a_column_for_each_layer_and_a_row_for_each_head():
    drawing = charts.heat_map("Entropy", [np.array([0.0, 1.0]), np.array([math.nan])])
    assert numbers(drawing, "rect", "x", "y") == [(40.8, 44.8), (40.8, 68.8), (74.8, 44.8)]
    assert re.findall(r'<rect[^>]*fill="(#\w+)"', drawing) == ["#08122c", "#faedc0", "#a3a6ad"]


@pytest.mark.parametrize("values", [[], [np.nan], [0.0], [1.0, 1.0], [-2.0], [1e-9, 1e9], [1e-300, 5, 1e300]])
def test_a_chart_of_odd_values_is_drawn_with_finite_coordinates(values):
    x, y = np.arange(len(values), dtype=float), np.array(values)
    drawing = standalone(
        line_chart("odd", [Series("odd", x, y, "cobalt"), Series("one", np.ones(1), np.ones(1), "ruby")])
    )
    ElementTree.fromstring(drawing)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', drawing)


def test_thinning_keeps_means_and_gaps():
    x, y = thin(np.arange(8.0), np.array([1, 3, np.nan, 5, np.nan, np.nan, 2, 4]), most=4)
    assert x == pytest.approx([0.5, 2.5, 4.5, 6.5])
    assert y == pytest.approx([2, 5, np.nan, 3], nan_ok=True)


def test_smoothing_averages_what_is_finite():
    assert smooth_values(np.array([0, 3, np.nan, 6, 0.0]), 3) == pytest.approx([1.5, 1.5, np.nan, 3, 3], nan_ok=True)
