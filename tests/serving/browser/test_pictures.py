"""Pictures in the browser: their answers, and where the model looks, by every method, slider, pointer and key."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.serving.browser.page import (
    BROWSER,
    DESK,
    PHONE,
    decoded,
    expect,
    file,
    give,
    model,
    photograph,
    picture_of,
    pixels,
    says,
    see,
    settle,
    wait_until,
)

pytestmark = BROWSER


def shows(page, content: bytes) -> bool:
    """Whether the canvas has the pixels of this file, but for what JPEG does to them."""
    shown, given = picture_of(pixels(page)), decoded(content)
    return shown.shape == given.shape and np.abs(shown - given).mean() < 3


def test_a_chosen_picture_is_answered_in_bars(visit, address, small):
    page = visit(address)
    see(page, file())
    bars = page.locator(".bars li")
    assert bars.count() == 5
    (answer,) = small.model.predict(photograph(), top=5)
    best = answer.top
    assert page.locator(".best").inner_text() == best[0][0]
    assert [bars.nth(at).locator(".label").inner_text() for at in range(5)] == [label for label, _ in best]
    shares = page.evaluate(
        "[...document.querySelectorAll('.bars li')].map(bar => Number(bar.style.getPropertyValue('--share')))"
    )
    assert shares == pytest.approx([score for _, score in best], abs=1e-4)
    page.locator("#top").select_option("10")
    expect(bars).to_have_count(10)


def test_sliders_move_the_light_at_once_and_without_a_request(visit, address):
    page = visit(address)
    see(page, file())
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert says(page) == "Layer 2, mean of all heads: attention of the class token."
    seen = {pixels(page)}
    for slider, value, words in (
        ("#layer", "0", "Layer 0, mean of all heads"),
        ("#head", "2", "Layer 0, head 1"),
        ("#head", "3", "Layer 0, head 2"),
    ):
        page.locator(slider).fill(value)
        expect(page.locator(".says")).to_contain_text(words)
        seen.add(pixels(page))
    page.locator("#opacity").fill("40")
    settle(page)
    seen.add(pixels(page))
    page.get_by_text("Colours").click()
    settle(page)
    seen.add(pixels(page))
    assert len(seen) == 6
    assert asked == []


def test_no_strength_is_the_picture_itself(visit, address):
    page = visit(address)
    see(page, file(height=400, width=400))
    page.locator("#opacity").fill("0")
    settle(page)
    assert shows(page, photograph(400, 400))


def test_light_is_that_of_explain(visit, address):
    """The same picture by the page's canvas and by the server's PNG."""
    page = visit(address)
    see(page, file(height=400, width=400))
    page.locator("#layer").fill("1")
    page.locator("#head").fill("3")
    page.locator("#opacity").fill("100")
    expect(page.locator(".says")).to_contain_text("Layer 1, head 2")
    settle(page)
    asked = f"{address}v1/explain?method=attention&layer=1&head=2&as=png"
    served = decoded(page.request.post(asked, multipart={"image": file(height=400, width=400)}).body())
    shown = picture_of(pixels(page))
    assert served.shape == shown.shape
    assert np.abs(served - shown).mean() < 3


def test_the_photograph_is_seen_at_first_and_each_manner_keeps_its_strength(visit, address):
    page = visit(address)
    see(page, file(height=200, width=400))
    strength = page.locator("#opacity")
    assert strength.input_value() == "70"
    settle(page)
    shown, given = picture_of(pixels(page)), decoded(photograph(200, 400))
    outside = shown[:, :90].mean() / given[:, :90].mean()  # the model sees the square in the middle
    assert 0.5 < outside < 0.7
    page.get_by_text("Colours").click()
    assert strength.input_value() == "55"
    strength.fill("30")
    page.get_by_text("Light", exact=True).click()
    assert strength.input_value() == "70"
    page.get_by_text("Colours").click()
    assert strength.input_value() == "30"


def test_a_pressed_patch_asks_and_arrows_move_it(visit, address):
    page = visit(address)
    see(page, file(height=120, width=120))
    pane = page.locator(".pane")
    bounds = pane.bounding_box()
    page.mouse.move(bounds["x"] + bounds["width"] * 0.3, bounds["y"] + bounds["height"] * 0.6)
    assert re.fullmatch(r"row 2, column 1: .* %", page.locator(".reading").inner_text())
    before = pixels(page)
    page.mouse.click(bounds["x"] + bounds["width"] * 0.3, bounds["y"] + bounds["height"] * 0.6)
    expect(page.locator(".says")).to_contain_text("attention of the patch in row 2, column 1")
    assert pixels(page) != before
    cell = page.locator(".cell.asking").bounding_box()
    assert cell["width"] == pytest.approx(bounds["width"] / 4, abs=1)
    assert cell["x"] - bounds["x"] == pytest.approx(bounds["width"] / 4, abs=1)
    assert "&query=2,1" in page.locator("#commands").inner_text()
    pane.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".says")).to_contain_text("row 3, column 2")
    page.keyboard.press("Escape")
    expect(page.locator(".says")).to_contain_text("the class token")
    assert pixels(page) == before
    page.keyboard.press("ArrowUp")
    expect(page.locator(".says")).to_contain_text("row 2, column 2")
    page.get_by_role("button", name="Back to the class token").click()
    expect(page.locator(".says")).to_contain_text("the class token")


def test_all_heads_lie_on_a_sheet_and_one_is_chosen_by_pointer_or_keys(visit, address):
    page = visit(address)
    see(page, file())
    tiles = page.locator(".sheet button")
    assert tiles.count() == 9
    assert page.locator(".numbers").all_inner_texts() == ["head\n0\n1\n2"] * 2  # above each of two columns of layers
    page.get_by_role("radio", name="layer 1, head 2", exact=True).click()
    expect(page.locator(".says")).to_contain_text("Layer 1, head 2")
    assert page.locator("#layer").input_value() == "1"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".says")).to_contain_text("Layer 0, head 1")
    assert page.locator(".sheet [aria-checked=true]").get_attribute("aria-label") == "layer 0, head 1"


def test_every_method_has_its_words(visit, address):
    page = visit(address)
    see(page, file())
    for method in ("Rollout", "Gradient", "Occlusion"):
        page.get_by_text(method, exact=True).click()
        expect(page.locator(".says")).to_contain_text(f"{method}:")
        assert not page.locator("#layer").is_visible(), method
        assert not page.locator("#heads").is_visible(), method


def test_while_occlusion_is_computed_no_other_map_stands_there(visit, address):
    page, held = visit(address), []
    see(page, file(height=120, width=120))
    page.locator(".pane").click(position={"x": 30, "y": 30})
    page.locator(".cell.asking").wait_for()
    page.route("**/v1/explain?method=occlusion", lambda route: held.append(route))
    page.get_by_text("Occlusion", exact=True).click()
    expect(page.locator(".says")).to_have_text("Computing occlusion …")
    expect(page.locator(".pane.waiting")).to_be_visible()
    assert not page.locator(".cell.asking").is_visible()
    assert not page.locator(".scale").is_visible()
    waiting = pixels(page)
    held[0].continue_()
    expect(page.locator(".says")).to_contain_text("when a region is covered")
    expect(page.locator(".pane.waiting")).to_have_count(0)
    assert pixels(page) != waiting
    give(page, file("two.png", height=400, width=400, seed=1), place="#tools")
    expect(page.locator(".stage .key")).to_have_text("two.png")
    wait_until(page, lambda: shows(page, photograph(400, 400, seed=1)), "its preview is there")
    expect(page.locator(".says")).to_have_text("Computing occlusion …")
    held[1].continue_()
    expect(page.locator(".says")).to_contain_text("when a region is covered")


def test_occlusion_that_lowers_nothing_shows_the_picture_without_a_scale(visit, address):
    page = visit(address)
    see(page, file(height=120, width=120))

    def lower_nothing(route) -> None:
        reply = route.fetch().json()
        for found in reply["maps"]:
            found["values"] = [[-abs(value) for value in row] for row in found["values"]]
        route.fulfill(json=reply)

    page.route("**/v1/explain?method=occlusion*", lower_nothing)
    page.get_by_text("Occlusion", exact=True).click()
    expect(page.locator(".says")).to_contain_text("does not lower the predicted probability")
    assert not page.locator(".scale").is_visible()
    bright = decoded(photograph(120, 120)).mean()
    assert picture_of(pixels(page)).mean() == pytest.approx(bright, rel=0.05)  # and is not darkened


def test_on_a_phone_the_answer_stands_on_the_first_screen(visit, address):
    page = visit(address, size=PHONE)
    see(page, file())
    page.locator(".bars").wait_for()
    box = page.locator(".best").bounding_box()
    assert box["y"] + box["height"] < PHONE["height"]
    assert box["y"] < page.locator(".pane").bounding_box()["y"]


def test_what_was_said_of_a_picture_is_gone_with_it(visit, address):
    page = visit(address, expected=(422,))
    see(page, file())
    expect(page.locator("#spoken")).to_contain_text("probability")
    give(page, {"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"}, place="#tools")
    page.get_by_role("alert").filter(has_text="broken.png").wait_for()
    expect(page.locator("#spoken")).to_have_text("")


def test_two_pictures_stand_side_by_side_under_the_same_sliders(visit, address):
    page = visit(address)
    see(page, file("one.png"), file("two.png", seed=1, height=120))
    boxes = [page.locator(".pane").nth(at).bounding_box() for at in range(2)]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=2)
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    page.locator("#layer").fill("0")
    for at in range(2):
        expect(page.locator(".says").nth(at)).to_contain_text("Layer 0")
    page.locator(".pane").first.click(position={"x": boxes[0]["width"] / 2, "y": boxes[0]["height"] / 2})
    for at in range(2):
        expect(page.locator(".says").nth(at)).to_contain_text("attention of the patch")
    page.get_by_role("button", name="Stop comparing").click()
    assert page.locator(".pane").count() == 1


def test_answers_of_pictures_of_any_shape_start_at_one_height(visit, address):
    page = visit(address)
    see(page, file("wide.png", width=300), file("high.png", height=300, seed=1))
    page.locator(".bars").nth(1).wait_for()
    for size in ({"width": 375, "height": 700}, DESK):
        page.set_viewport_size(size)
        settle(page)
        answers = [page.locator(".answer").nth(at).bounding_box()["y"] for at in range(2)]
        assert answers[0] == pytest.approx(answers[1], abs=1), size
        methods = page.locator("[name=method] + span")
        rows = {methods.nth(at).bounding_box()["y"] for at in range(4)}
        assert len(rows) == 1, size


def test_a_model_without_attention_offers_occlusion_and_similarity(visit, serve):
    page = visit(serve(lambda: model(name="bit-r50x1", image_size=32, classes=["a", "b"])))
    give(page, file())
    page.locator(".bars").wait_for()
    assert page.locator("[name=method]").count() == 2
    assert page.locator("[name=method]:checked").count() == 0
    assert not page.locator("#heads").is_visible()
    page.get_by_text("Occlusion", exact=True).click()
    expect(page.locator(".says")).to_contain_text("Occlusion:")
    page.locator("#to-model").click()
    assert "none (use occlusion)" in page.locator("#model-facts").inner_text()


def test_an_encoder_without_a_head_shows_no_bars(visit, serve):
    page = visit(serve(lambda: model(classes=[])))
    see(page, file())
    assert page.locator(".bars").count() == 0
    assert "no head" in page.locator(".answer").inner_text()
    assert page.locator("[name=method]").count() == 3


def test_windows_and_merged_maps_are_asked_at_the_place_that_was_pressed(visit, serve):
    page = visit(serve(lambda: model(name="swin-t", image_size=64, window=4, classes=["a", "b"])))
    see(page, file(height=120, width=120))
    bounds = page.locator(".pane").bounding_box()
    page.locator("#layer").fill("0")
    expect(page.locator(".says")).to_contain_text("Layer 0")
    page.mouse.click(bounds["x"] + bounds["width"] * 0.9, bounds["y"] + bounds["height"] * 0.1)
    expect(page.locator(".says")).to_contain_text("row 1, column 14")
    page.locator("#layer").fill("2")
    expect(page.locator(".says")).to_contain_text("row 0, column 7")
    assert page.locator(".sheet .row").count() == 2  # the layers with maps of that size


def test_a_clicked_patch_is_compared_with_all_by_their_features(visit, address):
    page = visit(address)
    see(page, file())
    page.get_by_text("Similarity", exact=True).click()
    centre = "Similarity: cosine of the patch in row 2, column 2 with all patches, by the last features."
    expect(page.locator(".says")).to_have_text(centre)
    before = pixels(page)
    page.locator(".pane").click(position={"x": 5, "y": 5})
    expect(page.locator(".says")).to_contain_text("row 0, column 0")
    assert pixels(page) != before and page.locator(".asking").is_visible()
    expect(page.locator("#commands")).to_contain_text("method=similarity&query=0,0&as=png")
    page.get_by_role("button", name="Back to the patch in the centre").click()
    expect(page.locator(".says")).to_have_text(centre)
