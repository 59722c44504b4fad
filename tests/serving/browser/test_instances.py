"""Masks of objects in the browser: their pixels over the picture, the pointer on them, the list, and the switch to boxes."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import binary_erosion

from tests.serving.browser.page import ATTACK, BROWSER, DESK, PHONE, expect, file, give, settle, wait_until
from tests.serving.browser.test_dense import places, saved, see
from tests.serving.browser.test_page import violations
from tests.tasks.dense_models import create
from vitrail.images.rle import Rle
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks.dense.drawing import class_colours

pytestmark = BROWSER

CLASSES = ("background", "cat", ATTACK)
COLOURS = class_colours(CLASSES)
SIZE = (300, 400)
# a disc, a square on it, and a part of the lower right corner; the last one has a score below the threshold
Y, X = np.mgrid[: SIZE[0], : SIZE[1]]
MASKS = (
    ("cat", 0.9, (X - 120) ** 2 + (Y - 150) ** 2 < 80**2),
    (ATTACK, 0.6, (abs(X - 120) < 20) & (abs(Y - 150) < 20)),
    ("cat", 0.4, X + Y > 550),
    ("cat", 0.1, (X < 40) & (Y < 40)),
)
DISC, RIM, SQUARE, CORNER, ON_BOTH = (80, 200), (120, 71), (120, 150), (390, 290), (125, 155)  # x, y
BESIDE = (45, 75)  # in the box of the disc
FILL = 102


def describe(label, score, mask) -> dict:
    rle = Rle.of_patch(mask, (0, 0), mask.shape)
    counts = {"size": list(rle.size), "counts": rle.to_text()}
    return {"label": label, "score": score, "box": list(rle.box), "area": int(mask.sum()), "mask": counts}


def reply_of(masks) -> dict:
    height, width = masks[0][2].shape
    return {"width": width, "height": height, "objects": [describe(*found) for found in masks]}


@pytest.fixture(scope="module")
def address(serve):
    model = create("detection", classes=CLASSES, threshold=0.3)
    return serve(lambda: LoadedModel(model, "finder"))


@pytest.fixture
def meet(visit, address):
    """Opens the page of a model with the task "instances" that gives this reply for every picture."""

    def begin(reply=None, **how):
        page = visit(address, **how)
        answer = {"predictions": [reply_of(MASKS) if reply is None else reply]}
        page.route("**/v1/model", lambda route: route.fulfill(json={**route.fetch().json(), "task": "instances"}))
        page.route("**/v1/predict*", lambda route: route.fulfill(json=answer))
        page.reload()
        return page

    return begin


def tint(page) -> np.ndarray:
    """The pixels above the picture, int32 (H, W, 4)."""
    settle(page)
    url = page.evaluate("document.querySelector('.tint').toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGBA"), np.int32)


def alphas(page, *spots) -> list[int]:
    shown = tint(page)
    return [int(shown[y, x, 3]) for x, y in spots]


def move(page, spot) -> None:
    pane = page.locator(".pane").bounding_box()
    x, y = ((at + 0.5) / side for at, side in zip(spot, SIZE[::-1]))
    page.mouse.move(pane["x"] + x * pane["width"], pane["y"] + y * pane["height"])


def call(page, function: str, *arguments):
    script = "async ([name, args]) => (await import('/page/rle.js'))[name](...args)"
    return page.evaluate(script, [function, list(arguments)])


def edges_of(mask) -> list[int]:
    """Where the runs of a mask begin and end."""
    return np.flatnonzero(np.diff(np.concatenate([[0], mask.T.ravel(), [0]]))).tolist()


def drawn(edges, size) -> np.ndarray:
    mask = np.zeros(size[0] * size[1], bool)
    for start, stop in np.reshape(edges, (-1, 2)).astype(int):
        mask[start:stop] = True
    return mask.reshape(size, order="F")


def test_compressed_run_lengths_are_decoded(visit, address):
    """The first texts are pycocotools' and decoded by hand."""
    page = visit(address)
    known = {
        "41202": [4, 5, 7, 8],  # 4, 1, 2, 1, 4
        "01;": [0, 1],  # 0, 1, 11: the first pixel
        "04": [0, 4],  # all of four pixels
        "i0": [],  # 25 pixels, none of them
        "jU1X1?:d0_Nfo0g3gc0": [1210, 1250, 1265, 1315, 1350, 1351, 2400, 2520],
    }
    assert {text: call(page, "decode", text) for text in known} == known
    generator = np.random.default_rng(0)
    for share in (0.01, 0.5, 0.99):
        mask = np.kron(generator.random((9, 11)) < share, np.ones((31, 17), bool))
        text = Rle.of_patch(mask, (0, 0), mask.shape).to_text()
        assert call(page, "decode", text) == edges_of(mask)


