"""The first ten minutes with a folder of photographs: what one tries works or says what to do, and nothing is silent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save_file

import vitrail
from vitrail.cli import run
from vitrail.errors import VitrailError
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.timm import as_timm

NESTED = "grocery"
SHALLOW = 2  # blocks, in place of 12
QUIETLY = f"--quiet --set model.changes.depth={SHALLOW}"
TRAIN = ["train", "photos", "--init", "weights.safetensors", "--size", "64", "--epochs", "2", "--out", "runs/first"]


class Action(NamedTuple):
    """A command, its exit code, and words of what it prints."""

    command: str | list[str]
    code: int = 0
    words: tuple[str, ...] = ()


ACTIONS = (
    Action("--help", words=("train", "predict", "Start with")),
    Action("--version", words=("0.",)),
    Action("trian photos", 2, ("train", "--help")),
    Action("doctor", words=("self-check", "passed", "feature cache")),
    Action("models", words=("vit-b16", "swin-t")),
    Action("models vit-b16", words=("86567656", "hf:timm/vit_base_patch16_224")),
    Action("models vit-b61", 2, ("vit-b16",)),
    Action("settings optim", words=("optim.lr",)),
    Action("data check photo", 3, ("did you mean", "photos")),
    Action("data check photos", words=("ants", "bees", "no problems found")),
    Action(f"data check {NESTED}", words=(f"'{NESTED}/*/*'",)),
    Action(["data", "check", f"{NESTED}/*/*"], words=("fruit/apple", "milk/oat")),
    Action("data check mixed", 3, ("HEIC", "(.txt 1)", "refused by `vitrail train`: the data have no labels")),
    Action(f"train photos --dry-run --size 64 --set model.changes.depth={SHALLOW}", words=("takes", "memory", "slowest")),
    Action("train photos --recipe t5", 2, ("t4",)),
    Action("train photos --set optim.rate=1", 2, ("optim.",)),
    Action("train photos --model vit_tiny_patch16_224", 2, ("vit-ti16",)),
    Action("train photos --init weigths.safetensors", 2, ("did you mean", "weights.safetensors")),
    Action("train photos --init vit-b16", 4, ("HF_HUB_OFFLINE is set", "vitrail weights get hf:timm/vit_base_patch16_224")),
    Action("train photos --init vit_tiny_patch16_224.safetensors", 2, ("vitrail weights get vit-ti16 --out",)),
    Action("weights get vit-ti61", 2, ("did you mean 'vit-ti16'",)),
    Action([*TRAIN, "--quiet"], words=("report: runs/first/report.html",)),
    Action(TRAIN, words=("report: runs/first/report.html",)),
    Action("train --resume runs/frist", 2, ("runs/first",)),
    Action("evaluate latest photos", words=("top1", "ece")),
    Action("evaluate latest photos --split vla", 2, ("val",)),
    Action("predict latest new", words=("new/ants-0.jpg", "new/bees-1.jpg")),
    Action("predict latest new/ants-0.jpg new/cat.jpg", 3, ("new/cat.jpg",)),
    Action("predict latest mixed", words=("2 predicted, 2 unreadable, 1 of unknown type", "HEIC")),
    Action("predict latest new --out labels.csv", words=("written  labels.csv: 4 images",)),
    Action("predict latest new --out labels.xyz", 2, (".csv",)),
    Action("predict latest https://example.org/cat.jpg", 3, ("download",)),
    Action("predict hf:timm/vit_tiny_patch16_224.augreg_in21k new", 4, ("HF_HUB_OFFLINE", "cache")),
    Action("embed latest new --out features.parquet", words=("features.parquet",)),
    Action("explain latest new/ants-0.jpg --out why", words=("written  why: 1 image",)),
    Action("explain latest new/ants-0.jpg --out why --method gradcam", 2, ("gradient",)),
    Action("inspect latest --data photos --out inside", words=("inside",)),
    Action("probe latest photos --protocol knn", words=("accuracy",)),
    Action("convert latest for-timm --to timm", words=("for-timm",)),
    Action("convert latest for-timm --to tim", 2, ("timm",)),
    Action("serve latest --port 99999", 2, ("port",)),
    Action(f"pretrain photos --objective mae --size 64 --steps 2 --out runs/mae {QUIETLY}", words=("runs/mae/report.html",)),
    Action("pretrain photos --objective mea", 2, ("mae",)),
    Action(f"train photos.csv --size 64 --steps 2 --out runs/csv {QUIETLY}", words=("runs/csv/report.html",)),
    Action("train pixels.npz --steps 2 --out runs/arrays --quiet", words=("runs/arrays/report.html",)),
    Action("evaluate runs/arrays photos", 3, ("classes",)),
)  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch, real_data) -> Path:
    """A user's folder: photographs of two classes, nested ones, new ones, a mixed lot, a table, arrays, and weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    rows = ["file;class"]
    for label in ("ants", "bees"):
        photographs = sorted((real_data / "hymenoptera/train" / label).glob("*.jpg"))
        for folder, chosen in (("photos", photographs[:24]), ("new", photographs[24:26])):
            for number, path in enumerate(chosen):
                name = f"photos/{label}/{number}.jpg" if folder == "photos" else f"new/{label}-{number}.jpg"
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, name)
                rows += [f"{name};{label}"] if folder == "photos" else []
    Path("photos.csv").write_text("\n".join(rows) + "\n")
    for number, kind in enumerate(("fruit/apple", "fruit/pear", "milk/oat")):
        for photograph in range(6):
            path = Path(NESTED, kind, f"{photograph}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40 + photograph), (80 * number, 10 * photograph, 0)).save(path)
    Path("mixed").mkdir()
    shutil.copy("new/ants-0.jpg", "mixed/a.jpg")
    shutil.copy("new/bees-0.jpg", "mixed/no extension")
    Path("mixed/cut.jpg").write_bytes(Path("new/ants-0.jpg").read_bytes()[:2000])
    Path("mixed/b.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(30))
    Path("mixed/notes.txt").write_text("no image")
    draw = np.random.default_rng(0)
    np.savez("pixels.npz", images=draw.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8), labels=np.arange(40) % 4)
    save_file(as_timm(create_classifier("vit-ti16", depth=SHALLOW))[0], "weights.safetensors")
    return tmp_path


@pytest.mark.slow
def test_what_one_tries_in_the_first_ten_minutes_works_or_says_what_to_do(desk, capsys):
    wrong = []
    for command, code, words in ACTIONS:
        tokens = command.split() if isinstance(command, str) else command
        found = run(tokens)
        said = capsys.readouterr()
        text = said.out + said.err
        missing = [word for word in words if word not in text]
        if found != code or missing or not text.strip() or "Traceback" in text:
            wrong.append(f"{' '.join(tokens)}: exit code {found}, expected {code}; missing {missing}\n{text[-1500:]}")
        if code and "hint: " not in said.err:
            wrong.append(f"{' '.join(tokens)}: no remedy\n{text[-1500:]}")
    assert not wrong, "\n\n".join([f"{len(wrong)} of {len(ACTIONS)} actions", *wrong])


@pytest.mark.slow
def test_the_same_in_python(desk):
    result = vitrail.train(
        "photos", init="weights.safetensors", size=64, steps=2, out="runs/first", quiet=True, workers=0
    )
    model = vitrail.load("latest", log=lambda line: None)
    for given in ("new/ants-0.jpg", Path("new"), Image.open("new/bees-0.jpg"), np.zeros((40, 50, 3), np.uint8)):
        assert {answer.label for answer in model.predict(given)} <= {"ants", "bees"}
    assert len(vitrail.predict(model, "new", quiet=True).to_rows()) == 4
    assert 0 <= vitrail.evaluate(model, "photos", quiet=True).to_dict()["top1"] <= 1
    assert result.load().classes == ("ants", "bees")
    for mistake in (
        lambda: vitrail.load("latset"),
        lambda: vitrail.train("photo"),
        lambda: vitrail.train("photos", epoch=1),
        lambda: vitrail.create_model("vit-b61"),
        lambda: model.predict("new/cat.jpg"),
        lambda: model.predict("https://example.org/cat.jpg"),
    ):
        with pytest.raises(VitrailError) as error:
            mistake()
        assert error.value.remedy
