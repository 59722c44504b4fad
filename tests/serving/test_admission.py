"""What is refused at the door, and what every reply carries."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from starlette.testclient import TestClient

from tests.each_row import each_row
from vitrail.serving.admission import Admission
from vitrail.serving.app import create_app
from vitrail.serving.refusals import Refused

TOKEN = "a-token-of-some-length"
SHOWN = {"authorization": f"Bearer {TOKEN}"}


def test_every_reply_is_safe_for_a_browser_and_is_not_kept(client):
    for path in ("/livez", "/v1/model", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


def test_a_request_keeps_a_sound_id_and_gets_one_in_place_of_another(client):
    assert client.get("/livez", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert client.get("/livez", headers={"x-request-id": "a b\tc"}).headers["x-request-id"] != "a b\tc"


WRONG = ("Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}")


def test_without_the_token_nothing_is_told(start, served, png):
    client = start(lambda: served, token=TOKEN)
    for shown in ({}, *({"authorization": words} for words in WRONG)):
        for path in ("/v1/model", "/metrics", "/openapi.json", "/v2", "/v1/nothing"):
            reply = client.get(path, headers=shown)
            assert (reply.status_code, reply.headers.get("www-authenticate")) == (401, "Bearer"), (shown, path)
        assert client.post("/v1/predict", files={"file": png()}, headers=shown).status_code == 401, shown
        assert client.get("/livez", headers=shown).status_code == 200
        assert client.get("/readyz", headers=shown).status_code == 200


def test_with_the_token_all_is_told(start, served, png):
    client = start(lambda: served, token=TOKEN)
    assert client.post("/v1/predict", files={"file": png()}, headers=SHOWN).status_code == 200
    assert client.get("/metrics", headers=SHOWN).status_code == 200


def test_a_page_of_another_site_is_refused_where_no_token_is_asked(client, png):
    own = client.post("/v1/predict", files={"file": png()}, headers={"origin": "http://localhost"})
    foreign = client.post("/v1/predict", files={"file": png()}, headers={"origin": "http://evil.example"})
    assert own.status_code == 200 and foreign.status_code == 403


def test_a_body_over_its_limit_is_refused_with_and_without_a_length(start, served, png):
    content = png(90, 90)
    client = start(lambda: served, body=len(content))
    told = {"content-type": "image/png"}
    assert client.post("/v1/predict", content=content, headers=told).status_code == 200
    for size in (1, 1000, 100_000):
        more = content + b"x" * size
        assert client.post("/v1/predict", content=more, headers=told).json()["error"]["code"] == "too_large"
        chunks = (more[at : at + 999] for at in range(0, len(more), 999))
        assert client.post("/v1/predict", content=chunks, headers=told).status_code == 413
    assert client.service.held == 0


def test_a_client_that_asks_first_is_told_at_once_and_its_connection_closed(start, served):
    client = start(lambda: served, body=10)
    told = {"expect": "100-continue", "content-type": "image/png"}
    reply = client.post("/v1/predict", content=b"x" * 1000, headers=told)
    assert reply.status_code == 413 and reply.headers["connection"] == "close"


def test_a_refusal_at_the_door_keeps_the_words_of_the_protocol(start, served):
    client = start(lambda: served, token=TOKEN)
    assert isinstance(client.get("/v2/models/tiny").json()["error"], str)


def test_the_memory_of_all_requests_together_is_bounded(start, served, png):
    client = start(lambda: served, held=100)
    reply = client.post("/v1/predict", files={"file": png()})
    assert reply.status_code == 503 and reply.headers["retry-after"] and client.service.held == 0


def test_too_many_pixels_and_too_many_images_are_refused(start, served, png):
    client = start(lambda: served, pixels=40 * 52, images=2)
    assert client.post("/v1/predict", files={"file": png(40, 52)}).status_code == 200
    assert "million pixels" in client.post("/v1/predict", files={"file": png(41, 52)}).json()["error"]["message"]
    assert client.post("/v1/predict", files=[("file", png())] * 3).status_code == 413


def test_large_images_are_decoded_one_at_a_time(client, png, monkeypatch):
    service, held = client.service, []
    monkeypatch.setattr("vitrail.serving.service.LARGE", 40 * 52)
    for content in (png(40, 52), png(41, 52)):
        service._decode(lambda content, most_pixels: held.append(service._large.locked()), content)
    assert held == [False, True]


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """What is logged inside the block, with the access log."""
    records, handler, access = [], logging.Handler(), logging.getLogger("vitrail.access")
    handler.emit = records.append
    logging.getLogger("vitrail").addHandler(handler)
    before = access.level
    access.setLevel(logging.INFO)
    try:
        yield records
    finally:
        access.setLevel(before)
        logging.getLogger("vitrail").removeHandler(handler)


def test_the_log_has_a_line_for_each_request_and_a_traceback_with_the_id_of_one_that_failed(client, png, monkeypatch):
    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(client.service, "run_each", fail)
    with logged() as records:
        client.get("/livez")
        client.get("/nothing")
        assert client.post("/v1/predict", files={"file": png()}, headers={"x-request-id": "mine-7"}).status_code == 500
    lines = [record.getMessage() for record in records if record.name == "vitrail.access"]
    assert [line.partition(" in ")[0] for line in lines] == [
        "testclient GET '/livez' 200",
        "testclient GET '/nothing' 404",
        "testclient POST '/v1/predict' 500",
    ]
    (failed,) = [record for record in records if record.exc_info]
    assert failed.exc_info[0] is RuntimeError and "mine-7" in failed.getMessage()


def test_a_full_queue_says_when_to_come_again_and_the_rest_is_answered(start, served, png):
    client = start(lambda: served, queue=2, images=1)
    with client.service.batcher.reserve(2, "answer", time.monotonic() + 600):
        replies = [client.post("/v1/predict", files={"file": png()}) for _ in range(3)]
    assert {reply.status_code for reply in replies} == {503}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies)
    assert client.post("/v1/predict", files={"file": png()}).status_code == 200


def test_a_body_that_comes_after_its_queue_has_filled_is_refused_before_the_routes(start, served, png):
    service = start(lambda: served, queue=2, images=1).service
    sent, taken = [], ExitStack()

    async def never(*_):
        raise AssertionError("the routes were called")

    async def receive():
        taken.enter_context(service.batcher.reserve(2, "answer", time.monotonic() + 600))
        return {"type": "http.request", "body": png()}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "raw_path": b"/v1/predict", "query_string": b""}
    with taken:
        asyncio.run(Admission(never, service, token=None, hosts=None)({**scope, "headers": []}, receive, send))
    assert sent[0]["status"] == 503 and service.batcher.reserved == service.held == 0


def test_admission_learns_how_long_decoding_takes(client, png):
    assert client.service.batcher.preparation.predict(1) == 0
    assert client.post("/v1/predict", files={"file": png()}).status_code == 200
    assert client.service.batcher.preparation.predict(1) > 0


def test_a_deadline_that_passes_is_a_504(start, served, png):
    client = start(lambda: served)
    busy, free = threading.Event(), threading.Event()

    def block(items):
        busy.set()
        free.wait(600)
        return items

    with client:
        client.portal.start_task_soon(client.service.batcher.run, block, 0, time.monotonic() + 600)
        assert busy.wait(600)
        soon = {"x-deadline-ms": "50"}
        late = [
            client.post(f"/v1/{path}", files={"file": png()}, headers=soon) for path in ("predict", "embed", "explain")
        ]
        image = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [b64encode(png()).decode()]}
        late.append(client.post("/v2/models/tiny/infer", json={"inputs": [image]}, headers=soon))
        free.set()
        assert [reply.status_code for reply in late] == [504] * 4 and late[0].json()["error"]["code"] == "deadline"
        assert client.post("/v1/predict", files={"file": png()}).status_code == 200
    assert client.post("/v1/predict", files={"file": png()}, headers={"x-deadline-ms": "soon"}).status_code == 400
    batcher = client.service.batcher
    with batcher.reserve(
        batcher.capacity, "answer", time.monotonic() + 1000
    ):  # 504 whatever waits: another try cannot help
        assert client.post("/v1/predict", files={"file": png()}, headers={"x-deadline-ms": "0"}).status_code == 504


def test_lengths_that_are_told_twice_or_not_at_all_are_refused(client, png):
    twice = {"transfer-encoding": "chunked", "content-length": "3", "content-type": "image/png"}
    reply = client.post("/v1/predict", content=b"abc", headers=twice)
    assert (reply.status_code, reply.headers["connection"]) == (400, "close")


def test_an_origin_that_is_no_address_is_refused(client):
    assert client.get("/livez", headers={"Origin": "http://["}).status_code == 403


def test_only_a_whole_host_header_is_an_allowed_name(start, served):
    service = start(lambda: served).service
    client = TestClient(create_app(service, token=None, hosts=["localhost", "[::1]"], runs=None))
    allowed = ("localhost", "localhost:8000", "[::1]", "[::1]:8000")
    refused = (
        "[::1]x",
        "[::1]:8000x",
        "[::1].example.org",
        "localhost:x",
        "localhost:80:80",
        "x[::1]",
        "[::1",
        "",
        ":80",
    )
    statuses = {host: client.get("/v1/model", headers={"host": host}).status_code for host in (*allowed, *refused)}
    assert statuses == dict.fromkeys(allowed, 200) | dict.fromkeys(refused, 403)
    for path in ("/livez", "/readyz"):
        assert client.get(path, headers={"host": "10.0.0.7:8000"}).status_code == 200


def test_a_head_beyond_64_kilobytes_is_refused(client):
    for given in ({"headers": {"x-a": "a" * 70_000}}, {"headers": {f"x-{at}": "a" * 90 for at in range(800)}}):
        reply = client.get("/v1/model", **given)
        assert (reply.status_code, reply.json()["error"]["code"]) == (431, "head_too_large")
    assert client.get("/v1/model", headers={"x-a": "a" * 60_000}).status_code == 200


@each_row("seconds, header", [(0.0, "1"), (0.3, "1"), (1.0, "1"), (1.2, "2"), (7.9, "8")])
def test_the_time_to_come_again_is_rounded_up_to_whole_seconds(seconds, header):
    assert Refused("overloaded", "busy", retry_after=seconds).headers == {"Retry-After": header}
