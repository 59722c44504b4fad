"""No verb opens a connection or writes outside of the folders that it was given, of the temporary folder and of the cache."""

from __future__ import annotations

import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
from base64 import b64encode
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.serving.process import PATIENT, Process
from vitrail.cli import build_app
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.native import save_model

# as `sitecustomize` it runs in every interpreter that is started: a line for each file that Python code changes, and for each
# address that it asks for
WATCH = """
import os, sys
inside = tuple(os.environ["WATCH_INSIDE"].split(os.pathsep))
log = os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND)
CHANGES = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.utime"}
WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
HERE = (None, "", "localhost", b"localhost", "127.0.0.1", b"127.0.0.1", "::1")

def watch(event, given):
    if event == "socket.connect" and isinstance(given[1], tuple) and given[1][0] not in HERE:
        note(f"connects to {given[1]}")
    elif event == "socket.getaddrinfo" and given[0] not in HERE:
        note(f"looks up {given[0]!r}")
    elif event in CHANGES or event == "open" and given[2] & WRITE:
        for path in given[: 2 if event in ("os.rename", "os.link") else 1]:
            if isinstance(path, (str, bytes, os.PathLike)) and not os.path.realpath(os.fsdecode(path)).startswith(inside):
                note(f"{event} {os.fsdecode(path)}")

def note(line):
    os.write(log, f"{sys.argv[:3]} {line}\\n".encode())

sys.addaudithook(watch)
"""
RUN = """
import json, sys
from vitrail.cli import run
for words in json.load(open(sys.argv[1])):
    sys.argv = ["vitrail", *words]
    assert run(words) == 0, words
"""
TINY = "--set model.changes.depth=1 --steps 2 --size 32 --quiet"
MODEL = "model"
COMMANDS = f"""
doctor
models vit-b16
settings optim
data check photos
data shard photos shards
data index archives
train photos --out runs/first --workers 1 {TINY}
pretrain photos --objective mae --out runs/mae {TINY}
predict {MODEL} photos
predict {MODEL} photos --parts parts
check-parts parts
embed {MODEL} photos --out features.npy
embed {MODEL} photos --index photos.index
search photos.index photos/test
evaluate {MODEL} photos
probe {MODEL} photos --protocol knn --k 3
transfer {MODEL} photos --protocols knn --out transferred
explain {MODEL} photos/train/a/0.png --out why
inspect {MODEL} --data photos --out inside
convert {MODEL} for-timm --to timm
export {MODEL} --out model.onnx
push {MODEL} hf:owner/name --dry-run
check model.onnx
predict model.onnx photos
study digits --study digits --dry-run
"""
ENDS_BY_ITSELF = {words.split()[0] for words in COMMANDS.strip().splitlines()}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and a model, an empty home, and interpreters that are watched."""
    desk, home, hook = (tmp_path / name for name in ("desk", "home", "hook"))
    for folder in (desk / "tmp", desk / "archives", home, hook):
        folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for number in range(count):
            for name in "ab":
                path = desk / "photos" / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    save_model(desk / MODEL, create_classifier("vit-ti16", classes=("a", "b"), image_size=32, depth=1))
    (hook / "sitecustomize.py").write_text(WATCH)
    (hook / "log.txt").touch()
    inside = (desk, "/dev/", "/proc/self/")
    environment = {
        **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home),
        "PYTHONPATH": os.pathsep.join(map(str, (hook, Path(__file__).parents[2]))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WATCH_INSIDE": os.pathsep.join(map(str, inside)),
        "WATCH_LOG": hook / "log.txt",
        "TMPDIR": desk / "tmp",
        "VITRAIL_CACHE": desk / "cache",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it for its children when it compiles
    monkeypatch.chdir(desk)
    return desk


def upload(address: tuple[str, int]) -> list[int]:
    """The statuses of replies to images of 2 MB that have the names of files and addresses, and to an address itself."""
    noise, file = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8), io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    form = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="../photos/train/a/0.png"\r\n\r\n'
    named = {"name": "http://192.0.2.1/a.png", "data": b64encode(file.getvalue()).decode()}
    bodies = [
        ("multipart/form-data; boundary=edge", form + file.getvalue() + b"\r\n--edge--\r\n"),
        ("application/json", json.dumps({"image": named}).encode()),
        ("application/json", b'{"image": "http://192.0.2.1/a.png"}'),
    ]
    statuses = []
    with closing(http.client.HTTPConnection(*address, timeout=300)) as connection:
        for kind, body in bodies:
            connection.request("POST", "/v1/predict", body, {"Content-Type": kind})
            reply = connection.getresponse()
            statuses.append(reply.status)
            reply.read()
    return statuses


def test_every_verb_is_watched() -> None:
    verbs = {name for name in build_app() if not name.startswith("-")}
    assert verbs == ENDS_BY_ITSELF | {"serve", "weights"}  # `weights get` is there to connect


@pytest.mark.slow
def test_no_verb_connects_or_writes_elsewhere(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server writes nothing at all."""
    commands = [line.split() for line in COMMANDS.strip().splitlines()]
    (desk / "commands.json").write_text(json.dumps(commands))
    with tarfile.open(desk / "archives" / "0.tar", "w") as archive:
        archive.add(desk / "photos/train/a/0.png", "0.png")
    done = subprocess.run([sys.executable, "-c", RUN, "commands.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("WATCH_INSIDE", os.pathsep.join(("/dev/", "/proc/self/")))
    with Process(["-m", "vitrail", "serve", MODEL, "--port", "0", *PATIENT], tmp_path / "serve.txt") as server:
        assert upload(server.address()) == [200, 200, 400]
        assert server.end() == 0
    log = (tmp_path / "hook" / "log.txt").read_text()
    assert not log
    assert list((tmp_path / "home").iterdir()) == []


def test_what_is_written_elsewhere_is_seen(desk: Path, tmp_path: Path) -> None:
    code = "import socket; open('../elsewhere', 'w').close(); one = socket.socket(); one.setblocking(False); "
    subprocess.run([sys.executable, "-c", code + "one.connect_ex(('192.0.2.1', 9))"], check=True)
    assert "open ../elsewhere" in (log := (tmp_path / "hook" / "log.txt").read_text())
    assert "connects to ('192.0.2.1', 9)" in log