def test_masks_are_thinned_out_eroded_and_asked_by_place(visit, address):
    page = visit(address)
    mask = np.kron(np.random.default_rng(1).random((7, 8)) < 0.7, np.ones((5, 6), bool))
    mask[:, 20] = mask[3] = True
    for step in (1, 2, 3):
        small = mask[::step, ::step]
        edges = call(page, "sample", edges_of(mask), len(mask), step)
        np.testing.assert_array_equal(drawn(edges, small.shape), small)
        for width in (1, 2):
            cross = np.zeros((2 * width + 1, 2 * width + 1), bool)
            cross[width] = cross[:, width] = True
            inner = drawn(call(page, "erode", edges, len(small), width), small.shape)
            np.testing.assert_array_equal(inner, binary_erosion(small, cross))
    all_places = list(range(mask.size))
    script = "async ([mask, all]) => { const { covers } = await import('/page/rle.js'); return all.map(at => covers(mask, at)) }"
    assert page.evaluate(script, [edges_of(mask), all_places]) == mask.T.ravel().tolist()


def test_masks_lie_on_their_pixels_with_an_outline_and_small_ones_on_top(meet):
    page = meet()
    see(page, file(height=300, width=400))
    shown = tint(page)
    assert shown.shape == (*SIZE, 4)
    np.testing.assert_array_equal(shown[..., 3] > 0, MASKS[0][2] | MASKS[2][2])
    outline = MASKS[0][2] & ~binary_erosion(MASKS[0][2])
    assert set(shown[outline][:, 3]) == {255}
    assert alphas(page, DISC, SQUARE, CORNER) == [FILL] * 3
    for (x, y), label in ((DISC, "cat"), (SQUARE, ATTACK), (CORNER, "cat"), (RIM, "cat")):
        assert np.abs(shown[y, x, :3] - COLOURS[label]).max() <= 2, label
    for side in ("border-left-color", "border-top-color"):
        expect(page.locator(".object").first).to_have_css(side, "rgba(0, 0, 0, 0)")


def test_the_list_tells_the_area_in_pixels_and_as_a_share_of_the_picture(meet):
    page = meet()
    see(page, file(height=300, width=400))
    assert page.locator(".best").inner_text() == "3 objects"
    area = int(MASKS[0][2].sum())
    assert page.locator(".object-row .area").first.inner_text() == f"{area:,} px, {area / 1200:.1f} % of the picture"
    assert page.locator(".object-row .area").nth(1).inner_text() == "1,521 px, 1.27 % of the picture"
    assert page.locator(".object-row .score").all_inner_texts() == ["90.0 %", "60.0 %", "40.0 %"]


def test_the_smallest_mask_under_the_pointer_is_lit_and_the_others_are_dimmed(meet):
    page = meet()
    see(page, file(height=300, width=400))
    lit = page.locator(".object-row.on .label")
    for spot, label, stronger, dimmer in (
        (ON_BOTH, ATTACK, SQUARE, [DISC, CORNER]),
        (DISC, "cat", DISC, [CORNER]),
        (CORNER, "cat", CORNER, [DISC, SQUARE]),
    ):
        move(page, spot)
        expect(lit).to_have_text([label])
        strong, *others = alphas(page, stronger, *dimmer)
        assert strong > FILL and max(others) < FILL, spot
        expect(page.locator(".object.on span")).to_have_count(1)
    move(page, BESIDE)
    expect(lit).to_have_count(0)
    assert alphas(page, DISC, SQUARE, CORNER) == [FILL] * 3


def test_an_object_is_lit_by_the_focus_of_its_row_also_where_a_smaller_one_covers_it(meet):
    page = meet()
    see(page, file(height=300, width=400))
    page.locator(".object-row").first.focus()
    expect(page.locator(".object.on span")).to_have_text("cat 0.90")
    shown = tint(page)
    assert np.abs(shown[150, 120, :3] - COLOURS["cat"]).max() <= 2
    assert shown[150, 120, 3] == shown[200, 80, 3] > FILL > shown[290, 390, 3]
    page.locator("#threshold").focus()
    assert alphas(page, DISC, CORNER) == [FILL] * 2


def test_masks_and_boxes_are_switched_by_keys_and_stay_so_for_the_next_picture(meet):
    page = meet()
    see(page, file(height=300, width=400))
    shapes = page.get_by_role("group", name="Show objects as").get_by_role("button")
    assert [each.get_attribute("aria-pressed") for each in shapes.all()] == ["true", "false"]
    shapes.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".tint")).to_have_count(0)
    assert [each.get_attribute("aria-pressed") for each in shapes.all()] == ["false", "true"]
    assert page.evaluate("document.activeElement.value") == "boxes"
    np.testing.assert_allclose(places(page)[0], [41 / 400, 71 / 300, 200 / 400, 230 / 300], atol=0.01)
    move(page, BESIDE)
    expect(page.locator(".object-row.on")).to_have_count(1)
    give(page, file("two.png", height=300, width=400, seed=1), place="#tools")
    expect(page.locator(".stage .key")).to_have_text("two.png")
    expect(page.locator(".object")).to_have_count(3)
    expect(page.locator(".tint")).to_have_count(0)
    shapes.first.click()
    expect(page.locator(".tint")).to_have_count(1)


