"""Pictures on their way into the page: how they are given, sent and refused, and what is said when the server does not answer."""

from __future__ import annotations

import re

from tests.serving.browser.page import BROWSER, expect, file, give, model, photograph, see, settle, wait_until

pytestmark = BROWSER


DROP = """([bytes, name, kind]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(bytes)], name, {type: 'image/png'}));
  const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: data, bubbles: true})
                                 : new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true});
  document.body.dispatchEvent(event);
}"""


def test_a_picture_is_dropped_or_pasted_anywhere(visit, address):
    page = visit(address)
    page.locator("#invitation button").first.wait_for()
    for kind in ("drop", "paste"):
        page.evaluate(DROP, [list(photograph()), f"{kind}.png", kind])
        expect(page.locator(".stage .key")).to_have_text(f"{kind}.png")
        page.locator(".bars").wait_for()


def test_a_photograph_is_taken_at_the_desk(visit, address):
    page = visit(address, permissions=["camera"])
    page.get_by_role("button", name="Take a photo").first.click()
    page.get_by_role("button", name="Take photo").click()
    page.locator(".bars").wait_for()
    assert page.locator(".stage .key").inner_text() == "photograph.jpg"


def test_a_picture_is_sent_as_it_is(visit, serve, monkeypatch):
    served, sent = model(), []
    for name in ("prepare", "prepare_explanation"):
        before = getattr(served, name)
        spy = lambda content, before=before, **how: sent.append(content) or before(content, **how)  # noqa: E731
        monkeypatch.setattr(served, name, spy)
    see(visit(serve(lambda: served)), file(height=900, width=1200))
    assert len(sent) >= 2  # for the answer and for what is looked at
    assert set(sent) == {photograph(900, 1200)}


def test_files_that_are_not_pictures_or_too_large_get_an_error_with_a_remedy(visit, serve, small):
    page = visit(serve(lambda: small, body=60_000), expected=(422,))
    give(page, {"name": "words.png", "mimeType": "image/png", "buffer": b"no picture"})
    expect(page.locator(".alarm").first).to_contain_text("Invalid image")
    give(page, {"name": "large.png", "mimeType": "image/png", "buffer": b"0" * 70_000}, place="#tools")
    expect(page.locator("#refused")).to_contain_text("large.png has")
    see(page, file())
    expect(page.locator(".alarm")).to_have_count(0)


def test_a_file_that_is_no_picture_leaves_nothing_of_the_one_before(visit, address):
    page = visit(address, expected=(422,))
    see(page, file("bee.png"))
    page.locator(".bars").wait_for()
    give(page, {"name": "text.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}, place="#tools")
    alarm = page.locator(".alarm")
    expect(alarm).to_have_text(re.compile("text.jpg.*Invalid image.*Send another file"))
    expect(page.locator(".bars, .sheet button")).to_have_count(0)
    expect(page.locator("#status")).to_have_text("")
    for gone in (".stage", ".controls", "#heads", "#commands", ".tools .top"):
        assert not page.locator(gone).is_visible(), gone
    settle(page)
    assert alarm.count() == 1
    see(page, file("cat.png"))
    expect(alarm).to_have_count(0)
    for back in (".stage", ".controls", "#heads", "#commands"):
        assert page.locator(back).is_visible(), back


def test_beside_a_good_picture_a_bad_one_is_told_apart(visit, address):
    page = visit(address, expected=(422,))
    see(page, file("one.png"), file("two.png", seed=1))
    bad = {"name": "text.jpg", "mimeType": "image/jpeg", "buffer": b"no picture"}
    page.locator("#tools input[type=file]").nth(2).set_input_files(bad)
    expect(page.locator(".slot").nth(1).locator(".alarm")).to_contain_text("text.jpg")
    assert page.locator(".slot .alarm").count() == 1
    assert [page.locator(".stage").nth(at).is_visible() for at in range(2)] == [True, False]
    assert page.locator(".controls").is_visible()
    assert page.locator(".sheet button").count() == 9


def test_a_picture_of_too_many_pixels_leaves_no_sliders(visit, serve, small):
    page = visit(serve(lambda: small, pixels=10_000), expected=(413, 422))
    give(page, file("vast.png", height=200, width=200))
    expect(page.locator(".alarm")).to_contain_text("vast.png")
    for gone in (".stage", ".controls", "#heads", "#commands"):
        assert not page.locator(gone).is_visible(), gone


def test_a_busy_server_is_asked_again(visit, address):
    page, tries = visit(address, expected=(503,)), []

    def busy(route) -> None:
        tries.append(route)
        if len(tries) == 1:
            body = {"error": {"code": "queue_full", "message": "full", "remedy": "later"}, "request_id": "x"}
            route.fulfill(status=503, headers={"Retry-After": "1"}, json=body)

    page.route("**/v1/predict*", busy)
    give(page, file())
    wait_until(page, lambda: len(tries) == 2, "the page asks again")
    expect(page.locator("#status")).to_have_text("The server is busy; trying again in 1 s.")
    tries[1].continue_()
    page.locator(".bars").wait_for()
    assert len(tries) == 2


def test_a_server_that_is_gone_is_said(visit, address):
    page = visit(address)
    page.locator("#invitation button").first.wait_for()
    page.route("**/v1/*", lambda route: route.abort())
    give(page, file())
    expect(page.locator(".alarm")).to_have_count(1)
    expect(page.locator(".alarm")).to_contain_text("The server does not respond.")
