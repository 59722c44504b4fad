"""The page in a real browser: everything it offers is done once, by pointer and by keys, against the real server.

Whatever the browser complains about fails the test: an error in a script, a request to another host, a broken policy.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image

import vitrail
from tests.serving.test_runs import train
from vitrail.serving.app import create_app
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.service import Service

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}"),
    # threads of the server and of the browser's driver may outlive a test by a moment
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ATTACK = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
CLASSES = ["tabby", "crane", ATTACK, *(f"class {number}" for number in range(8))]
CARD = f"# A card\n\nIt *says* `code` and **{ATTACK}**.\n\n| figure | value |\n| --- | ---: |\n| {ATTACK} | 1 |\n\n- {ATTACK}\n"
TOKEN = "sesame-sesame-sesame"
REFUSED = "Failed to load resource"  # the browser's own words for a refusal; `unwanted` looks at its status
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def model(**changes) -> LoadedModel:
    """A small model with numbers in every tensor."""
    torch.manual_seed(7)
    name = changes.pop("name", "vit-ti16")
    small = (
        {"image_size": 64, "classes": CLASSES, "depth": 3, "width": 48, "heads": 3, "mlp_width": 64}
        if name == "vit-ti16"
        else {}
    )
    classifier = vitrail.create_model(name, **{**small, **changes})
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    about = {"source": "small.safetensors", "metrics": {"top1": 0.75, "nll": 1.25}, "card": CARD, "parity": None}
    return LoadedModel(classifier.eval(), "small", about=about)


def photograph(height: int = 90, width: int = 120, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def file(name: str = "cat.png", **how) -> dict:
    return {"name": name, "mimeType": "image/png", "buffer": photograph(**how)}


Serve = Callable[..., str]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Starts a server in a thread; the address of its page."""
    started: list[tuple[uvicorn.Server, threading.Thread, Service, socket.socket]] = []

    def begin(
        load: Callable[[], LoadedModel] | None, *, token: str | None = None, runs: Path | None = None, **limits
    ) -> str:
        service = Service(load, ServerLimits(**{"deadline": 60.0, **limits}))
        app = create_app(service, token=token, hosts=("127.0.0.1",), runs=runs)
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        started.append((server, thread, service, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}/"

    yield begin
    for server, thread, service, listening in started:
        service.draining = server.should_exit = True
        thread.join()
        service.close()
        listening.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "flowers", 30)
    train(folder / "leaves", 12)
    train(folder / "<b>bold & co", 3, state="failed")
    return folder


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    return model()


@pytest.fixture(scope="module")
def address(serve, small, runs) -> str:
    return serve(lambda: small, runs=runs)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        found = driver.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield found
        found.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable]:
    """Opens a page; at the end of the test nothing may have gone wrong in it."""
    contexts, wrong = [], []

    def hear(page, address: str, expected: tuple[int, ...]) -> None:
        def note(is_wrong: bool, what: str) -> None:
            if is_wrong:
                wrong.append(what)

        page.on("pageerror", lambda error: note(True, f"error: {error}"))
        page.on("dialog", lambda dialog: (note(True, f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: note(not own(request.url, address), f"asked {request.url}"))
        page.on("response", lambda reply: note(unwanted(reply, expected), f"{reply.status} {reply.url}"))
        page.on("console", lambda said: note(complaint(said), f"console: {said.text}"))

    def begin(address: str, *, size=DESK, scheme: str = "light", expected: tuple[int, ...] = (), **more):
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, **more))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        hear(page, address, expected)
        page.goto(address)
        return page

    yield begin
    for context in contexts:
        context.close()
    assert not wrong


def own(url: str, address: str) -> bool:
    root = re.match(r"http://[^/]+/", address)[0]
    return url.startswith((root, "blob:" + root, "data:"))


def unwanted(reply, expected: tuple[int, ...]) -> bool:
    """A server without a model, or without runs, says so with 404, and a test may expect more."""
    lacking = reply.status == 404 and reply.url.endswith(("/v1/model", "/v1/runs"))
    return reply.status >= 400 and reply.status not in expected and not lacking


