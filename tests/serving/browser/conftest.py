"""The page in a real browser: everything it offers is done once, by pointer and by keys, against the real server.

Whatever the browser complains about fails the test: an error in a script, a request to another host, a broken policy.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.browser.page import CHROMIUM, DESK, PATIENCE, model
from tests.serving.written_runs import train
from vitrail.serving.app import create_app
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.service import Service

REFUSED = "Failed to load resource"  # the browser's own words for a refusal; `unwanted` looks at its status
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Starts a server in a thread; the address of its page."""
    import uvicorn

    started: list[tuple[uvicorn.Server, threading.Thread, Service, socket.socket]] = []

    def begin(
        load: Callable[[], LoadedModel] | None, *, token: str | None = None, runs: Path | None = None, **limits
    ) -> str:
        service = Service(load, ServerLimits(**{"deadline": 600.0, **limits}))
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
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
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
        page.set_default_timeout(PATIENCE)
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
