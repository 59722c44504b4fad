"""A small model behind its routes, without a socket; and a server as a process, one for each module that asks for it."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from tests.looked_at import picture, shaken
from tests.serving.load import Question, closed_loop
from tests.serving.process import PATIENT, Process, serve
from tests.serving.questions import model, photographs, questions
from vitrail.serving.app import create_app
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.service import Service
from vitrail.weights.native import save_model

LOGGED = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (INFO|WARNING) ")  # and no traceback


@pytest.fixture(scope="session")
def served() -> LoadedModel:
    return LoadedModel(shaken(), "tiny", about={"source": "tiny.safetensors", "metrics": {"top1": 0.5}})


@pytest.fixture(scope="session")
def png() -> Callable[..., bytes]:
    """The bytes of a picture of that size and seed."""

    def make(height: int = 40, width: int = 52, seed: int = 0) -> bytes:
        file = io.BytesIO()
        picture(height, width, seed).save(file, "PNG")
        return file.getvalue()

    return make


@pytest.fixture
def start() -> Iterator[Callable[..., TestClient]]:
    """A client of a new server; ``load`` gives its model, the rest is of `ServerLimits` and `create_app`."""
    services: list[Service] = []

    def begin(load: Callable[[], LoadedModel] | None, *, token: str | None = None, runs=None, **limits) -> TestClient:
        services.append(Service(load, ServerLimits(**{"deadline": 600.0, **limits})))
        app = create_app(services[-1], token=token, hosts=None, runs=runs)
        client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
        client.service = services[-1]
        return client

    yield begin
    for service in services:
        service.close()


@pytest.fixture
def client(start, served) -> TestClient:
    return start(lambda: served)


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    """Twenty images for the model of `server`, with the answers that it gave offline."""
    return questions(model(), photographs(20))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, asked: list[Question]) -> Iterator[Process]:
    """After all tests of a module it must still answer, end well and have said nothing bad."""
    folder = tmp_path_factory.mktemp("server")
    path = save_model(folder / "model.safetensors", model())
    with serve(path, folder / "stderr.txt", *PATIENT) as started:
        started.address()
        yield started
        tally = asyncio.run(closed_loop(started.address(), iter(asked), clients=4))
        assert (tally.statuses, tally.wrong) == ({200: 20}, 0)
        assert started.end() == 0
    assert [line for line in started.stderr.splitlines() if not LOGGED.match(line)] == []
