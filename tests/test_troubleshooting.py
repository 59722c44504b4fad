"""The page of troubleshooting quotes the messages that vitrail prints: each is provoked here and looked for in the page."""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
from pathlib import Path

import pytest

from tests.each_row import each_row
from tests.looked_at import picture, shaken
from vitrail.cli import run
from vitrail.runs import checkpoint
from vitrail.weights.native import save_model

PAGE = (Path(__file__).parent.parent / "docs/troubleshooting.md").read_text()
QUOTED = [line for line in PAGE.splitlines() if line.startswith("error: ")]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 22\n"

# the command, its exit code, and the beginning of the line that the page quotes
MISTAKES = {
    "train photos --epoch 3": (2, "Unknown option: --epoch. Did you mean --epochs?"),
    "train photos --set optim.rate=1": (2, "unknown setting 'optim.rate'"),
    "train photos --recipe deit4": (2, "unknown recipe 'deit4'"),
    "train photos --model vit-b17": (2, "there is no model 'vit-b17'"),
    "predict pvt-tiny cat.png": (2, "no public weights of pvt-tiny are known"),
    "train photos --init weights.safetensors --model vit-b16": (2, "both --init weights.safetensors and --model vit-b16"),
    "train photos --precision fp16 --device cpu": (2, "fp16 training needs a GPU"),
    "train flat": (3, "the data have no labels (an unlabelled folder of images)"),
    "train one": (3, "the data have 1 class: cat"),
    "evaluate model fish": (3, "the data have a class not among the 2 given classes"),
    "predict model cut.png": (3, "the image could not be read: cut.png: OSError: image file is truncated"),
    "predict model photo.heic": (3, "the image could not be read: photo.heic: HEIC images are not supported"),
    "predict model 'none/*.jpg'": (3, "nothing matches 'none/*.jpg'"),
    "predict nothing cat.png": (2, "there are no weights at 'nothing'"),
    "predict cut.safetensors cat.png": (4, "cut.safetensors has 100 bytes, which is less than its header"),
    "predict pointer.safetensors cat.png": (4, "pointer.safetensors is a pointer of Git LFS, not the weights"),
    "serve model --host 0.0.0.0": (2, "--host 0.0.0.0 accepts connections from other machines, which requires a token"),
}  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """The folder in which the mistakes are made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)
    classes = [f"{data}/{name}/a.png" for data in ("photos", "fish") for name in ("cat", "dog")]
    for path in map(Path, ("cat.png", "flat/a.png", "one/cat/a.png", *classes)):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(40, 48).save(path)
    Path("fish/cat").rename("fish/eel")
    Path("cut.png").write_bytes(Path("cat.png").read_bytes()[:200])
    Path("photo.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    Path("pointer.safetensors").write_text(LFS)
    save_model(Path("model"), shaken(names=("cat", "dog")))
    weights = Path("model/model.safetensors").read_bytes()
    Path("weights.safetensors").write_bytes(weights)
    Path("cut.safetensors").write_bytes(weights[:100])
    return tmp_path


@each_row("command", MISTAKES)
def test_a_message_is_quoted_as_it_is_printed(command, desk, capsys):
    code, beginning = MISTAKES[command]
    assert run(shlex.split(command)) == code
    assert f"error: {beginning}" in capsys.readouterr().err
    assert any(line.startswith(f"error: {beginning}") for line in QUOTED)


def test_a_full_disk_is_quoted(desk, monkeypatch, capsys):
    def fill(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "write_bytes", fill)
    assert run(shlex.split("train digits --steps 1 --batch 8 --out runs/photos --set save.every=0.001 --quiet")) == 6
    full, needed, *_ = capsys.readouterr().err.splitlines()
    place = "runs/photos/checkpoints/step-"
    assert full.startswith(f"error: the disk is full: {place}")
    assert any(line.startswith(f"error: the disk is full: {place}") for line in QUOTED)
    assert re.fullmatch(r"  needed [\d,.]+ MB, free [\d,.]+ MB", needed)


def test_a_port_in_use_is_quoted(desk, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "model", "--port", str(port)]) == 2
    printed = capsys.readouterr().err.splitlines()[0]
    assert printed.replace(str(port), "8123") in QUOTED
