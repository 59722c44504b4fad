"""The checkpoint writer and reader: whole or not there, damage named, nothing lost at any point of dying."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.forked import start_copy, wait_for_end
from vitrail.checksums import add_checksum
from vitrail.errors import CheckpointError, DiskError
from vitrail.runs import checkpoint
from vitrail.runtime import fault_injection


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "model": {"weight": torch.full((3, 5), float(step)), "bias": torch.arange(4.0)},
        "optimiser": {"weight/exp_avg": torch.full((3, 5), 0.5 * step), "weight/step": torch.tensor(float(step))},
    }


def steps(folder: Path) -> list[int]:
    return list(map(checkpoint.step_of, checkpoint.list_checkpoints(folder)))


def write(folder: Path, *steps: int, keep: int = 2) -> None:
    folder.mkdir(exist_ok=True)
    for step in steps:
        checkpoint.save(folder, step, tensors(step), {"progress": {"step": step}}, keep=keep)


def test_checkpoints_load_as_saved_and_only_the_newest_are_kept(tmp_path) -> None:
    write(tmp_path, 10, 20, 30)
    assert steps(tmp_path) == [20, 30]
    found = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert (found.step, found.state, found.refused) == (30, {"progress": {"step": 30}}, ())
    for group, named in tensors(30).items():
        assert named.keys() == found.tensors[group].keys()
        for name, tensor in named.items():
            assert torch.equal(tensor, found.tensors[group][name])


def test_a_step_is_saved_again_after_its_evaluation_and_that_one_is_the_newest(tmp_path) -> None:
    write(tmp_path, 1, 2)
    checkpoint.save(tmp_path, 2, tensors(2), {"evaluated": 2}, keep=2, evaluated=True)
    assert [each.name for each in checkpoint.list_checkpoints(tmp_path)] == ["step-00000002", "step-00000002-evaluated"]
    assert checkpoint.load_newest(tmp_path).state == {"evaluated": 2}


def test_a_damaged_newer_checkpoint_does_not_cost_the_one_just_written(tmp_path) -> None:
    write(tmp_path, 100, 200, keep=2)
    (tmp_path / "step-00000200" / "state.json").write_text("{}")
    write(tmp_path, 150, keep=1)
    assert checkpoint.load_newest(tmp_path).step == 150
    write(tmp_path, 200, keep=1)  # comes again, whole
    assert steps(tmp_path) == [200]
    assert checkpoint.load_newest(tmp_path).step == 200


def test_no_checkpoint_at_all_is_none(tmp_path) -> None:
    assert checkpoint.load_newest(tmp_path / "nothing") is None


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json", "manifest.json"])
def test_any_flipped_bit_is_refused_by_name_and_the_previous_checkpoint_is_used(tmp_path, name: str) -> None:
    write(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / name
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(len(content), (12,), generator=generator).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = checkpoint.load_newest(tmp_path)
        assert found is not None
        assert found.step == 1
        assert "step-00000002" in found.refused[0]
    path.write_bytes(content)
    assert checkpoint.load_newest(tmp_path).step == 2


def test_every_truncation_is_refused_with_both_sizes(tmp_path) -> None:
    write(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / "model.safetensors"
    content = path.read_bytes()
    for part in range(0, 64, 4):
        path.write_bytes(content[: len(content) * part // 64])
        found = checkpoint.load_newest(tmp_path)
        assert found.step == 1
        assert f"{len(content) * part // 64:,} bytes, its manifest says {len(content):,}" in found.refused[0]


def test_when_all_are_damaged_the_error_names_each(tmp_path) -> None:
    write(tmp_path, 1, 2)
    for step in (1, 2):
        (tmp_path / f"step-0000000{step}" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000002[\s\S]*step-00000001"):
        checkpoint.load_newest(tmp_path)


def test_a_format_from_the_future_is_refused(tmp_path) -> None:
    write(tmp_path, 1)
    manifest = tmp_path / "step-00000001" / "manifest.json"
    manifest.write_text(json.dumps(add_checksum({**json.loads(manifest.read_text()), "format_version": 99})))
    with pytest.raises(CheckpointError, match="format version is 99"):
        checkpoint.load_newest(tmp_path)


WRITER = [point for point in fault_injection.POINTS if point.startswith("checkpoint.")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")
@pytest.mark.parametrize("point", WRITER)
def test_kill_9_at_every_point_of_the_writer_leaves_a_whole_checkpoint(tmp_path, point: str) -> None:
    fault = f"{point}:kill:{1 if point == 'checkpoint.while_retiring' else 3}"
    child = start_copy(partial(write, tmp_path, 1, 2, 3), **{fault_injection.VARIABLE: fault})
    assert wait_for_end(child) == -signal.SIGKILL
    found = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert found.refused == ()
    renamed = WRITER.index(point) >= WRITER.index("checkpoint.after_rename")
    assert found.step == (3 if renamed else 2)
    write(tmp_path, 4)
    assert not list(tmp_path.glob(".writing-*")), "the next save clears what the dead one left"


@pytest.mark.parametrize("point", WRITER[: WRITER.index("checkpoint.after_rename")])
def test_a_full_disk_at_every_point_is_one_clear_error_and_the_previous_checkpoint_stays(
    tmp_path, point: str, monkeypatch
) -> None:
    write(tmp_path, 1)
    monkeypatch.setenv(fault_injection.VARIABLE, f"{point}:enospc")
    monkeypatch.setattr(fault_injection, "_passed", {})
    with pytest.raises(DiskError, match="the disk is full") as caught:
        write(tmp_path, 2)
    assert "needed" in caught.value.value
    monkeypatch.delenv(fault_injection.VARIABLE)
    assert checkpoint.load_newest(tmp_path).step == 1
    assert not list(tmp_path.glob(".writing-*"))


def test_too_little_room_is_noticed_before_anything_is_written(tmp_path, monkeypatch) -> None:
    write(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "free_bytes", lambda place: 10)
    with pytest.raises(DiskError, match="needed"):
        write(tmp_path, 2)
    assert steps(tmp_path) == [1]
