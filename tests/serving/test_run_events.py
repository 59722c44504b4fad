"""The event stream of a run: its rows and its state, live while it trains, and from any place in its file on."""

from __future__ import annotations

import asyncio
import json

from tests.serving.written_runs import client_of, train
from vitrail.serving import runs as serving
from vitrail.serving.runs import follow_run


def test_the_events_of_a_finished_run_are_all_its_rows_and_its_state_and_end(tmp_path):
    train(tmp_path / "flowers")
    text = client_of(tmp_path).get("/v1/runs/flowers/events").text
    rows = [
        json.loads(block.splitlines()[2].removeprefix("data: "))
        for block in text.split("\n\n")
        if "event: row" in block
    ]
    assert rows == client_of(tmp_path).get("/v1/runs/flowers/metrics").json()["rows"]
    assert text.endswith('event: state\ndata: {"state": "finished", "step": 6, "steps": 6}\n\n')


def test_events_go_on_from_a_place_in_the_file(tmp_path):
    train(tmp_path / "flowers")
    client = client_of(tmp_path)
    first = client.get("/v1/runs/flowers/events").text
    seen = first.split("id: ")[5].split("\n")[0]
    for asked in ({"params": {"at": seen}}, {"headers": {"Last-Event-ID": seen}}):
        rest = client.get("/v1/runs/flowers/events", **asked).text
        assert rest.count("event: row") == first.count("event: row") - 5
    at = client.get("/v1/runs/flowers/metrics").json()["at"]
    assert "event: row" not in client.get("/v1/runs/flowers/events", params={"at": at}).text
    for odd in (-1, 10**30, "x"):
        assert client.get("/v1/runs/flowers/events", params={"at": odd}).status_code == 422
    for odd in ("x", "-1", "9" * 40, "٣"):
        assert client.get("/v1/runs/flowers/events", headers={"Last-Event-ID": odd.encode()}).status_code == 200


def test_events_of_metrics_longer_than_one_read_are_complete(tmp_path, monkeypatch):
    train(tmp_path / "flowers")
    monkeypatch.setattr(serving, "MAX_BYTES", 200)
    client = client_of(tmp_path)
    path = tmp_path / "flowers" / "metrics.jsonl"
    rows = client.get("/v1/runs/flowers/metrics").json()["rows"]
    path.write_bytes(b"x" * 1000 + b"\n" + path.read_bytes())
    text = client.get("/v1/runs/flowers/events").text
    assert text.count("event: row") == len(rows) and text.endswith('"steps": 6}\n\n')


def collect(events, *, until: int) -> list[str]:
    async def some() -> list[str]:
        found = []
        async for event in events:
            found.append(event)
            if len(found) == until:
                break
        await events.aclose()
        return found

    return asyncio.run(some())


def test_rows_come_while_a_run_trains_and_the_stream_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "EVERY", 0.01)
    folder = train(tmp_path / "live", steps=1, state="running")
    metrics = folder.path / "metrics.jsonl"
    found = []

    async def on_attention() -> None:
        async for event in follow_run(folder.path, metrics.stat().st_size, lambda: False):
            found.append(event)
            if len(found) == 1:
                with open(metrics, "a") as file:
                    file.write('{"step": 2, "loss"')
                    file.flush()
                    await asyncio.sleep(0.05)
                    assert len(found) == 1
                    file.write(": 0.5}\n")
            elif len(found) == 2:
                folder.write_status("finished", steps=2)

    asyncio.run(asyncio.wait_for(on_attention(), 300))
    assert ["state" in found[0], "row" in found[1], '"finished"' in found[2], len(found)] == [True, True, True, 3]
    assert json.loads(found[1].splitlines()[2].removeprefix("data: ")) == {"step": 2, "loss": 0.5}


def test_who_watches_is_let_go_when_the_server_drains(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "EVERY", 0.01)
    folder, asked = train(tmp_path / "live", state="running"), []

    def draining() -> bool:
        asked.append(True)
        return len(asked) > 3

    size = (folder.path / "metrics.jsonl").stat().st_size
    assert len(collect(follow_run(folder.path, size, draining), until=99)) == 1
    assert len(asked) == 4


def test_a_quiet_run_is_heard_to_live(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "EVERY", 0.01)
    monkeypatch.setattr(serving, "QUIET", 0.02)
    folder = train(tmp_path / "live", state="running")
    size = (folder.path / "metrics.jsonl").stat().st_size
    assert collect(follow_run(folder.path, size, lambda: False), until=2)[1].startswith(":")


def test_too_many_who_watch_are_told_to_come_later(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "WATCHERS", 0)
    train(tmp_path / "flowers")
    reply = client_of(tmp_path).get("/v1/runs/flowers/events")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "10")
