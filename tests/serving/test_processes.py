"""`vitrail serve --processes`: one port, one set of metrics, reloads that reach every process, replacement, and the end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.serving.process import PATIENT, Process, family, serve
from tests.serving.questions import model, photographs
from vitrail.cli import run
from vitrail.serving import processes
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow  # several servers are started

TOKEN = "for-this-test-and-no-other"
READY = re.compile(r"serving model \w+")
LIMIT = 300.0  # seconds on a busy machine


@pytest.fixture
def starting(tmp_path) -> Iterator[Process]:
    save_model(tmp_path / "model.safetensors", model("a"))
    (tmp_path / "token").write_text(TOKEN)
    words = ("--processes", "2", "--token-file", str(tmp_path / "token"), *PATIENT)
    with serve(tmp_path / "model.safetensors", tmp_path / "log.txt", *words) as process:
        yield process


@pytest.fixture
def server(starting) -> Process:
    wait_until(lambda: len(READY.findall(starting.stderr)) == 2, starting)
    return starting


def wait_until(holds: Callable[[], bool], process: Process) -> None:
    limit = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < limit and process.child.poll() is None, process.stderr
        time.sleep(0.05)


def ask(process: Process, method: str, path: str, body: bytes = b"") -> str:
    connection = HTTPConnection(*process.address(), timeout=LIMIT)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "image/jpeg"}
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    content = reply.read().decode()
    connection.close()
    assert reply.status == 200, content
    return content


def predict(process: Process) -> dict:
    return json.loads(ask(process, "POST", "/v1/predict", photographs(1)[0]))


def counts(process: Process, predictions: int) -> bool:
    """Whether so many predictions are in the metrics; they are counted after the reply."""
    return f'vitrail_requests_total{{code="200",route="/v1/predict"}} {predictions}.0' in ask(
        process, "GET", "/metrics"
    )


def workers(process: Process) -> list[int]:
    """The processes that hold the listening socket, without the supervisor and multiprocessing's resource tracker."""
    started = family(process.child.pid)[1:]
    return [pid for pid in started if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_requests_are_counted_together_and_a_reload_reaches_every_process(server, tmp_path):
    for _ in range(8):
        predict(server)
    wait_until(lambda: counts(server, 8), server)
    before = predict(server)["model"]["version"]
    save_model(tmp_path / "model.safetensors", model("b"))
    after = json.loads(ask(server, "POST", "/v1/reload"))["model"]["version"]
    wait_until(lambda: server.stderr.count(f"instead of {before}") == 2, server)
    assert {predict(server)["model"]["version"] for _ in range(16)} == {after} != {before}
    assert f'version="{after}"}} 1.0' in (metrics := ask(server, "GET", "/metrics"))
    assert f'version="{before}"}} 0.0' in metrics and "vitrail_ready 1.0" in metrics


def test_a_process_that_was_killed_is_replaced_and_a_signal_ends_all(server):
    predict(server)
    wait_until(lambda: counts(server, 1), server)
    killed, kept = workers(server)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(READY.findall(server.stderr)) == 3, server)
    assert f"process {killed} of the server ended with exit code -9; another is started" in server.stderr
    assert kept in workers(server) and killed not in workers(server)
    predict(server)
    wait_until(lambda: counts(server, 2), server)
    last = workers(server)
    assert server.end() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in last)
    assert server.stderr.count("draining") == 2 and "Traceback" not in server.stderr


def test_a_reload_waits_for_a_process_that_is_starting(starting):
    starting.address()  # of two processes one is ready
    starting.child.send_signal(signal.SIGHUP)
    wait_until(lambda: starting.stderr.count("reloaded: serving model") == 2, starting)
    assert "vitrail_ready 1.0" in ask(starting, "GET", "/metrics")
    assert starting.end() == 0


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGHUP, ["reload"]), (signal.SIGTERM, [signal.SIGTERM]), (None, [])]
)
def test_a_signal_while_a_process_is_started_reaches_it(monkeypatch, number, expected):
    supervisor = processes.Supervisor(1, print, None, prepare=print)  # type: ignore[arg-type]
    received: list[object] = []

    class Signalled:
        """A worker during whose start a signal arrives."""

        def __init__(self, *given: object) -> None:
            if number is not None:
                supervisor._handle(number, None)

        def reload(self) -> None:
            received.append("reload")

        send = staticmethod(received.append)

    monkeypatch.setattr(processes, "Worker", Signalled)
    supervisor._start()
    assert received == expected


def test_others_serve_while_a_replacement_cannot_load_the_model(server, tmp_path):
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(b"<html>not found</html>")
    os.kill(workers(server)[0], signal.SIGKILL)
    wait_until(lambda: "another is started in 30 seconds" in server.stderr, server)
    predict(server)
    (tmp_path / "model.safetensors").write_bytes(content)
    wait_until(lambda: len(READY.findall(server.stderr)) == 3, server)
    assert len(workers(server)) == 2


def test_ctrl_c_reaches_all_processes_and_lets_them_finish(server):
    address = server.address()
    for pid in family(server.child.pid):
        os.kill(pid, signal.SIGINT)
    assert server.child.wait(LIMIT) == 0
    assert server.stderr.count("draining") == 2 and "Traceback" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection(*address).connect()


def test_processes_end_with_a_supervisor_that_was_killed(server):
    last = workers(server)
    server.child.kill()
    limit = time.monotonic() + LIMIT
    while any(Path(f"/proc/{pid}").exists() for pid in last):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_the_error_of_a_model_ends_the_command_once(tmp_path, capfd):
    (tmp_path / "model.safetensors").write_bytes(b"<html>not found</html>")
    assert run(["serve", str(tmp_path / "model.safetensors"), "--port", "0", "--processes", "2"]) == 4
    said = capfd.readouterr().err
    assert said.count("error:") == 1 and "listening" not in said
    assert processes.METRICS not in os.environ


def test_fewer_than_one_process_is_refused(capsys):
    assert run(["serve", "x", "--processes", "0"]) == 2
    assert "--processes 0" in capsys.readouterr().err
