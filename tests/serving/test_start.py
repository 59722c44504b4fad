"""From the command line to a socket: tokens, reach, and what is refused before anything is loaded."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Iterator

import pytest
import uvicorn

from vitrail.cli import run
from vitrail.errors import ConfigError
from vitrail.serving import server as module
from vitrail.serving.app import create_app
from vitrail.serving.limits import ServerLimits
from vitrail.serving.server import TICKS, Server, bind, check_reach, read_token


def test_a_token_is_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("VITRAIL_TOKEN", "from-the-environment")
    assert read_token(None) == "from-the-environment"
    file = tmp_path / "token"
    file.write_text("from-a-file-of-one-line\n")
    assert read_token(file) == "from-a-file-of-one-line"


def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused_without_showing_it(tmp_path):
    file = tmp_path / "token"
    for content in (b"", b"short", b"with a blank inside of it", b"x" * 257, b"\xff" * 20):
        file.write_bytes(content)
        with pytest.raises(ConfigError) as refused:
            read_token(file)
        assert content.decode(errors="replace") not in refused.value.what or not content, content


def test_beyond_this_machine_a_token_is_required():
    check_reach("127.0.0.1", None)
    check_reach("0.0.0.0", "a-token-of-some-length")
    with pytest.raises(ConfigError, match="requires a token"):
        check_reach("0.0.0.0", None)


def test_an_address_that_is_taken_or_none_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="in use"):
            bind("127.0.0.1", taken.getsockname()[1])
    for host, port in (("127.0.0.1", 70_000), ("no such host.", 80), ("127.0.0.1", -1)):
        with pytest.raises(ConfigError, match=r"cannot listen on|out of range"):
            bind(host, port)


@pytest.fixture
def server(start) -> Iterator[Server]:
    service = start(None).service
    config = uvicorn.Config(create_app(service), log_config=None)
    config.load()
    yield Server(config, service)
    service.decoders.shutdown()


def test_names_of_hosts_that_are_given_replace_those_of_this_machine(monkeypatch):
    asked = []

    def create(*_, hosts, **__):
        asked.append(hosts)
        raise ConfigError("this is enough", "end here")

    monkeypatch.setattr(module, "create_app", create)
    monkeypatch.setenv("VITRAIL_TOKEN", "a-token-of-some-length")
    for words in ([], ["--allow-host", "a.example", "--allow-host", "b"], ["--host", "0.0.0.0"]):
        assert run(["serve", "--runs", ".", "--port", "0", *words]) == 2
    assert asked == [("127.0.0.1", "localhost", "[::1]"), ("a.example", "b"), None]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_a_second_one_ends_at_once(server, number):
    with server.capture_signals():
        handle = signal.getsignal(number)
    assert handle == server.handle_exit
    handle(number, None)
    assert (server.service.draining, server.should_exit, server.force_exit) == (True, False, False)
    handle(number, None)
    assert (server.should_exit, server.force_exit) == (True, True)


def test_replies_are_awaited_until_the_time_to_drain_has_passed(server, monkeypatch):
    async def shutdown(server, sockets=None):
        seconds.append(server.config.timeout_graceful_shutdown)

    seconds = []
    monkeypatch.setattr(uvicorn.Server, "shutdown", shutdown)
    server.servers = []
    for passed in (5.5, 100.0):
        server._stop_time = time.monotonic() - passed
        asyncio.run(server.shutdown())
    assert seconds == [19, 1]  # of 25


def test_limits_that_cannot_be_meant_are_refused():
    for changes in ({"queue": 0}, {"deadline": -1}, {"queue": 8}, {"body": 0}):
        with pytest.raises(ConfigError):
            ServerLimits(**changes)


def test_without_its_extra_it_is_said_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["serve", "model"]) == 2
    assert "pip install 'vitrail[serve]'" in capsys.readouterr().err


MISTAKES = [
    ([], "nothing to serve"),
    (["--runs", "nowhere"], "no folder nowhere"),
    (["missing.onnx"], "no weights at 'missing.onnx'"),
    (["x", "--host", "0.0.0.0"], "requires a token"),
    (["x", "--token-file", "nowhere"], "cannot read the token"),
    (["x", "--name", "a/b", "--port", "0"], "not valid in a URL"),
    (["x", "--queue", "3"], "exceed the queue of 3"),
    (["x", "--port", "many"], "--port"),
]


def test_a_mistake_is_reported_with_a_clear_message(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)
    wrong = []
    for words, said in MISTAKES:
        status, told = run(["serve", *words]), capsys.readouterr().err
        if status != 2 or said not in told or "Traceback" in told:
            wrong.append((words, status, told))
    assert not wrong


def test_a_model_is_tuned_for_the_largest_batch_unless_that_is_switched_off(monkeypatch):
    asked = []

    def load(model, *, options, **rest):
        asked.append((options.batch, options.tune))
        raise ConfigError("this is enough", "end here")

    monkeypatch.setattr("vitrail.serving.server.load_model", load)
    for words in ([], ["--max-batch", "5", "--no-tune"]):
        assert run(["serve", "model", "--port", "0", *words]) == 2
    assert asked == [(16, True), (5, False)]


def test_a_server_gives_freed_memory_back_every_ten_seconds(server, monkeypatch):
    released = []
    monkeypatch.setattr("vitrail.serving.server.release_memory", lambda: released.append(1))

    async def tick() -> None:
        for counter in range(2 * TICKS):
            await server.on_tick(counter)

    asyncio.run(tick())
    server.service.decoders.shutdown()
    assert len(released) == 2
