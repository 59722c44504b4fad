"""Resuming from a run whose files are damaged, or are those of another run: repaired, passed over or refused by name."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.each_row import each_row
from vitrail import train
from vitrail.checksums import sha256_of
from vitrail.data.sources.bad_images import BadImages, read_bad_images
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import dump_json, read_checksummed
from vitrail.runs import checkpoint as checkpoints
from vitrail.runs.checkpoint import list_checkpoints
from vitrail.runs.folder import RunFolder

TINY = (
    "model.name=vit-ti16",
    "model.changes={width: 16, depth: 1, heads: 2, mlp_width: 32, patch_size: [4, 4]}",
    "data.batch=16",
    "save.every=0.000001",
    "save.log_every=1",
)
DRAW = np.random.default_rng(0)
ARRAYS = DRAW.integers(0, 256, (60, 8, 8, 1), dtype=np.uint8), np.arange(60) % 3


def train_in(folder: Path, steps: int, *settings: str, data: object = ARRAYS, **more: object) -> None:
    train(data, steps=steps, settings=(*TINY, *settings), out=folder, quiet=True, **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of 3 steps."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train_in(folder, 3)
    return folder


@pytest.fixture(scope="module")
def longer(trained: Path, tmp_path_factory) -> bytes:
    """The metrics of this run after 5 steps."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("longer") / "run")
    train_in(folder, 5)
    return (folder / "metrics.jsonl").read_bytes()


@pytest.fixture
def folder(trained: Path, tmp_path) -> Path:
    """A copy of the run."""
    return shutil.copytree(trained, tmp_path / "run")


def damage(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) >= 1
    path.write_bytes(content.replace(old, new, 1))


def test_a_damaged_manifest_is_named_and_the_checkpoint_before_it_is_used(folder, longer) -> None:
    newest = list_checkpoints(folder / "checkpoints")[-1]
    damage(newest / "manifest.json", b'"sha256"', b'"sha25\xb6"')
    train_in(folder, 5)
    assert f"skipped a damaged checkpoint: {newest}: manifest.json cannot be read" in (folder / "log.txt").read_text()
    assert (folder / "metrics.jsonl").read_bytes() == longer


def test_a_damaged_split_is_written_again_if_the_images_are_those_of_the_checkpoint(folder, longer) -> None:
    before = (folder / "split.json").read_bytes()
    damage(folder / "split.json", b'"train"', b'"tr\xe1in"')
    train_in(folder, 5)
    assert (folder / "split.json").read_bytes() == before
    assert "split.json was damaged; it is written again" in (folder / "log.txt").read_text()
    assert (folder / "metrics.jsonl").read_bytes() == longer


def test_a_damaged_split_does_not_hide_that_the_images_are_others(folder) -> None:
    damage(folder / "split.json", b'"images"', b'"imagds"')
    with pytest.raises(DataError, match="are not those with which the run"):
        train_in(folder, 5, data=(ARRAYS[0][:-3], ARRAYS[1][:-3]))


