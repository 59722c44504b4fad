"""The page of two inspections: safe, both in every section, and on one scale only where that means something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.reports.inspection.test_one_model import found, layer
from tests.reports.reading import PAYLOAD, Page
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.inspection.findings import findings
from vitrail.reports.inspection.pair import drawings, summarise_figures, write_pair


def looked_at(title: str, *distances: tuple[float, ...], size: tuple[int, int] = (12, 16)) -> Inspection:
    heads = [layer(*each) for each in distances]
    given = found()
    return replace(
        given, title=title, image_size=size, heads=heads, findings=findings(heads, given.positions), samples=(), cost=()
    )


def test_figures_are_shares_and_means_relative_to_uniform_attention():
    """Uniform attention is 20 pixels; the second layer has no places that ask."""
    figures = summarise_figures(looked_at("a", (2.0, 16.0), (), (4.0, 8.0), (15.0, 25.0)))
    assert figures["local_heads"] == 3 / 6
    assert figures["global_heads"] == 3 / 6
    assert np.isclose(figures["distance"], np.mean([0.1, 0.8, 0.2, 0.4, 0.75, 1.25]))
    assert np.isclose(figures["distance_low"], 0.45)
    assert np.isclose(figures["distance_high"], 1.0)
    assert figures["growth"] == 0.5  # of 0.45, 0.3, 1.0: the ranks 1, 0, 2 against 0, 1, 2


def test_every_section_has_both_models_and_no_name_is_markup(tmp_path):
    pair = looked_at(PAYLOAD, (2.0, 16.0), (4.0, 8.0), (15.0, 25.0)), looked_at("b", (1.0,), (2.0,), (3.0,))
    page = Page(write_pair(tmp_path, pair).read_text())
    assert page.sections == ["findings", "figures", "distance", "positions", "filters", "run-details"]
    assert len(page.scripts) == 1
    assert page.said.count(PAYLOAD) > 5
    # 3 of 6 heads are local, and all 3
    assert "local heads (distance below 0.5) 50.0 % 100 % +50.0 points" in page.said
    assert {"filters-1.png", "filters-2.png", "positions-1.png", "positions-2.png"} <= {
        each.name for each in tmp_path.iterdir()
    }


def test_pixels_have_one_scale_where_images_have_one_size():
    far, near = ((2.0, 16.0), (4.0, 8.0), (15.0, 200.0)), ((1.0,), (2.0,), (3.0,))
    for size, alike in (((12, 16), True), ((24, 32), False)):
        pair = looked_at("a", *far), looked_at("b", *near, size=size)
        ticks = [plot.count(">200 px<") for name, plot in drawings(pair).items() if name.startswith("attention")]
        assert ticks == [1, alike]
        wording = Page(f"<p>{drawings(pair)['local-heads']}</p>").said
        assert "Local heads" in wording
