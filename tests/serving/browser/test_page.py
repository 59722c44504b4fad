"""The page as a whole: the model, the routes, the views, a token, and that everything is reached by keys and on a phone."""

from __future__ import annotations

import re

import pytest

from tests.serving.browser.page import ATTACK, BROWSER, DESK, PHONE, TOKEN, expect, file, model, see, wait_for

pytestmark = BROWSER


def test_names_stay_text(visit, serve):
    page = visit(serve(lambda: model(classes=[ATTACK, "b"])))
    see(page, file(name=f"{ATTACK.replace('/', '_')}.png"))
    assert page.locator(".bars .label").all_inner_texts().count(ATTACK) == 1
    assert "<img src=x" in page.locator(".stage .key").inner_text()
    page.locator("#to-model").click()
    assert page.locator(".classes li").first.inner_text().endswith(ATTACK)
    page.get_by_text("Model card", exact=True).click()
    assert page.locator("#model-card strong").inner_text() == ATTACK
    assert page.locator("main img:visible, main script").count() == 0


def test_a_token_is_asked_for_and_kept_nowhere(visit, serve, small, runs):
    page = visit(serve(lambda: small, token=TOKEN, runs=runs), expected=(401,))
    page.locator("#token-field").fill("wrong-wrong-wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-again")).to_be_visible()
    page.locator("#token-field").fill(TOKEN)
    page.get_by_role("button", name="Send").click()
    see(page, file())
    assert "Authorization: Bearer $VITRAIL_TOKEN" in page.locator("#commands").inner_text()
    assert TOKEN not in page.content()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert page.context.cookies() == []


def test_the_model_is_told(visit, address, small):
    page = visit(f"{address}#/model")
    page.locator("#model-facts dl").wait_for()
    assert "negative log-likelihood" in page.locator("#model-metrics").inner_text()
    assert not page.locator("#model-numerics").is_visible()  # details are opened by who wants them
    for summary in page.locator("#model section:not([hidden]) summary").all():
        summary.click()
    words = page.locator("#model").inner_text()
    wanted = {"small.safetensors", "75.0 %", "1.25", "64, 64", "A card", small.model.preprocessing.interpolation}
    assert {word for word in wanted if word in words} == wanted
    page.get_by_label("Find a class").fill("TAB")
    assert page.locator(".classes li").all_inner_texts() == ["0\ntabby"]


def test_classes_without_names_are_told_in_a_sentence(visit, serve):
    page = visit(f"{serve(lambda: model(classes=[str(number) for number in range(10)]))}#/model")
    told = page.locator("#model-classes")
    expect(told).to_contain_text("the numbers 0 to 9. Start the server with --classes FILE")
    assert told.locator("li").count() == 0


def test_unknown_figures_of_an_export_are_not_shown_as_zero(visit, address):
    page = visit(address)
    expect(page.locator("#model-facts")).to_contain_text("Parameters")
    page.route("**/v1/model", lambda route: route.fulfill(json={**route.fetch().json(), "parameters": 0}))
    page.reload()
    expect(page.locator("#model-facts")).to_contain_text("Architecture")
    expect(page.locator("#model-facts")).not_to_contain_text("Parameters")


def test_an_address_names_a_view_and_an_unknown_one_the_first(visit, address):
    page = visit(address)
    views = {"#runs": "runs", "#/runs": "runs", "#model": "model", "#nothing": "picture", "#main": "picture"}
    for hash, shown in views.items():
        page.goto("about:blank")
        page.goto(f"{address}{hash}")
        expect(page.locator(f"#{shown}")).to_be_visible()
        assert page.locator("main > section:visible").count() == 1, hash


def test_the_way_to_the_content_stays_in_the_view(visit, address):
    page = visit(f"{address}#/model")
    expect(page.locator("#model")).to_be_visible()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    wait_for(page, "location.hash === '#main'")
    assert page.locator("#model").is_visible()


def test_the_routes_are_told_with_examples(visit, address, small):
    page = visit(f"{address}docs")
    page.locator(".route").first.wait_for()
    tree = page.request.get(f"{address}openapi.json").json()
    routes = [(verb, path) for path, verbs in tree["paths"].items() for verb in verbs]
    assert page.locator(".route").count() == len(routes)
    words = page.locator("#routes").inner_text()
    assert f"curl -F file=@cat.jpg {address}v1/predict" in words
    assert f"{address}v2/models/small/versions/{small.version}/infer" in words
    assert not {"MODEL", "VERSION"} & set(re.findall(r"\w+", words))
    assert "field file: one or more files" in words
    assert "shape: list of integers" in words
    texts = page.locator(".route > p").all_inner_texts()
    assert texts
    assert not {"Live", "Ready", "Server", "Model Ready"} & set(texts)
    links = page.locator(".contents a")
    assert links.count() == len(routes)
    links.last.click()
    expect(page.locator(".route").last).to_be_in_viewport()


FOCUSED = "(e => e.id || e.getAttribute('aria-label') || e.textContent)(document.activeElement)"


def test_everything_is_reached_by_keys(visit, address):
    page = visit(address)
    see(page, file())
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    buttons = {"to-picture", "to-model", "to-runs", "Change image", "Compare with another", "Save as PNG", "Copy"}
    assert buttons | {"layer", "head", "opacity", "top", "layer 0, head 0"} <= reached
    assert any(str(name).endswith("Escape clears the selection.") for name in reached)


def violations(page) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_every_control_is_reachable_and_on_the_screen(visit, address, size, scheme):
    page = visit(address, size=size, scheme=scheme)
    page.locator("#invitation button").first.wait_for()
    found = violations(page)
    see(page, file())
    page.locator(".bars").wait_for()
    found += violations(page)
    page.locator("#tools input[type=file]").nth(2).set_input_files(file(seed=1))
    page.locator(".scale").nth(1).wait_for()
    found += violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for view in ("model", "runs"):
        page.locator(f"#to-{view}").click()
        page.locator(f"#{view} h2").first.wait_for()
        found += violations(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    page.goto(f"{address}docs")
    page.locator(".route").first.wait_for()
    found += violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert found == []