def complaint(said) -> bool:
    loud = said.type in ("error", "warning") and not said.text.startswith(REFUSED)
    return loud or said.text.startswith("[DOM]")  # what the browser advises, such as a form around a password


def give(page, *files: dict, place: str = "#invitation") -> None:
    page.locator(f"{place} input[type=file]").first.set_input_files(list(files))


def see(page, *files: dict) -> None:
    """Gives pictures and waits until their attention is shown."""
    give(page, *files)
    page.locator(".scale").nth(len(files) - 1).wait_for()


def says(page) -> str:
    return page.locator(".says").first.inner_text()


def pixels(page) -> str:
    return page.evaluate("document.querySelector('.pane canvas').toDataURL()")


def picture_of(url: str) -> np.ndarray:
    """A data URL as int32 (H, W, 3)."""
    return decoded(base64.b64decode(url.partition(",")[2]))


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), np.int32)


def test_a_chosen_picture_is_answered_in_bars(visit, address, small):
    page = visit(address)
    see(page, file())
    bars = page.locator(".bars li")
    assert bars.count() == 5
    (answer,) = small.classifier.predict(photograph(), top=5)
    best = answer.top
    assert page.locator(".best").inner_text() == best[0][0]
    assert [bars.nth(at).locator(".label").inner_text() for at in range(5)] == [label for label, _ in best]
    shares = page.evaluate(
        "[...document.querySelectorAll('.bars li')].map(bar => Number(bar.style.getPropertyValue('--share')))"
    )
    assert shares == pytest.approx([score for _, score in best], abs=1e-4)
    page.locator("#top").select_option("10")
    playwright.expect(bars).to_have_count(10)


def test_names_stay_text(visit, serve):
    page = visit(serve(lambda: model(classes=[ATTACK, "b"])))
    see(page, file(name=f"{ATTACK.replace('/', '_')}.png"))
    assert page.locator(".bars .label").all_inner_texts().count(ATTACK) == 1
    assert "<img src=x" in page.locator(".stage .key").inner_text()
    page.locator("#to-model").click()
    assert page.locator(".classes li").first.inner_text().endswith(ATTACK)
    assert page.locator("#model-card strong").inner_text() == ATTACK
    assert page.locator("main img:visible, main script").count() == 0


def test_sliders_move_the_light_at_once_and_without_a_request(visit, address):
    page = visit(address)
    see(page, file())
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert says(page) == "Layer 2, mean of all heads: what the class token attends to."
    seen = {pixels(page)}
    for slider, value, words in (
        ("#layer", "0", "Layer 0, mean of all heads"),
        ("#head", "2", "Layer 0, head 1"),
        ("#head", "3", "Layer 0, head 2"),
    ):
        page.locator(slider).fill(value)
        playwright.expect(page.locator(".says")).to_contain_text(words)
        seen.add(pixels(page))
    page.locator("#opacity").fill("40")
    page.wait_for_timeout(100)
    seen.add(pixels(page))
    page.get_by_text("Colours").click()
    page.wait_for_timeout(100)
    seen.add(pixels(page))
    assert len(seen) == 6
    assert asked == []


def test_no_strength_is_the_picture_itself(visit, address):
    page = visit(address)
    see(page, file(height=400, width=400))
    page.locator("#opacity").fill("0")
    page.wait_for_timeout(200)
    shown, given = picture_of(pixels(page)), decoded(photograph(400, 400))
    assert shown.shape == given.shape
    assert np.abs(shown - given).mean() < 3  # what JPEG does to it


