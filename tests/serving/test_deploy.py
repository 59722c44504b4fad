"""The files under deploy/: their options are known, their probes are answered, and stopping takes longer than draining."""

from __future__ import annotations

import configparser
import json
import logging
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.cli import build_app
from vitrail.errors import ConfigError
from vitrail.serving import server
from vitrail.serving.limits import ServerLimits
from vitrail.verbs import serve

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture
def started(monkeypatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What the server was started with."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(server, "start", lambda *args, **given: calls.append((args, given)))
    return calls


def run(*words: str) -> None:
    app = build_app("serve")
    command, bound, _ = app.parse_args(["serve", *words], exit_on_error=False, print_error=False)
    command(*bound.args, **bound.kwargs)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / "vitrail.service")
    return parser


def test_the_options_of_the_file_start_the_server_and_those_of_the_command_override_it(started):
    run("--config", str(DEPLOY / "serve.yaml"), "--port", "9000")
    ((model, limits), given) = started[0]
    assert model == "/srv/vitrail/current"
    assert limits == ServerLimits(batch=16, queue=64, deadline=10, drain=25)
    assert (given["host"], given["port"], given["log_format"]) == ("127.0.0.1", 9000, "json")
    assert given["hosts"] == ("photos.example.org", "127.0.0.1")
    assert given["token_file"] == Path("/etc/vitrail/token")
    run("runs/other", "--config", str(DEPLOY / "serve.yaml"))
    assert started[1][0][0] == "runs/other"


@pytest.mark.parametrize(
    ("text", "message"),
    [("prot: 8000", "sets 'prot', no option of vitrail serve"), ("port: fast", "port is 'fast'"), ("- a", "list")],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, message):
    (tmp_path / "serve.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        serve.run("model", config=str(tmp_path / "serve.yaml"))


def test_the_unit_of_systemd_starts_with_known_options_and_waits_for_the_drain(tmp_path):
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[1] == "serve"
    build_app("serve").parse_args(words[1:], exit_on_error=False, print_error=False)
    assert int(service["TimeoutStopSec"]) > ServerLimits().drain
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    if shutil.which("systemd-analyze"):
        copy = tmp_path / "vitrail.service"
        content = (DEPLOY / "vitrail.service").read_text()
        copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", content, flags=re.MULTILINE))
        checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
        assert not [line for line in checked.stderr.splitlines() if copy.name in line], checked.stderr


def test_the_deployment_probes_what_is_answered_and_starts_with_known_options(client):
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    entry = json.loads(re.findall(r"^ENTRYPOINT (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0])
    build_app("serve").parse_args([*entry[1:], *container["args"]], exit_on_error=False, print_error=False)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert client.get(asked["path"], headers={"host": "10.0.0.7:8000"}).status_code == 200, probe
        assert asked["port"] == container["ports"][0]["name"] == service["spec"]["ports"][0]["targetPort"]
    assert pod["terminationGracePeriodSeconds"] > ServerLimits().drain
    assert container["ports"][0]["containerPort"] == int(entry[entry.index("--port") + 1])
    assert pod["securityContext"]["runAsUser"] == int(re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())[0])
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_the_log_in_json_has_an_object_for_each_request(client, png):
    records: list[logging.LogRecord] = []
    access, handler = logging.getLogger("vitrail.access"), logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    access.addHandler(handler)
    before = access.level
    access.setLevel(logging.INFO)
    try:
        client.post("/v1/predict", files={"file": png()}, headers={"x-forwarded-for": 'a"\n' + "b" * 900})
    finally:
        access.setLevel(before)
        access.removeHandler(handler)
    (line,) = [server.JsonFormatter().format(record) for record in records]
    assert "\n" not in line
    found = json.loads(line)
    assert found.keys() >= {"time", "level", "message", "client", "method", "path", "status", "ms", "request_id"}
    assert (found["client"], found["method"], found["route"], found["status"]) == (
        "testclient",
        "POST",
        "/v1/predict",
        200,
    )
    assert len(found["forwarded_for"]) == 200
    assert found["time"].endswith("+00:00")


def test_the_log_in_json_has_the_traceback_of_an_error():
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        info = (RuntimeError, error, error.__traceback__)
    record = logging.LogRecord("vitrail.serving", logging.ERROR, __file__, 1, "failed %s", ("x",), info)
    found = json.loads(server.JsonFormatter().format(record))
    assert found["message"] == "failed x"
    assert "RuntimeError: broken" in found["traceback"]
