"""Segments of a panoptic answer in the browser: pixels and edges over the picture, the pointer on them, and switches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.serving.browser.page import BROWSER, DESK, PHONE, expect, file
from tests.serving.browser.test_dense import see
from tests.serving.browser.test_instances import move, tint
from tests.serving.browser.test_page import violations
from tests.tasks.dense_models import create
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks.dense.drawing import class_colours
from vitrail.tasks.panoptic.answer import Panoptic, Segment

pytestmark = BROWSER

CLASSES, THINGS, SIZE = ("cat", "dog", "sky"), (True, True, False), (300, 400)
SKY, FIRST, SECOND, VOID = (200, 20), (60, 150), (130, 150), (200, 280)  # x, y


def draw_segments() -> Panoptic:
    """Sky above, two cats side by side, and nothing below."""
    ids = np.zeros(SIZE, np.int32)
    ids[:100], ids[100:200, :100], ids[100:200, 100:200] = 1, 2, 3
    boxes = {"sky": [(0, 0, 400, 100)], "cat": [(0, 100, 100, 200), (100, 100, 200, 200)]}
    found = [(label, 0.9 - 0.2 * row, box) for label in boxes for row, box in enumerate(boxes[label])]
    areas = np.bincount(ids.ravel())[1:].tolist()
    segments = [
        Segment(label, label == "cat", score, area, box) for (label, score, box), area in zip(found, areas, strict=True)
    ]
    return Panoptic(ids, tuple(segments), CLASSES, THINGS)


@pytest.fixture(scope="module")
def address(serve):
    model = create("panoptic", head="queries", classes=CLASSES, things=THINGS)
    return serve(lambda: LoadedModel(model, "panes"))


@pytest.fixture
def meet(visit, address):
    """Opens the page of a panoptic model and gives it a picture, for which it replies with these segments."""

    def begin(screen):
        page = visit(address, size=screen)
        answer = {"predictions": [draw_segments().to_json()]}
        page.route("**/v1/predict*", lambda route: route.fulfill(json=answer))
        see(page, file(height=SIZE[0], width=SIZE[1]))
        expect(page.locator(".best")).to_have_text("3 segments")
        return page

    return begin


def test_segments_are_tinted_with_an_edge_between_those_of_one_class(meet):
    pixels, colour = tint(meet(DESK)), class_colours(CLASSES)["cat"]
    assert pixels.shape[:2] == SIZE
    fill, edge = pixels[150, 60], pixels[150, 99]
    assert 0 < fill[3] < edge[3] == 255
    assert abs(edge[:3] - colour).max() <= 2
    assert pixels[20, 200, 3] == fill[3] and pixels[280, 200, 3] == 0


def test_the_pointer_names_a_segment_and_a_class_is_switched_off(meet):
    page = meet(DESK)
    for spot, name in ((SKY, "sky 0.90"), (FIRST, "cat 0.90"), (SECOND, "cat 0.70"), (VOID, "")):
        move(page, spot)
        expect(page.locator(".reading")).to_have_text(name)
    page.locator(".switch", has_text="cat").click()
    pixels = tint(page)
    assert pixels[150, 60, 3] == pixels[150, 99, 3] == 0 and pixels[20, 200, 3] > 0


@pytest.mark.parametrize("screen", [DESK, PHONE])
def test_the_page_has_no_violations(meet, screen):
    assert violations(meet(screen)) == []
