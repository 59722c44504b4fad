"""The files of weights in a folder of Hugging Face: shards of both kinds, variants, and what is none of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.each_row import each_row
from tests.weights.untrusted import sound, timm_folder
from vitrail.errors import CheckpointError
from vitrail.weights import load
from vitrail.weights.resolve import resolve_model


def described(folder: Path) -> Path:
    """A folder of timm with a config.json and no weights."""
    timm_folder()(folder)
    (folder / "model.safetensors").unlink()
    return folder


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)


def write_shards(folder: Path, names: tuple[str, str], index: str, **changes: Any) -> None:
    tensors = sound()
    halves = [dict(list(tensors.items())[start::2]) for start in range(2)]
    for name, half in zip(names, halves):
        write(folder / name, half)
    total = sum(tensor.nbytes for tensor in tensors.values())
    places = {key: name for name, half in zip(names, halves) for key in half}
    (folder / index).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": {**places, **changes}}))


FILES = {
    "pickled": ("pytorch_model.bin", ""),
    "a variant": ("model.fp16.safetensors", "fp16"),
    "a pickled variant": ("pytorch_model.fp16.bin", "fp16"),
}
SHARDS = {
    "pickled shards": ("pytorch_model-0000{}-of-00002.bin", "pytorch_model.bin.index.json", ""),
    "shards of a variant": ("model.bf16-0000{}-of-00002.safetensors", "model.safetensors.index.bf16.json", "bf16"),
    "pickled shards of a variant": ("pytorch_model.x-0000{}-of-2.bin", "pytorch_model.bin.index.x.json", "x"),
}


@each_row("name", [*FILES, *SHARDS])
def test_weights_are_read_from_every_kind_of_file(name, tmp_path, fast):
    folder = described(tmp_path)
    if name in FILES:
        file, variant = FILES[name]
        write(folder / file, {key: tensor.half() for key, tensor in sound().items()})
    else:
        shard, file, variant = SHARDS[name]
        write_shards(folder, (shard.format(1), shard.format(2)), file)
    lines: list[str] = []
    state = load(folder, log=lines.append).backbone.state_dict()
    for key, tensor in sound().items():
        torch.testing.assert_close(state[key], tensor, atol=1e-3, rtol=1e-3)
    said = [line for line in lines if line.startswith("read")]
    assert said == ([f"read     {file}: the variant {variant!r} of the weights"] if variant else [])


def test_whole_safetensors_are_preferred(tmp_path):
    folder = described(tmp_path)
    write(folder / "model.safetensors", sound())
    write(folder / "model.fp16.safetensors", {"x": torch.ones(1)})
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert load(folder, log=lambda line: None).config.width == 24


def test_an_index_given_as_a_file_stands_for_its_folder(tmp_path):
    folder = described(tmp_path)
    write_shards(folder, ("pytorch_model-1.bin", "pytorch_model-2.bin"), "pytorch_model.bin.index.json")
    assert resolve_model(folder / "pytorch_model.bin.index.json").path == folder


@each_row(
    "name, content, words",
    [
        (
            "tf_model.h5",
            b"",
            "has a config.json, but no weights that can be read: it contains config.json, tf_model.h5",
        ),
        (
            "model.bf16.safetensors",
            b"",
            "several variants of its weights: model.bf16.safetensors, model.fp16.safetensors",
        ),
    ],
)
def test_a_folder_without_a_choice_of_weights_is_refused(name, content, words, tmp_path):
    folder = described(tmp_path)
    (folder / name).write_bytes(content)
    if name.startswith("model"):
        write(folder / "model.fp16.safetensors", sound())
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_pickled_shards_are_checked_against_their_index(tmp_path, fast):
    names, index = ("pytorch_model-1.bin", "pytorch_model-2.bin"), "pytorch_model.bin.index.json"
    for changes, words in (
        ({"gone": names[0]}, "lists 'gone' in pytorch_model-1.bin, which does not contain it"),
        ({"cls_token": "../x.bin"}, "not a file name in its folder"),
        ({"cls_token": "x.safetensors"}, "not a file name in its folder"),
        ({"cls_token": names[1]}, "contains 'cls_token', which pytorch_model.bin.index.json lists in"),
    ):
        folder = described(tmp_path)
        write_shards(folder, names, index, **changes)
        with pytest.raises(CheckpointError, match=words):
            load(folder)
