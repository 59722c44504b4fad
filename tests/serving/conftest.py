"""A small model behind its routes, without a socket."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from tests.looked_at import picture, shaken
from vitrail.serving.app import create_app
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.service import Service


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
        services.append(Service(load, ServerLimits(**limits)))
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
