"""A head that is trained alone takes features that are computed once, and learns what it learns from images."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.logged import list_logged
from tests.training.stopping import stopped_after
from vitrail.errors import DataError
from vitrail.inference.features import default_cache, list_files
from vitrail.models import ViT
from vitrail.training import frozen

LABELS = np.arange(90) % 3
ARRAYS = np.random.default_rng(0).integers(0, 256, (90, 16, 16, 1), dtype=np.uint8), LABELS
SET = (
    "compute.tune=false",
    "compute.precision=fp32",
    "save.evaluations=3",
    "save.log_every=1",
    "augment.smoothing=0.1",
)
HOW: dict[str, Any] = {"head_only": True, "batch": 32, "steps": 12, "lr": 0.05, "quiet": True, "set": SET}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def start() -> vitrail.Classifier:
    torch.manual_seed(0)
    sizes = {"image_size": (16, 16), "patch_size": (4, 4), "width": 32, "depth": 2, "heads": 2, "mlp_width": 48}
    return vitrail.create_model("vit-ti16", classes=list("abc"), in_channels=1, drop_path=0.3, **sizes)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each pass through the backbone."""
    seen: list[int] = []
    patchify = ViT.patchify

    def counting(self: ViT, images: torch.Tensor) -> Any:
        if not images.is_meta:
            seen.append(len(images))
        return patchify(self, images)

    monkeypatch.setattr(ViT, "patchify", counting)
    return seen


@pytest.mark.slow
def test_a_head_learns_from_features_what_it_learns_from_images(start, passes, tmp_path, monkeypatch):
    fast = vitrail.train(ARRAYS, init=start, out=tmp_path / "features", **HOW)
    once = sum(passes)
    monkeypatch.setattr(frozen, "has_fixed_features", lambda *given: False)
    # stochastic depth would drop blocks of a frozen backbone that sees images; features are computed without it
    plain = vitrail.train(
        ARRAYS, init=start, out=tmp_path / "images", **{**HOW, "set": (*SET, "model.changes.drop_path=0")}
    )
    assert once < sum(passes) - once
    assert list_logged(fast) == pytest.approx(list_logged(plain), rel=1e-4)
    assert list_logged(fast, "val_nll") == pytest.approx(list_logged(plain, "val_nll"), rel=1e-4)
    assert list_logged(fast)[-1] < list_logged(fast)[0]
    ours, theirs = fast.load().state_dict(), plain.load().state_dict()
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=1e-4), name
    assert fast.figures["nll"] == pytest.approx(list_logged(fast, "val_nll")[-1], rel=1e-4)


@pytest.mark.slow
def test_every_image_passes_the_backbone_once_and_not_again_for_another_rate(start, passes, tmp_path):
    seen: list[int] = []

    class Watch(vitrail.Callback):
        def on_step(self, event: Any) -> None:
            seen.append(sum(passes))

    for name, rate in (("run", 0.05), ("again", 0.1)):
        passes.clear()
        vitrail.train(ARRAYS, init=start, out=tmp_path / name, callbacks=[Watch()], **{**HOW, "lr": rate})
    assert seen == [len(LABELS)] * HOW["steps"] + [0] * HOW["steps"]


@pytest.mark.slow
def test_a_stopped_training_of_a_head_resumes_bit_for_bit(start, tmp_path):
    whole = vitrail.train(ARRAYS, init=start, out=tmp_path / "whole", **HOW)
    parts = partial(vitrail.train, ARRAYS, init=start, out=tmp_path / "parts", **HOW)
    with stopped_after(5):
        parts()
    parted = parts()
    assert (whole.folder / "metrics.jsonl").read_bytes() == (parted.folder / "metrics.jsonl").read_bytes()
    ours, theirs = parted.load().state_dict(), whole.load().state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_augmented_images_are_read_in_every_step(start, passes, tmp_path):
    vitrail.train(ARRAYS, init=start, out=tmp_path / "run", recipe="finetune", **HOW)
    assert sum(passes) >= HOW["steps"] * HOW["batch"]


@pytest.mark.slow
def test_bad_images_are_left_out_and_recorded(start, tmp_path):
    for index, label in enumerate("abc" * 12):
        path = tmp_path / "photos" / label / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(ARRAYS[0][index, ..., 0]).resize((400, 300)).save(path)  # too large to be decoded beforehand
    (tmp_path / "photos/a/0.png").write_bytes(b"not a picture")
    how = {**HOW, "max_bad": 0.1, "batch": 8}
    result = vitrail.train(tmp_path / "photos", init=start, out=tmp_path / "run", **how)
    with open(result.folder / "bad_images.csv", newline="") as file:
        assert [Path(row["path"]).name for row in csv.DictReader(file)] == ["0.png"]
    with pytest.raises(DataError, match="are bad"):
        vitrail.train(tmp_path / "photos", init=start, out=tmp_path / "strict", **{**how, "max_bad": 0.0})


def test_a_dry_run_estimates_the_time_of_the_features_and_keeps_none(start):
    plan = vitrail.train(ARRAYS, init=start, dry_run=True, **HOW)
    assert "are computed once, in about" in plan
    assert not list_files(default_cache())
