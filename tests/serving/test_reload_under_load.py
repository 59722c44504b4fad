"""A new model under load, many times by signal and by request in turns: no request fails, and every reply is wholly of the
version that it names, labels and scores. A file that is no model leaves the old one in place.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.serving.load import Connection, Question, Reply, Tally, is_prediction, request, upload
from tests.serving.process import Process, serve
from tests.serving.questions import model, photographs
from tests.slow import few_or_nightly
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
CLIENTS = 16
TOKEN = "for-this-test-and-no-other"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
BAD = {
    "empty": lambda sound: b"",
    "cut short": lambda sound: sound[: len(sound) // 2],
    "no model": lambda sound: b"<html>not found</html>",
    "one byte of its header changed": lambda sound: sound[:8] + b"[" + sound[9:],
}


class Served:
    """A server, tuned as by default, whose model file is replaced under it, and what its replies say of the versions."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.safetensors"
        self.images = photographs(20)
        self.files: dict[str, bytes] = {}
        self.tops: dict[str, list] = {}
        self.letters: dict[str, set[str]] = {}  # by version: the models whose labels came under its name
        for letter in "ab":
            classifier = model(letter)
            self.files[letter] = save_model(folder / letter / "model.safetensors", classifier).read_bytes()
            self.tops[letter] = [is_prediction(each.top) for each in classifier.predict(self.images)]
        self.put(self.files["a"])
        (folder / "token").write_text(TOKEN)
        words = ("--token-file", str(folder / "token"), "--deadline", "600")
        self.process: Process = serve(self.path, folder / "stderr.txt", *words)

    def put(self, content: bytes) -> None:
        aside = self.path.with_suffix(".aside")
        aside.write_bytes(content)
        os.replace(aside, self.path)

    def question(self, place: int) -> Question:
        def is_answer(reply: Reply) -> bool:
            told = json.loads(reply.body)
            letter = told["predictions"][0]["label"][0]
            self.letters.setdefault(told["model"]["version"], set()).add(letter)
            return self.tops[letter][place](reply)

        return Question(upload("/v1/predict", self.images[place], **ALLOWED), is_answer)

    async def told(self, method: str, path: str) -> tuple[int, Any]:
        connection = Connection(self.process.address())
        reply = await connection.ask(request(method, path, **ALLOWED))
        connection.close()
        return reply.status, json.loads(reply.body)

    async def take(self, letter: str) -> str:
        """Serves this model, with nothing seen yet. Returns its version."""
        self.put(self.files[letter])
        status, told = await self.told("POST", "/v1/reload")
        assert status == 200
        self.letters.clear()
        return told["model"]["version"]

    async def version(self) -> str:
        status, about = await self.told("GET", "/v1/model")
        assert status == 200
        return about["version"]

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[Tally]:
        """Clients ask all the while; after the block no reply may have failed or been wrong."""
        tally, over = Tally(), asyncio.Event()
        asked = cycle([self.question(place) for place in range(len(self.images))])

        async def client() -> None:
            connection = Connection(self.process.address())
            while not over.is_set():
                await tally.ask(connection, next(asked))
            connection.close()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(client())
            try:
                yield tally
            finally:
                over.set()
        assert tally.statuses == {200: tally.sent}
        assert (tally.lost, tally.wrong, tally.unreachable) == (0, 0, 0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("reload"))
    with served.process as server:
        yield served
        assert server.end() == 0
    assert "Traceback" not in server.stderr


async def reload_often(served: Served, count: int) -> None:
    versions = [await served.take("a")]
    async with served.under_load() as tally:
        for number in range(1, count + 1):
            before = tally.sent
            served.put(served.files["ab"[number % 2]])
            if number % 2:
                served.process.child.send_signal(signal.SIGHUP)
                while (now := await served.version()) == versions[-1]:
                    await asyncio.sleep(0.02)
            else:
                status, told = await served.told("POST", "/v1/reload")
                now = told["model"]["version"]
                assert (status, told["previous"]) == (200, versions[-1])
            versions.append(now)
            while tally.sent < before + 2 * CLIENTS:  # so that each version answers some
                await asyncio.sleep(0.01)
    first, second = versions[:2]
    assert versions == [(first, second)[number % 2] for number in range(count + 1)]
    assert served.letters == {first: {"a"}, second: {"b"}}


@pytest.mark.parametrize("count", few_or_nightly(8, 100))
def test_new_models_under_load_fail_no_request_and_no_reply_mixes_two(served: Served, count: int) -> None:
    asyncio.run(asyncio.wait_for(reload_often(served, count), 540))


async def offer_bad_files(served: Served) -> None:
    version = await served.take("a")
    async with served.under_load() as tally:
        for spoil in BAD.values():
            before = tally.sent
            served.put(spoil(served.files["b"]))
            served.process.child.send_signal(signal.SIGHUP)
            status, told = await served.told("POST", "/v1/reload")
            assert status == 409
            assert told["error"]["message"] and str(served.path.parent) not in json.dumps(told)
            assert (await served.told("GET", "/readyz"))[0] == 200
            while tally.sent < before + 2 * CLIENTS:
                await asyncio.sleep(0.01)
            assert await served.version() == version
        served.path.unlink()
        assert (await served.told("POST", "/v1/reload"))[0] == 409
        assert served.letters == {version: {"a"}}
    assert await served.take("b") != version


def test_a_file_that_is_not_a_model_leaves_the_old_one_in_place(served: Served) -> None:
    asyncio.run(asyncio.wait_for(offer_bad_files(served), 300))
