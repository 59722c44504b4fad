"""Files as released versions wrote them, an archive for each. ``python -m tests.stable.written`` adds that of this version."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import vitrail
from tests.written_kinds import IMAGES, Kind, ignore, write_kinds

ARCHIVES = Path(__file__).with_name("written")
PLACE = Path("/tmp/vitrail-written")  # which stands in an index
CACHES = ("cached features", "decoded images")  # of another version they are computed again
MODELS = (
    "native",
    "single.safetensors",
    "timm/timm",
    "google/a.npz",
    "huggingface/hf",
    "sidecar/b.safetensors",
    "run/model",
)


def list_kinds() -> list[Kind]:
    """Writes every kind of file into the current folder."""
    return [kind for kind in write_kinds(Path(), exports=False) if kind.name not in CACHES]


def answer(path: str) -> np.ndarray:
    """The logits of a model of the current folder for `IMAGES`, cut to its size."""
    model = vitrail.load(path, log=ignore)
    height, width = model.preprocessing.size
    with torch.inference_mode():
        return model(IMAGES[..., :height, :width]).numpy()


def write_archive(version: str) -> Path:
    """Writes the files of this version, and what its models answer, into ``written/VERSION.tar.xz``."""
    target = ARCHIVES / f"{version}.tar.xz"
    target.parent.mkdir(exist_ok=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    with contextlib.chdir(PLACE), mock.patch("socket.gethostname", return_value="host"):
        kinds = list_kinds()
        files = sorted(file for kind in kinds for file in kind.files)
        np.savez("answers.npz", **{path: answer(path) for path in MODELS})
        Path("kinds.json").write_text(json.dumps([kind.name for kind in kinds]))
        with tarfile.open(target, "w:xz") as archive:
            for path in (*files, Path("answers.npz"), Path("kinds.json")):
                member = tarfile.TarInfo(path.as_posix())  # without owner and time
                member.size = path.stat().st_size
                archive.addfile(member, io.BytesIO(path.read_bytes()))
    shutil.rmtree(PLACE)
    return target


if __name__ == "__main__":
    print(write_archive(vitrail.__version__))
