"""What the tests of hostile weights are made of: files that lie, and sound ones to start from."""

from __future__ import annotations

import functools
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vitrail.checksums import add_checksum
from vitrail.models import configure, create_backbone
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.google import to_google
from vitrail.weights.native import save_model
from vitrail.weights.timm.families import SWIN

Maker = Callable[[Path], Path]  # makes the file or folder in a folder of its own, and names it
SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 16, "width": 24, "depth": 1, "heads": 2, "mlp_width": 40}
CANARY = "ran"  # the file that every payload would write
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch's older format (torch/serialization.py)


def sound(**changes: Any) -> dict[str, Tensor]:
    """The tensors of a small ViT, in timm's layout and as vitrail has them."""
    return dict(_drawn(**changes))


@functools.cache
def _drawn(**changes: Any) -> dict[str, Tensor]:
    backbone = create_backbone("vit-ti16", **{**SMALL, "classes": 3, **changes})
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(each.shape, generator=generator) * 0.2 for name, each in backbone.state_dict().items()}


def sound_swin() -> dict[str, Tensor]:
    """The tensors of a small Swin Transformer in timm's layout."""
    config = configure("swin-t", width=8, depths=(1, 1), heads=(1, 1), window=2, image_size=32)
    return {name: each.contiguous() for name, each in SWIN.write(config, create_backbone(config).state_dict()).items()}


def file(name: str, content: bytes) -> Maker:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def changed(tensors: Mapping[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    """The tensors with others for some; dots in names are written as double underscores, None takes one away."""
    given = {name.replace("__", "."): each for name, each in changes.items()}
    return {name: each for name, each in {**tensors, **given}.items() if each is not None}


# safetensors


def header(text: object, data: bytes = b"", *, length: int | None = None) -> Maker:
    """A file of any header, as JSON or as bytes, that may lie on its own length."""
    content = text if isinstance(text, bytes) else json.dumps(text).encode()
    return file("x.safetensors", struct.pack("<Q", len(content) if length is None else length) + content + data)


def entry(shape: object = (1,), offsets: object = (0, 4), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# folders


def timm_folder(config: bytes | None = None, tensors: Mapping[str, Tensor] | None = None, **described: object) -> Maker:
    """A folder as timm saves it, with ``model_args`` or other keys of its config.json replaced."""

    def make(folder: Path) -> Path:
        told = {"architecture": "vit_tiny_patch16_224", "model_args": {"num_heads": 2}, **described}
        (folder / "config.json").write_bytes(json.dumps(add_checksum(told)).encode() if config is None else config)
        (folder / "model.safetensors").write_bytes(save(dict(tensors or sound())))
        return folder

    return make


def native_folder(tensors: Mapping[str, Tensor] | None = None, **described: object) -> Maker:
    """A model folder of vitrail; keys of ``config`` and ``preprocessing`` are replaced one by one."""

    def make(folder: Path) -> Path:
        path = save_model(folder / "model", create_classifier("vit-ti16", classes=["a", "b", "c"], **SMALL))
        told = json.loads((path / "config.json").read_text())
        for key, value in described.items():
            told[key] = {**told[key], **value} if isinstance(value, dict) else value
        if tensors is not None:
            (path / "model.safetensors").write_bytes(save(dict(tensors), {"vitrail": ""}))
            told["sha256"] = None
        (path / "config.json").write_text(json.dumps(add_checksum(told)))
        return path

    return make


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(alter: Callable[[Path, dict[str, Any]], object] = lambda folder, index: None) -> Maker:
    """A folder of two shards after ``alter`` had its way with the folder and the index."""

    def make(folder: Path) -> Path:
        timm_folder()(folder)
        (folder / "model.safetensors").unlink()
        tensors = sound()
        halves = [dict(list(tensors.items())[start::2]) for start in range(2)]
        for shard, half in zip(SHARDS, halves):
            (folder / shard).write_bytes(save(half))
        index: dict[str, Any] = {
            "metadata": {"total_size": sum(each.nbytes for each in tensors.values())},
            "weight_map": {name: shard for shard, half in zip(SHARDS, halves) for name in half},
        }
        alter(folder, index)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return make


# pickles


class Call:
    """Unpickles as the result of a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def touch(folder: Path) -> str:
    return f"touch '{folder / CANARY}'"


def torch_zip(content: Callable[[Path], object], name: str = "x.pt") -> Maker:
    """What `torch.save` writes today."""

    def make(folder: Path) -> Path:
        torch.save(content(folder), folder / name)
        return folder / name

    return make


def torch_legacy(content: Callable[[Path], object], name: str = "x.pth") -> Maker:
    """What `torch.save` wrote before 1.6."""

    def make(folder: Path) -> Path:
        torch.save(content(folder), folder / name, _use_new_zipfile_serialization=False)
        return folder / name

    return make


def legacy_bytes(program: bytes, name: str = "x.pth") -> Maker:
    """The older format around a pickle written by hand."""
    told = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    start = b"".join(pickle.dumps(each, protocol=2) for each in (MAGIC, PROTOCOL, told))
    return file(name, start + program + pickle.dumps([], protocol=2))


def zip_bytes(members: Mapping[str, bytes], name: str = "x.pt", *, packing: int = zipfile.ZIP_STORED) -> Maker:
    """An archive like torch's, with any members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", packing) as archive:
        for member, each in members.items():
            archive.writestr(member, each)
    return file(name, content.getvalue())


# .npz


def npy(shape: object = (2,), descr: object = "<f4", data: bytes = bytes(8), *, order: object = False) -> bytes:
    """An array whose header says anything."""
    told = f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told)) + told + data


def npz(members: Mapping[str, bytes], *, packing: int = zipfile.ZIP_STORED) -> Maker:
    return zip_bytes(members, "x.npz", packing=packing)


def google(of: Mapping[str, Any] | None = None, /, **changes: np.ndarray | bytes | None) -> Maker:
    """Google's arrays of a small model, a ViT where none is told, some replaced; slashes in names are written as double
    underscores.
    """

    def make(folder: Path) -> Path:
        backbone = create_backbone(**(of or {"model": "vit-ti16", **SMALL, "classes": 3}))
        arrays: dict[str, Any] = dict(to_google(backbone.config, backbone.state_dict()))
        arrays |= {name.replace("__", "/"): each for name, each in changes.items()}
        content = {name: each for name, each in arrays.items() if each is not None}
        return npz(
            {f"{name}.npy": each if isinstance(each, bytes) else _saved(each) for name, each in content.items()}
        )(folder)

    return make


def _saved(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()