def test_without_masks_there_are_boxes_and_no_switch(meet):
    reply = reply_of(MASKS)
    for found in reply["objects"]:
        del found["mask"], found["area"]
    page = meet(reply)
    see(page, file(height=300, width=400))
    expect(page.get_by_role("group", name="Show objects as")).to_have_count(0)
    expect(page.locator(".tint, .area")).to_have_count(0)
    move(page, BESIDE)
    expect(page.locator(".object-row.on")).to_have_count(1)


def test_an_object_without_a_mask_keeps_its_box_beside_masks(meet):
    reply = reply_of(MASKS)
    del reply["objects"][2]["mask"]
    page = meet(reply)
    see(page, file(height=300, width=400))
    assert alphas(page, DISC, CORNER) == [FILL, 0]
    move(page, CORNER)
    expect(page.locator(".object.on:not(.masked)")).to_have_count(1)


def test_the_threshold_and_the_switches_of_classes_hide_masks(meet):
    page = meet()
    see(page, file(height=300, width=400))
    page.locator("#threshold").fill("5")
    expect(page.locator(".object-row")).to_have_count(4)
    assert alphas(page, (10, 10), DISC) == [FILL] * 2
    page.locator("#threshold").fill("50")
    expect(page.locator(".object-row")).to_have_count(2)
    assert alphas(page, (10, 10), DISC, CORNER) == [0, FILL, 0]
    page.get_by_role("button", name="cat 1").click()
    expect(page.locator(".object-row")).to_have_count(1)
    assert alphas(page, DISC, SQUARE) == [0, FILL]
    assert "threshold=0.5&as=png" in page.locator("#commands").inner_text()


def test_a_saved_picture_has_the_masks_that_are_shown(meet, tmp_path):
    page = meet()
    see(page, file(height=300, width=400))
    masked = saved(page, tmp_path)
    page.get_by_role("button", name="cat 2").click()
    expect(page.locator(".object-row")).to_have_count(1)
    plain = saved(page, tmp_path)
    x, y = DISC
    expected = plain[y, x] + (np.array(COLOURS["cat"]) - plain[y, x]) * 0.4
    assert np.abs(masked[y, x] - expected).max() <= 2
    np.testing.assert_array_equal(masked[75:120, 38:45], plain[75:120, 38:45])  # beside the disc, where its box is


def test_a_map_of_attention_is_seen_through_outlines(meet):
    page = meet()
    see(page, file(height=300, width=400))
    page.get_by_role("group", name="Display options").get_by_text("Rollout").click()
    expect(page.locator(".says")).to_contain_text("Rollout:")
    wait_until(page, lambda: alphas(page, DISC, RIM) == [0, 255], "the outline without the fill")


@pytest.mark.parametrize(("size", "shown"), [((90, 120), (450, 600)), ((1500, 2100), (750, 1050))])
def test_masks_of_small_pictures_are_enlarged_and_of_large_ones_reduced(meet, size, shown):
    mask = np.zeros(size, bool)
    mask[size[0] // 3 :, size[1] // 2 :] = True
    page = meet(reply_of([("cat", 0.9, mask)]))
    see(page, file(height=90, width=120))
    alpha = tint(page)[..., 3]
    assert alpha.shape == shown
    assert (alpha > 0).mean() == pytest.approx(mask.mean(), abs=2e-3)
    assert alpha[0, 0] == alpha[-1, 0] == 0 and alpha[-1, -1] == 255


def test_a_new_picture_leaves_no_masks_of_the_one_before(meet):
    page = meet(expected=(422,))
    see(page, file(height=300, width=400))
    page.unroute("**/v1/predict*")
    give(page, {"name": "text.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}, place="#tools")
    expect(page.locator(".alarm")).to_contain_text("Invalid image")
    expect(page.locator(".tint, .object, .object-row")).to_have_count(0)


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_every_control_is_reachable_and_on_the_screen(meet, size, scheme):
    page = meet(size=size, scheme=scheme)
    see(page, file(height=300, width=400))
    found = violations(page)
    page.get_by_role("button", name="Boxes").click()
    found += violations(page)
    page.locator("#tools input[type=file]").nth(2).set_input_files(file(seed=1, height=300, width=400))
    page.locator(".slot").nth(1).locator(".switch").first.wait_for()
    page.get_by_role("button", name="Masks").nth(1).click()
    expect(page.locator(".tint")).to_have_count(2)  # two pictures share the switch
    found += violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#to-model").click()
    expect(page.locator("#model-facts")).to_contain_text("objects of 3 classes with their masks")
    assert found == []


def test_many_pictures_are_listed_with_the_objects_on_them(meet):
    page = meet()
    give(page, *(file(f"{seed}.png", seed=seed) for seed in range(3)))
    rows = page.locator("#batch tbody tr")
    for row in range(3):
        expect(rows.nth(row).locator("td").nth(2)).to_have_text(f"2 cat, 1 {ATTACK}")
