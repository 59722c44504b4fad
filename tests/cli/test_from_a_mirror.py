"""From the first screen of the README to a fine-tuned model, with the published weights on a mirror of the hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.weights.hub_mirror import serve_mirror

REPOSITORY = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
DESCRIPTION = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "pretrained_cfg": {"tag": "augreg_in21k_ft_in1k"},
}
PROGRAM = """
import json, vitrail
model = vitrail.train("photos/", epochs=1, batch=8, out="runs/python", quiet=True).load()
print(json.dumps([answer.label for answer in model.predict(["new/ants.jpg", "new/bees.jpg"])]))
"""


@pytest.fixture
def mirror(tmp_path: Path, real_data: Path) -> Path:
    """A mirror with the published ViT-Ti/16 under its name."""
    folder = tmp_path / "mirror" / REPOSITORY
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(DESCRIPTION))
    (folder / "model.safetensors").symlink_to(real_data / "vit_tiny_patch16_224.safetensors")
    return tmp_path / "mirror"


@pytest.fixture
def desk(tmp_path: Path, real_data: Path) -> Path:
    """A folder with 32 photographs to train on, 20 to evaluate, and a new one of each class."""
    desk = tmp_path / "desk"
    for label in ("ants", "bees"):
        photographs = {
            split: sorted((real_data / "hymenoptera" / split / label).glob("*.jpg")) for split in ("train", "val")
        }
        for split, count in (("train", 16), ("val", 10)):
            folder = desk / "photos" / split / label
            folder.mkdir(parents=True)
            for path in photographs[split][:count]:
                shutil.copy(path, folder)
        (desk / "new").mkdir(exist_ok=True)
        shutil.copy(photographs["val"][10], desk / "new" / f"{label}.jpg")
    return desk


@pytest.mark.slow
def test_three_commands_and_three_lines_give_a_fine_tuned_model(mirror, desk, tmp_path):
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}

    def run(*words: str) -> tuple[str, str]:
        done = subprocess.run(words, cwd=desk, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    vitrail = (sys.executable, "-m", "vitrail")
    with serve_mirror(mirror) as (address, asked):
        environment["HF_ENDPOINT"] = address
        _, log = run(*vitrail, "train", "photos/", "--epochs", "3", "--batch", "8", "--out", "runs/first")
        assert f"download hf:{REPOSITORY}, 22.9" in log
        assert "licence Apache-2.0" in log
        assert any(path.endswith("model.safetensors") for path in asked)
        before = len(asked)
        shown, _ = run(*vitrail, "evaluate", "runs/first", "photos/", "--json", "--quiet")
        assert len(asked) == before  # nothing is asked twice
    assert json.loads(shown.splitlines()[-1])["top1"] > 0.7  # a half by chance
    run(*vitrail, "predict", "latest", "new/", "--out", "labels.csv")
    labels = {line.split(",")[1] for line in (desk / "labels.csv").read_text().splitlines()[1:]}
    assert labels <= {"ants", "bees"}
    answers, _ = run(sys.executable, "-c", PROGRAM)  # the mirror is gone, the cache is not
    assert set(json.loads(answers.splitlines()[-1])) <= {"ants", "bees"}