def test_light_is_that_of_explain(visit, address):
    """The same picture by the page's canvas and by the server's PNG."""
    page = visit(address)
    see(page, file(height=400, width=400))
    page.locator("#layer").fill("1")
    page.locator("#head").fill("3")
    page.locator("#opacity").fill("100")
    playwright.expect(page.locator(".says")).to_contain_text("Layer 1, head 2")
    page.wait_for_timeout(100)
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
    page.wait_for_timeout(100)
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
    playwright.expect(page.locator(".says")).to_contain_text("what the patch in row 2, column 1 attends to")
    assert pixels(page) != before
    cell = page.locator(".cell.asking").bounding_box()
    assert cell["width"] == pytest.approx(bounds["width"] / 4, abs=1)
    assert cell["x"] - bounds["x"] == pytest.approx(bounds["width"] / 4, abs=1)
    assert "&query=2,1" in page.locator("#commands").inner_text()
    pane.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator(".says")).to_contain_text("row 3, column 2")
    page.keyboard.press("Escape")
    playwright.expect(page.locator(".says")).to_contain_text("the class token")
    assert pixels(page) == before
    page.keyboard.press("ArrowUp")
    playwright.expect(page.locator(".says")).to_contain_text("row 2, column 2")
    page.get_by_role("button", name="Back to the class token").click()
    playwright.expect(page.locator(".says")).to_contain_text("the class token")


def test_all_heads_lie_on_a_sheet_and_one_is_chosen_by_pointer_or_keys(visit, address):
    page = visit(address)
    see(page, file())
    tiles = page.locator(".sheet button")
    assert tiles.count() == 9
    assert page.locator(".numbers").all_inner_texts() == ["head\n0\n1\n2"] * 2  # above each of two columns of layers
    page.get_by_role("radio", name="layer 1, head 2", exact=True).click()
    playwright.expect(page.locator(".says")).to_contain_text("Layer 1, head 2")
    assert page.locator("#layer").input_value() == "1"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    playwright.expect(page.locator(".says")).to_contain_text("Layer 0, head 1")
    assert page.locator(".sheet [aria-checked=true]").get_attribute("aria-label") == "layer 0, head 1"


@pytest.mark.parametrize("method", ["Rollout", "Gradient", "Occlusion"])
def test_every_method_has_its_words(visit, address, method):
    page = visit(address)
    see(page, file())
    page.get_by_text(method, exact=True).click()
    playwright.expect(page.locator(".says")).to_contain_text(f"{method}:")
    assert not page.locator("#layer").is_visible()
    assert not page.locator("#heads").is_visible()


def test_while_occlusion_is_computed_no_other_map_stands_there(visit, address):
    page, held = visit(address), []
    see(page, file(height=120, width=120))
    page.locator(".pane").click(position={"x": 30, "y": 30})
    page.locator(".cell.asking").wait_for()
    page.route("**/v1/explain?method=occlusion", lambda route: held.append(route))
    page.get_by_text("Occlusion", exact=True).click()
    playwright.expect(page.locator(".says")).to_have_text("Occlusion: covering patch after patch …")
    playwright.expect(page.locator(".pane.waiting")).to_be_visible()
    assert not page.locator(".cell.asking").is_visible()
    assert not page.locator(".scale").is_visible()
    waiting = pixels(page)
    held[0].continue_()
    playwright.expect(page.locator(".says")).to_contain_text("when this part is covered")
    playwright.expect(page.locator(".pane.waiting")).to_have_count(0)
    assert pixels(page) != waiting
    give(page, file("two.png", seed=1), place="#tools")
    playwright.expect(page.locator(".stage .key")).to_have_text("two.png")
    page.wait_for_timeout(300)  # its preview is there
    playwright.expect(page.locator(".says")).to_have_text("Occlusion: covering patch after patch …")
    held[1].continue_()
    playwright.expect(page.locator(".says")).to_contain_text("when this part is covered")


def test_two_pictures_stand_side_by_side_under_the_same_sliders(visit, address):
    page = visit(address)
    see(page, file("one.png"), file("two.png", seed=1, height=120))
    boxes = [page.locator(".pane").nth(at).bounding_box() for at in range(2)]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=2)
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    page.locator("#layer").fill("0")
    for at in range(2):
        playwright.expect(page.locator(".says").nth(at)).to_contain_text("Layer 0")
    page.locator(".pane").first.click(position={"x": boxes[0]["width"] / 2, "y": boxes[0]["height"] / 2})
    for at in range(2):
        playwright.expect(page.locator(".says").nth(at)).to_contain_text("what the patch")
    page.get_by_role("button", name="Stop comparing").click()
    assert page.locator(".pane").count() == 1