def test_a_damaged_split_beside_a_checkpoint_of_an_earlier_version_is_refused_by_name(folder) -> None:
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        forget(checkpoint, "settings", "images")
    (folder / "split.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"split\.json is damaged"):
        train_in(folder, 5)


def forget(checkpoint: Path, *names: str) -> None:
    """Rewrites a checkpoint without some of its state, as an earlier version wrote it."""
    state = {name: value for name, value in read_checksummed(checkpoint / "state.json").items() if name not in names}
    content = dump_json(state).encode()
    (checkpoint / "state.json").write_bytes(content)
    manifest = read_checksummed(checkpoint / "manifest.json")
    manifest["files"]["state.json"] = {"bytes": len(content), "sha256": sha256_of(content)}
    (checkpoint / "manifest.json").write_text(dump_json(manifest))


def test_a_checkpoint_of_an_earlier_version_without_settings_is_resumed(folder, longer) -> None:
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        forget(checkpoint, "settings", "images")
    train_in(folder, 5)
    assert (folder / "metrics.jsonl").read_bytes() == longer


def test_damaged_lines_of_metrics_are_named_left_out_and_noted_in_the_report(folder) -> None:
    damage(folder / "metrics.jsonl", b'"loss": ', b'"loss": 9')
    damage(folder / "metrics.jsonl", b'\n{"step": 2', b'\n{"st\xe5p": 2')
    lines = len(RunFolder(folder).metrics())
    train_in(folder, 5)
    words = "metrics.jsonl is damaged and lacks 2 of its lines"
    assert f"warning  {words}" in (folder / "log.txt").read_text()
    assert words in (folder / "report.html").read_text()
    assert len(RunFolder(folder).metrics()) > lines


def test_metrics_that_were_cut_off_are_named(folder) -> None:
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(content[:-7])
    train_in(folder, 5)
    assert "warning  metrics.jsonl lacks its last 7 bytes" in (folder / "log.txt").read_text()


def test_a_damaged_status_is_named_and_the_run_ends_as_before(folder) -> None:
    metrics = (folder / "metrics.jsonl").read_bytes()
    figures = RunFolder(folder).status()["figures"]
    damage(folder / "status.json", b"figures", b"figurds")
    train_in(folder, 3)
    assert "status.json is damaged" in (folder / "log.txt").read_text()
    assert RunFolder(folder).status()["figures"] == figures
    assert (folder / "metrics.jsonl").read_bytes() == metrics


def test_a_checkpoint_of_another_seed_or_other_settings_is_refused_with_the_difference(folder, tmp_path) -> None:
    other = tmp_path / "other"
    train_in(other, 3, "seed=7", "optim.lr=0.5")
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(other / "checkpoints", folder / "checkpoints")
    before = {name: (folder / name).read_bytes() for name in ("config.yaml", "metrics.jsonl")}
    with pytest.raises(CheckpointError, match="belongs to another run") as refused:
        train_in(folder, 5)
    assert refused.value.value.splitlines() == [
        "optim.lr: 0.5 when it was saved, 0.004 in the run",
        "seed: 7 when it was saved, 0 in the run",
        "images: others than those of the run",  # the held-out part follows the seed
    ]
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_a_checkpoint_of_other_images_is_refused(folder, tmp_path) -> None:
    other = tmp_path / "other"
    train_in(other, 3, data=(ARRAYS[0][:-3], ARRAYS[1][:-3]))
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(other / "checkpoints", folder / "checkpoints")
    with pytest.raises(CheckpointError, match=r"images: others than those of the run"):
        train_in(folder, 5)


def test_a_changed_config_is_refused_with_and_without_its_checksum(folder) -> None:
    config = folder / "config.yaml"
    damage(config, b"weight_decay: 0.", b"weight_decay: 5.")
    with pytest.raises(ConfigError, match="was changed or cut off after vitrail wrote it"):
        train(resume=folder, steps=5, quiet=True)
    config.write_text(re.sub("#.*\n", "", config.read_text()))
    with pytest.raises(CheckpointError, match=r"optim\.weight_decay: 0\.\d+ when it was saved, 5\.\d+ in the run"):
        train(ARRAYS, resume=folder, steps=5, quiet=True)


@pytest.mark.slow
def test_a_config_that_was_cut_off_is_refused(folder) -> None:
    content = (folder / "config.yaml").read_bytes()
    lines = content.splitlines(keepends=True)
    for count in range(len(lines)):
        (folder / "config.yaml").write_bytes(b"".join(lines[:count]))
        with pytest.raises(ConfigError, match="cut off"):
            RunFolder(folder).read_config()
    (folder / "config.yaml").write_bytes(content[:-1])
    with pytest.raises(ConfigError, match="cut off"):
        train_in(folder, 5)


@pytest.mark.slow
@each_row("name", ["metrics.jsonl", "timing.jsonl", "bad_images.csv"])
def test_lines_that_were_lost_at_the_end_are_named_and_noted_in_the_report(name, trained, tmp_path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    with_bad_images(folder)
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    (folder / name).write_bytes(b"".join(lines[:-1]))
    words = f"{name} lacks its last {len(lines[-1])} bytes"
    assert words in RunFolder(folder).find_damage()
    train_in(folder, 5)
    assert f"warning  {words}" in (folder / "log.txt").read_text()
    assert words in (folder / "report.html").read_text()
    assert RunFolder(folder).find_damage() == []


def with_bad_images(folder: Path) -> None:
    """Gives a run that ended two bad images."""
    run = RunFolder(folder)
    run.open()
    bad = BadImages(most=1.0, path=run.bad_images, total=60)
    for key in ("a.png", "b.png"):
        bad(key, "empty")
    run.start_metrics((folder / "metrics.jsonl").stat().st_size)
    run.close()


def test_a_damaged_list_of_bad_images_is_named_and_the_run_resumes(folder, longer) -> None:
    with_bad_images(folder)
    damage(folder / "bad_images.csv", b"a.png", b"\xe1.png")
    train_in(folder, 5)
    assert "warning  bad_images.csv is damaged and lacks 1 of its rows" in (folder / "log.txt").read_text()
    assert list(read_bad_images(folder / "bad_images.csv")) == ["b.png"]
    assert (folder / "metrics.jsonl").read_bytes() == longer


def test_damaged_sizes_of_records_are_named(folder) -> None:
    damage(folder / "records.json", b"bytes", b"byt\xe5s")
    train_in(folder, 5)
    assert "warning  records.json is damaged" in (folder / "log.txt").read_text()


@each_row("reads", ["hash_file", "tensors_from_bytes"])
def test_a_checkpoint_that_the_disk_does_not_give_is_passed_over(reads, trained, longer, tmp_path, monkeypatch) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    newest = list_checkpoints(folder / "checkpoints")[-1]
    whole, failed = getattr(checkpoints, reads), []

    def fail(given):
        if not failed and (reads == "tensors_from_bytes" or newest in given.parents):
            failed.append(given)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(given)

    monkeypatch.setattr(checkpoints, reads, fail)
    train_in(folder, 5)
    monkeypatch.undo()
    log = (folder / "log.txt").read_text()
    assert re.search(rf"skipped a damaged checkpoint: {newest}: .* cannot be read \(Input/output error\)", log)
    assert (folder / "metrics.jsonl").read_bytes() == longer


def test_a_config_of_an_earlier_version_is_read(folder, longer) -> None:
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text())))
    train_in(folder, 5)
    assert (folder / "metrics.jsonl").read_bytes() == longer
