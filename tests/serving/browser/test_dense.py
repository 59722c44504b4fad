"""Objects and classes of pixels in the browser: over the picture, in lists, with switches and sliders, by pointer and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.serving.browser.page import ATTACK, BROWSER, DESK, PHONE, decoded, expect, file, give, picture_of, wait_for
from tests.serving.browser.test_page import violations
from tests.tasks.dense_models import create
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks.dense.drawing import class_colours

pytestmark = BROWSER

CLASSES = ("background", "cat", ATTACK)
# boxes in shares of the picture, scores, and classes
OBJECTS = (
    (0.1, 0.2, 0.5, 0.8, 0.9, 1),
    (0.3, 0.3, 0.4, 0.4, 0.6, 2),
    (0.6, 0.5, 1.0, 1.0, 0.4, 1),
    (0, 0, 0.1, 0.1, 0.1, 1),
)


@pytest.fixture(scope="module")
def detector(serve):
    """Finds the same objects in every picture."""
    model = create("detection", classes=CLASSES, threshold=0.3)
    height, width = model.preprocessing.size
    found = torch.tensor(OBJECTS) * torch.tensor([width, height, width, height, 1, 1])
    model.detect = lambda outputs: found.expand(len(outputs), -1, -1)
    return serve(lambda: LoadedModel(model, "finder"))


@pytest.fixture(scope="module")
def segmenter(serve):
    """Sees the background in the upper half of every picture, and below it the two other classes side by side."""
    model = create("segmentation", classes=CLASSES)
    logits = torch.zeros(1, 3, 8, 8)
    logits[:, 0, :4] = logits[:, 1, 4:, :4] = logits[:, 2, 4:, 4:] = 9
    model.forward = lambda images: (
        logits.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(len(images), -1, -1, -1)
    )
    return serve(lambda: LoadedModel(model, "painter"))


def see(page, *files) -> None:
    give(page, *files)
    page.locator(".switch").nth(len(files) - 1).wait_for()


def places(page) -> list[list[float]]:
    """Left, top, right and bottom of the boxes, as shares of the picture."""
    pane, found = page.locator(".pane").bounding_box(), []
    for at in range(page.locator(".object").count()):
        box = page.locator(".object").nth(at).bounding_box()
        left, top = (box["x"] - pane["x"]) / pane["width"], (box["y"] - pane["y"]) / pane["height"]
        found.append([left, top, left + box["width"] / pane["width"], top + box["height"] / pane["height"]])
    return found


def saved(page, tmp_path) -> np.ndarray:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    return decoded(open(download.value.path(), "rb").read())


def test_boxes_lie_where_the_objects_are_and_the_list_is_by_score(visit, detector):
    page = visit(detector)
    see(page, file(height=300, width=400))
    order = [0, 2, 1]  # large ones below small ones
    np.testing.assert_allclose(places(page), [OBJECTS[at][:4] for at in order], atol=0.01)
    assert page.locator(".found .label").all_inner_texts() == ["cat", ATTACK, "cat"]
    assert page.locator(".best").inner_text() == "3 objects"
    assert page.locator(".says").inner_text() == f"3 objects: cat 2, {ATTACK} 1."
    assert "threshold=0.3&as=png" in page.locator("#commands").inner_text()


def test_the_threshold_is_moved_by_keys_without_a_request(visit, detector):
    page = visit(detector)
    see(page, file())
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#threshold").focus()
    for _ in range(25):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".object")).to_have_count(4)
    assert page.locator("#threshold").get_attribute("aria-valuetext") == "5 %"
    page.locator("#threshold").fill("70")
    expect(page.locator(".object")).to_have_count(1)
    page.keyboard.press("End")
    expect(page.locator(".best")).to_have_text("No objects")
    assert asked == []


def test_classes_are_switched_by_keys_and_stay_off_for_the_next_picture(visit, detector):
    page = visit(detector)
    see(page, file())
    switch = page.get_by_role("button", name="cat 2")
    switch.focus()
    page.keyboard.press("Space")
    expect(page.locator(".object")).to_have_count(1)
    assert switch.get_attribute("aria-pressed") == "false"
    assert page.evaluate("document.activeElement.className") == "switch"
    give(page, file("two.png", seed=1), place="#tools")
    expect(page.locator(".stage .key")).to_have_text("two.png")
    expect(page.locator(".object")).to_have_count(1)
    page.get_by_role("button", name="cat 2").click()
    expect(page.locator(".object")).to_have_count(3)


def test_an_object_is_lit_from_the_list_and_from_the_picture(visit, detector):
    page = visit(detector)
    see(page, file(height=300, width=400))
    page.locator(".object-row").nth(2).focus()
    expect(page.locator(".object.on span")).to_have_text("cat 0.40")
    box = page.locator(".object", has_text="0.60").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".object-row.on")).to_have_count(2)  # the other has the focus
    page.mouse.move(5, 5)
    expect(page.locator(".object.on")).to_have_count(1)


def test_a_saved_picture_has_the_boxes_that_are_shown(visit, detector, tmp_path):
    page = visit(detector)
    see(page, file(height=300, width=400))
    colour = class_colours(CLASSES)["cat"]
    assert np.abs(saved(page, tmp_path)[150, 200] - colour).max() < 8
    page.get_by_role("button", name="cat 2").click()
    assert np.abs(saved(page, tmp_path)[150, 200] - colour).max() > 30


def test_attention_is_shown_below_the_boxes(visit, detector):
    page = visit(detector)
    see(page, file())
    assert not page.locator("#heads").is_visible()
    page.get_by_role("group", name="Display options").get_by_text("Attention").click()
    expect(page.locator(".says")).to_contain_text("attention of")
    expect(page.locator(".object")).to_have_count(3)
    page.get_by_text("None", exact=True).click()
    expect(page.locator(".says")).to_contain_text("3 objects")
    assert not page.locator(".scale").is_visible()


def test_a_tint_lies_on_the_pixels_of_its_class_and_is_switched(visit, segmenter):
    page = visit(segmenter)
    see(page, file(height=200, width=200))
    assert page.locator(".switch .label").all_inner_texts() == ["background", "cat", ATTACK]
    read = "document.querySelector('.tint').toDataURL()"
    wait_for(page, "document.querySelector('.tint').width === 200")
    colours = class_colours(CLASSES)
    tint = picture_of(page.evaluate(read))
    assert np.abs(tint[150, 50] - colours["cat"]).max() <= 2 and np.abs(tint[150, 150] - colours[ATTACK]).max() <= 2
    alpha = "[50, 150].map(y => document.querySelector('.tint').getContext('2d').getImageData(50, y, 1, 1).data[3])"
    assert page.evaluate(alpha) == [0, 128]  # the background is switched off at first
    page.locator("#tint").fill("100")
    wait_for(page, f"{alpha}[1] === 255")
    page.get_by_role("button", name="cat").click()
    wait_for(page, f"{alpha}[1] === 0")
    pane = page.locator(".pane").bounding_box()
    page.mouse.move(pane["x"] + pane["width"] * 0.25, pane["y"] + pane["height"] * 0.75)
    assert page.locator(".reading").inner_text() == "cat"


def test_a_new_picture_leaves_nothing_of_the_one_before(visit, segmenter):
    page = visit(segmenter, expected=(422,))
    see(page, file())
    give(page, {"name": "text.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}, place="#tools")
    expect(page.locator(".alarm")).to_contain_text("Invalid image")
    expect(page.locator(".switch, .tint")).to_have_count(0)


@pytest.mark.parametrize(("kind", "schemes"), [("detector", ("dark", "light")), ("segmenter", ("light", "dark"))])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_every_control_is_reachable_and_on_the_screen(request, visit, kind, schemes, size):
    page = visit(request.getfixturevalue(kind), size=size, scheme=schemes[size is DESK])
    see(page, file())
    found = violations(page)
    page.locator(".switch").last.click()
    found += violations(page)
    page.locator("#tools input[type=file]").nth(2).set_input_files(file(seed=1))
    page.locator(".slot").nth(1).locator(".switch").first.wait_for()
    found += violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#to-model").click()
    expect(page.locator("#model-facts")).to_contain_text("of 3" if kind == "detector" else "every pixel, of 3")
    found += violations(page)
    assert found == []


def test_many_pictures_are_listed_with_what_is_on_them(visit, detector, segmenter):
    for address, line in (
        (detector, f"2 cat, 1 {ATTACK}"),
        (segmenter, f"background 50.0 %, cat 25.0 %, {ATTACK} 25.0 %"),
    ):
        page = visit(address)
        give(page, *(file(f"{seed}.png", seed=seed) for seed in range(3)))
        rows = page.locator("#batch tbody tr")
        for row in range(3):
            expect(rows.nth(row).locator("td").nth(2)).to_have_text(line)
        page.get_by_role("button", name="Look at 1.png").click()
        expect(page.locator(".stage .key")).to_have_text("1.png")