@pytest.mark.parametrize("size", [{"width": 375, "height": 700}, DESK], ids=["phone", "desk"])
def test_answers_of_pictures_of_any_shape_start_at_one_height(visit, address, size):
    page = visit(address, size=size)
    see(page, file("wide.png", width=300), file("high.png", height=300, seed=1))
    page.locator(".bars").nth(1).wait_for()
    answers = [page.locator(".answer").nth(at).bounding_box()["y"] for at in range(2)]
    assert answers[0] == pytest.approx(answers[1], abs=1)
    methods = page.locator("[name=method] + span")
    rows = {methods.nth(at).bounding_box()["y"] for at in range(4)}
    assert len(rows) == 1


DROP = """([bytes, name, kind]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(bytes)], name, {type: 'image/png'}));
  const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: data, bubbles: true})
                                 : new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true});
  document.body.dispatchEvent(event);
}"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_picture_is_dropped_or_pasted_anywhere(visit, address, kind):
    page = visit(address)
    page.locator("#invitation button").first.wait_for()
    page.evaluate(DROP, [list(photograph()), f"{kind}.png", kind])
    page.locator(".bars").wait_for()
    assert page.locator(".stage .key").inner_text() == f"{kind}.png"


def test_a_photograph_is_taken_at_the_desk(visit, address):
    page = visit(address, permissions=["camera"])
    page.get_by_role("button", name="Take a photograph").first.click()
    page.get_by_role("button", name="Take it").click()
    page.locator(".bars").wait_for()
    assert page.locator(".stage .key").inner_text() == "photograph.jpg"


def test_a_picture_is_sent_as_it_is(visit, serve, monkeypatch):
    served, sent = model(), []
    for name in ("prepare", "look"):
        before = getattr(served, name)
        spy = lambda content, before=before, **how: sent.append(content) or before(content, **how)  # noqa: E731
        monkeypatch.setattr(served, name, spy)
    see(visit(serve(lambda: served)), file(height=900, width=1200))
    assert len(sent) >= 2  # for the answer and for what is looked at
    assert set(sent) == {photograph(900, 1200)}


def test_what_is_no_picture_and_what_is_too_large_is_said_with_a_remedy(visit, serve, small):
    page = visit(serve(lambda: small, body=60_000), expected=(422,))
    give(page, {"name": "words.png", "mimeType": "image/png", "buffer": b"no picture"})
    playwright.expect(page.locator(".alarm").first).to_contain_text("cannot be used")
    give(page, {"name": "large.png", "mimeType": "image/png", "buffer": b"0" * 70_000}, place="#tools")
    playwright.expect(page.locator("#refused")).to_contain_text("large.png has")
    see(page, file())
    playwright.expect(page.locator(".alarm")).to_have_count(0)


def test_a_file_that_is_no_picture_leaves_nothing_of_the_one_before(visit, address):
    page = visit(address, expected=(422,))
    see(page, file("bee.png"))
    page.locator(".bars").wait_for()
    give(page, {"name": "text.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}, place="#tools")
    alarm = page.locator(".alarm")
    playwright.expect(alarm).to_have_text(re.compile("text.jpg.*cannot be used.*Send another file"))
    playwright.expect(page.locator(".bars, .sheet button")).to_have_count(0)
    playwright.expect(page.locator("#status")).to_have_text("")
    for gone in (".stage", ".controls", "#heads", "#commands", ".tools .top"):
        assert not page.locator(gone).is_visible(), gone
    page.wait_for_timeout(300)
    assert alarm.count() == 1
    see(page, file("cat.png"))
    playwright.expect(alarm).to_have_count(0)
    for back in (".stage", ".controls", "#heads", "#commands"):
        assert page.locator(back).is_visible(), back


def test_beside_a_good_picture_a_bad_one_is_told_apart(visit, address):
    page = visit(address, expected=(422,))
    see(page, file("one.png"), file("two.png", seed=1))
    bad = {"name": "text.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}
    page.locator("#tools input[type=file]").nth(2).set_input_files(bad)
    playwright.expect(page.locator(".slot").nth(1).locator(".alarm")).to_contain_text("text.jpg")
    assert page.locator(".slot .alarm").count() == 1
    assert [page.locator(".stage").nth(at).is_visible() for at in range(2)] == [True, False]
    assert page.locator(".controls").is_visible()
    assert page.locator(".sheet button").count() == 9


def test_a_picture_of_too_many_pixels_leaves_no_sliders(visit, serve, small):
    page = visit(serve(lambda: small, pixels=10_000), expected=(413, 422))
    give(page, file("vast.png", height=200, width=200))
    playwright.expect(page.locator(".alarm")).to_contain_text("vast.png")
    for gone in (".stage", ".controls", "#heads", "#commands"):
        assert not page.locator(gone).is_visible(), gone


def test_a_busy_server_is_asked_again(visit, address):
    page, tries = visit(address, expected=(503,)), []

    def busy(route) -> None:
        tries.append(route.request.url)
        if len(tries) == 1:
            body = {"error": {"code": "queue_full", "message": "full", "remedy": "later"}, "request_id": "x"}
            route.fulfill(status=503, headers={"Retry-After": "1"}, json=body)
        else:
            route.continue_()

    page.route("**/v1/predict*", busy)
    give(page, file())
    playwright.expect(page.locator("#status")).to_have_text("The server is busy; trying again in 1 s.")
    page.locator(".bars").wait_for()
    assert len(tries) == 2


def test_a_server_that_is_gone_is_said(visit, address):
    page = visit(address)
    page.locator("#invitation button").first.wait_for()
    page.route("**/v1/*", lambda route: route.abort())
    give(page, file())
    playwright.expect(page.locator(".alarm")).to_have_count(1)
    playwright.expect(page.locator(".alarm")).to_contain_text("The server does not answer.")


def test_a_token_is_asked_for_and_kept_nowhere(visit, serve, small, runs):
    page = visit(serve(lambda: small, token=TOKEN, runs=runs), expected=(401,))
    page.locator("#token-field").fill("wrong-wrong-wrong")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#token-again")).to_be_visible()
    page.locator("#token-field").fill(TOKEN)
    page.get_by_role("button", name="Send").click()
    see(page, file())
    assert "Authorization: Bearer $VITRAIL_TOKEN" in page.locator("#commands").inner_text()
    assert TOKEN not in page.content()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert page.context.cookies() == []


def test_a_model_without_attention_offers_occlusion_alone(visit, serve):
    page = visit(serve(lambda: model(name="bit-r50x1", image_size=32, classes=["a", "b"])))
    give(page, file())
    page.locator(".bars").wait_for()
    assert page.locator("[name=method]").count() == 1
    assert not page.locator("#heads").is_visible()
    page.get_by_text("Occlusion", exact=True).click()
    playwright.expect(page.locator(".says")).to_contain_text("Occlusion:", timeout=60_000)
    page.locator("#to-model").click()
    assert "none: occlusion shows" in page.locator("#model-facts").inner_text()


def test_an_encoder_without_a_head_shows_no_bars(visit, serve):
    page = visit(serve(lambda: model(classes=[])))
    see(page, file())
    assert page.locator(".bars").count() == 0
    assert "no head" in page.locator(".answer").inner_text()
    assert page.locator("[name=method]").count() == 2


def test_windows_and_merged_maps_are_asked_at_the_place_that_was_pressed(visit, serve):
    page = visit(serve(lambda: model(name="swin-t", image_size=64, window=4, classes=["a", "b"])))
    see(page, file(height=120, width=120))
    bounds = page.locator(".pane").bounding_box()
    page.locator("#layer").fill("0")
    playwright.expect(page.locator(".says")).to_contain_text("Layer 0")
    page.mouse.click(bounds["x"] + bounds["width"] * 0.9, bounds["y"] + bounds["height"] * 0.1)
    playwright.expect(page.locator(".says")).to_contain_text("row 1, column 14")
    page.locator("#layer").fill("2")
    playwright.expect(page.locator(".says")).to_contain_text("row 0, column 7")
    assert page.locator(".sheet .row").count() == 2  # the layers with maps of that size


def test_the_model_is_told(visit, address, small):
    page = visit(f"{address}#/model")
    page.locator("#model-facts dl").wait_for()
    words = page.locator("#model").inner_text()
    wanted = {"small.safetensors", "75.0 %", "1.25", "64, 64", "A card", small.classifier.preprocessing.interpolation}
    assert {word for word in wanted if word in words} == wanted
    page.get_by_label("Find a class").fill("TAB")
    assert page.locator(".classes li").all_inner_texts() == ["0\ntabby"]


def test_classes_without_names_are_told_in_a_sentence(visit, serve):
    page = visit(f"{serve(lambda: model(classes=[str(number) for number in range(10)]))}#/model")
    told = page.locator("#model-classes")
    playwright.expect(told).to_contain_text("the numbers 0 to 9. Start the server with --classes FILE")
    assert told.locator("li").count() == 0


def test_what_an_export_does_not_count_is_not_told_as_nothing(visit, address):
    page = visit(address)
    playwright.expect(page.locator("#model-facts")).to_contain_text("Parameters")
    page.route("**/v1/model", lambda route: route.fulfill(json={**route.fetch().json(), "parameters": 0}))
    page.reload()
    playwright.expect(page.locator("#model-facts")).to_contain_text("Architecture")
    playwright.expect(page.locator("#model-facts")).not_to_contain_text("Parameters")


@pytest.mark.parametrize(
    ("hash", "shown"),
    [("#runs", "runs"), ("#/runs", "runs"), ("#model", "model"), ("#nothing", "picture"), ("#main", "picture")],
)
def test_an_address_names_a_view_and_an_unknown_one_the_first(visit, address, hash, shown):
    page = visit(f"{address}{hash}")
    playwright.expect(page.locator(f"#{shown}")).to_be_visible()
    assert page.locator("main > section:visible").count() == 1


def test_the_way_to_the_content_stays_in_the_view(visit, address):
    page = visit(f"{address}#/model")
    playwright.expect(page.locator("#model")).to_be_visible()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash === '#main'")
    assert page.locator("#model").is_visible()


def test_a_server_of_runs_alone_shows_them_and_their_curves(visit, serve, runs):
    page = visit(serve(None, runs=runs))
    rows = page.locator("#runs-rows tr")
    playwright.expect(rows).to_have_count(3)
    assert not page.locator("#to-picture").is_visible()
    assert "<b>bold & co" in page.locator("#runs-rows").inner_text()
    assert page.locator("#runs-rows b").count() == 0
    page.get_by_role("button", name="flowers").click()
    charts = page.locator(".chart")
    playwright.expect(charts).to_have_count(3)
    assert [charts.nth(at).locator("h3").inner_text() for at in range(3)] == ["Loss", "Accuracy", "Learning rate"]
    told = charts.first.locator("svg").get_attribute("aria-label")
    assert "training: from 2.5 at step 1 to 0.0833 at step 30." in told
    page.get_by_label("Curves of leaves").check()
    keys = page.locator("#runs-keys li")
    playwright.expect(keys).to_have_text(["flowers", "leaves", "training", "validation"])
    assert charts.first.locator("svg text", has_text=re.compile("^step$")).count() == 1
    charts.first.locator("svg").hover()
    assert "flowers, training" in charts.first.locator(".under").inner_text()


def test_a_run_is_seen_while_it_trains(visit, serve, tmp_path):
    folder = train(tmp_path / "live", 3, state="running")
    page = visit(serve(None, runs=tmp_path))
    chart = page.locator(".chart svg").first
    playwright.expect(chart).to_have_attribute("aria-label", re.compile("at step 3"))
    with open(folder.path / "metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": 4, "loss": 0.25, "lr": 1e-4}) + "\n")
    playwright.expect(chart).to_have_attribute("aria-label", re.compile("0.25 at step 4"))
    folder.write_status("finished", steps=4)
    playwright.expect(page.locator(".state")).to_have_text("finished")


def test_runs_without_steps_are_not_ticked_but_say_so(visit, serve, tmp_path):
    for age, (name, taken) in enumerate({"empty": 0, "older": 3, "oldest": 6}.items()):
        folder = train(tmp_path / name, taken=taken, state="failed")
        for each in folder.path.iterdir():
            os.utime(each, (1.7e9 - age, 1.7e9 - age))
    page = visit(serve(None, runs=tmp_path))
    playwright.expect(page.get_by_label("Curves of older")).to_be_checked()
    assert page.locator("#runs-rows input:checked").count() == 1
    assert page.locator("#spoken").inner_text() == ""  # what nobody did is not spoken of
    page.get_by_label("Curves of empty").check()
    playwright.expect(page.locator("#runs-empty")).to_have_text("empty: no steps yet.")
    assert "empty" in page.locator("#spoken").inner_text()


def test_a_run_that_begins_is_followed_until_one_is_chosen(visit, serve, tmp_path):
    train(tmp_path / "old", 3)
    page = visit(serve(None, runs=tmp_path))
    playwright.expect(page.get_by_label("Curves of old")).to_be_checked()
    begun = train(tmp_path / "new", taken=0, state="running")
    playwright.expect(page.get_by_label("Curves of new")).to_be_checked(timeout=20_000)
    playwright.expect(page.locator("#runs-empty")).to_have_text("new: no steps yet.")
    with open(begun.path / "metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": 1, "loss": 0.25, "lr": 1e-4}) + "\n")
    chart = page.locator(".chart svg").first
    playwright.expect(chart).to_have_attribute("aria-label", re.compile("0.25 at step 1"))
    page.get_by_label("Curves of old").check()
    train(tmp_path / "third", 1, state="running")
    playwright.expect(page.locator("#runs-rows tr")).to_have_count(3, timeout=20_000)
    assert not page.get_by_label("Curves of third").is_checked()


def test_a_smoothed_line_ends_where_its_window_does(visit, serve, tmp_path):
    folder = train(tmp_path / "long", 300, taken=0)
    with open(folder.path / "metrics.jsonl", "a") as metrics:
        for step in range(1, 301):  # the last value leaps
            metrics.write(json.dumps({"step": step, "loss": 9.0 if step == 300 else 1.0, "lr": 1e-4}) + "\n")
    page = visit(serve(None, runs=tmp_path))
    lines = page.locator(".chart").first.locator("path")
    rough, smooth = (lines.nth(at).get_attribute("d")[1:].split("L") for at in range(2))
    assert len(rough) == 300
    assert rough[5:-5] == [place.split()[0] + " " + rough[0].split()[1] for place in rough[5:-5]]
    assert [place.split()[0] for place in smooth] == [place.split()[0] for place in rough[5:-5]]
    assert all(abs(float(place.split()[1]) - float(rough[0].split()[1])) < 20 for place in smooth)


def test_a_phone_shows_state_step_and_best_of_a_run(visit, serve, runs):
    page = visit(serve(None, runs=runs), size=PHONE)
    row = page.locator("#runs-rows tr", has_text="flowers")
    for part, words in ((".state", "finished"), (".bar", "30 / 30"), (".figure", "top1 375")):
        box = row.locator(part).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert words in row.locator(part).inner_text()


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
    assert "field file: one file or several" in words
    assert "shape: list of whole numbers" in words
    texts = page.locator(".route > p").all_inner_texts()
    assert texts
    assert not {"Live", "Ready", "Server", "Model Ready"} & set(texts)
    links = page.locator(".contents a")
    assert links.count() == len(routes)
    links.last.click()
    playwright.expect(page.locator(".route").last).to_be_in_viewport()


FOCUSED = "(e => e.id || e.getAttribute('aria-label') || e.textContent)(document.activeElement)"


def test_everything_is_reached_by_keys(visit, address):
    page = visit(address)
    see(page, file())
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    wanted = {
        "to-picture",
        "to-model",
        "to-runs",
        "Another picture",
        "Compare with another",
        "Save as PNG",
        "layer",
        "head",
    }
    assert wanted | {"opacity", "top", "layer 0, head 0", "Copy"} <= reached
    assert any(str(name).endswith("Escape goes back.") for name in reached)


def violations(page) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_out_of_reach_or_out_of_the_screen(visit, address, size, scheme):
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
