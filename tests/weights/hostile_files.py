"""Safetensors, .npz files and folders that lie: how each is made, and words of the message that refuses it."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from tests.weights.hostile_pickles import BOMB, SYSTEM
from tests.weights.untrusted import (
    CANARY,
    SHARDS,
    Call,
    Maker,
    changed,
    entry,
    file,
    google,
    header,
    native_folder,
    npy,
    npz,
    sharded,
    sound,
    sound_swin,
    timm_folder,
    torch_zip,
    touch,
    zip_bytes,
)


def moved(shard: str) -> Callable[[Path, dict[str, Any]], object]:
    """Lets the index name this file for the second half of the tensors."""

    def alter(folder: Path, index: dict[str, Any]) -> None:
        index["weight_map"] = {name: shard if each == SHARDS[1] else each for name, each in index["weight_map"].items()}

    return alter


def linked(folder: Path, index: dict[str, Any]) -> None:
    outside = folder.parent / f"{folder.name}-outside.safetensors"
    (folder / SHARDS[1]).rename(outside)
    (folder / SHARDS[1]).symlink_to(outside)


def doubled(folder: Path, index: dict[str, Any]) -> None:
    halves = [load_file(folder / shard) for shard in SHARDS]
    (folder / SHARDS[1]).write_bytes(save({**halves[1], "norm.weight": sound()["norm.weight"]}))
    (folder / SHARDS[0]).write_bytes(save({**halves[0], "norm.weight": sound()["norm.weight"]}))


A = entry()


def many(count: int) -> bytes:
    """A header of so many tensors of no numbers."""
    return b"{%b}" % b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(count))


SAFETENSORS: dict[str, tuple[Maker, str]] = {
    "a pickle by that name": (file("x.safetensors", SYSTEM), "x.safetensors is not a safetensors file"),
    "an archive by that name": (zip_bytes(BOMB, "x.safetensors"), "x.safetensors is not a safetensors file"),
    "nothing": (file("x.safetensors", b""), "has 0 bytes, which is less than its header"),
    "a header of nothing": (header(b""), "header cannot be read"),
    "a header that is no JSON": (header(b"{'a': 1}"), "header cannot be read"),
    "a header that is a list": (header([A]), "header cannot be read"),
    "a header of lists": (header({"a": [1, 2]}), "header cannot be read"),
    "a header 100,000 deep": (header(b'{"a":' * 100_000), "header cannot be read"),
    "a header in UTF-16": (header(json.dumps({"a": A}).encode("utf-16"), bytes(4)), "valid safetensors"),
    "a header longer than the file": (header({"a": A}, bytes(4), length=500), "less than its header"),
    "a header of 2^63 bytes": (header({"a": A}, bytes(4), length=2**63), "a header of 9,223,372,036,854,775,808"),
    "a header cut short": (header({"a": A}, bytes(4), length=20), "header cannot be read"),
    "a name twice": (header(b'{"a":%b,"a":%b}' % ((json.dumps(A).encode(),) * 2), bytes(4)), "header cannot be read"),
    "a million tensors": (lambda folder: header(many(1_000_000))(folder), "headers are limited to 16,777,216"),
    "200,000 tensors": (lambda folder: header(many(200_000))(folder), "header cannot be read"),
    "15 MB of keys": (
        lambda folder: header(b"{" + b",".join(b'"%d":1' % n for n in range(1_300_000)) + b"}")(folder),
        "header cannot be read",
    ),
    "offsets that overlap": (header({"a": A, "b": entry([2], (0, 8))}, bytes(8)), "not a valid safetensors"),
    "offsets with a hole": (header({"a": A, "b": entry([1], (8, 12))}, bytes(12)), "not a valid safetensors"),
    "offsets beyond the end": (header({"a": entry([100], (0, 400))}, bytes(4)), "declares"),
    "offsets below zero": (header({"a": entry([1], (-4, 0))}), "not a valid safetensors"),
    "offsets backwards": (header({"a": entry([1], (4, 0))}, bytes(4)), "x.safetensors"),
    "offsets of 10^30": (header({"a": entry([1], (0, 10**30))}, bytes(4)), "declares"),
    "offsets of 10^5000": (header(b'{"a":{"data_offsets":[0,1%b]}}' % (b"0" * 5000)), "header cannot be read"),
    "offsets of fractions": (header({"a": entry([1], (0.0, 4.0))}, bytes(4)), "not a valid safetensors"),
    "offsets of NaN": (header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,NaN]}}', bytes(4)), "x.safetensors"),
    "10^12 numbers": (header({"a": entry([10**12])}, bytes(4)), "not a valid safetensors"),
    "2^80 numbers": (header({"a": entry([2**40, 2**40], (0, 0))}), "not a valid safetensors"),
    "2^62 times 2^62 times no numbers": (header({"a": entry([2**62, 2**62, 0], (0, 0))}), "x.safetensors"),
    "a shape below zero": (header({"a": entry([-1])}, bytes(4)), "not a valid safetensors"),
    "a shape of fractions": (header({"a": entry([1.0])}, bytes(4)), "not a valid safetensors"),
    "a shape of truths": (header({"a": entry([True])}, bytes(4)), "not a valid safetensors"),
    "a shape of text": (header({"a": entry(["1"])}, bytes(4)), "not a valid safetensors"),
    "a shape of shapes": (header({"a": entry([[1]])}, bytes(4)), "not a valid safetensors"),
    "a shape of 100,000 axes": (header({"a": entry([1] * 100_000)}, bytes(4)), "x.safetensors"),
    "an unknown type": (header({"a": entry(dtype="F128")}, bytes(4)), "not a valid safetensors"),
    "a type that is a list": (header({"a": entry(dtype=["F32"])}, bytes(4)), "not a valid safetensors"),
    "a type of another size": (header({"a": entry(dtype="F64")}, bytes(4)), "not a valid safetensors"),
    "names with zeros in them": (header({"a\0b": A}, bytes(4)), "it contains a?b"),
    "a name of a megabyte": (header({"n" * 2**20: A}, bytes(4)), "not a plain ViT"),
    "metadata that is no text": (header({"__metadata__": {"k": [1]}}), "x.safetensors"),
    "metadata that is a list": (header({"__metadata__": [1], "a": A}, bytes(4)), "header cannot be read"),
    "whole numbers for weights": (
        timm_folder(tensors=changed(sound(), norm__weight=torch.ones(24, dtype=torch.int32))),
        "type        norm.weight is torch.int32",
    ),
    "truths for patches": (
        timm_folder(tensors=changed(sound(), patch_embed__proj__weight=torch.ones(24, 3, 16, 16, dtype=torch.bool))),
        "type        patch_embed.proj.weight is torch.bool",
    ),
    "complex weights": (
        timm_folder(tensors=changed(sound(), norm__weight=torch.ones(24, dtype=torch.complex64))),
        "complex64",
    ),
    "another shape": (
        timm_folder(tensors=changed(sound(), head__weight=torch.ones(3, 25))),
        "shape       head.weight is 3x25",
    ),
    "weights that are numbers alone": (
        timm_folder(tensors=changed(sound(), head__weight=torch.ones(()), mlp=torch.ones(()))),
        "does not fit",
    ),
    "10^12 classes of no numbers": (
        timm_folder(tensors=changed(sound(), head__weight=torch.ones(10**12, 0), head__bias=torch.ones(10**12, 0))),
        "shape       head.weight is 1000000000000x0",
    ),
    "patches of 10^9 by nothing": (
        timm_folder(tensors=changed(sound(), patch_embed__proj__weight=torch.ones(24, 3, 10**9, 0))),
        "cannot be built",
    ),
    "an MLP of 10^15 by nothing": (
        timm_folder(tensors=changed(sound(), blocks__0__mlp__fc1__weight=torch.ones(10**15, 0))),
        "blocks.0.mlp.fc1.weight",
    ),
    "10^12 positions of no width": (
        timm_folder(tensors=changed(sound(), pos_embed=torch.ones(1, 10**12, 0))),
        "pos_embed",
    ),
    "block 10^12": (
        timm_folder(tensors={**sound(), "blocks.999999999999.x": torch.ones(1)}),
        "for 1000000000000 modules",
    ),
    "stage 10^9 of a Swin": (
        timm_folder(tensors={**sound_swin(), "layers.999999999.x": torch.ones(1)}, architecture="swin_x"),
        "modules stages.0, stages.1",
    ),
    "block of a name": (timm_folder(tensors={**sound(), "blocks.x.y": torch.ones(1)}), "cannot be built"),
    "block of 5,000 digits": (
        timm_folder(tensors={**sound(), f"blocks.{'9' * 5000}.y": torch.ones(1)}),
        "cannot be built",
    ),
    "block below zero": (timm_folder(tensors={**sound(), "blocks.-7.y": torch.ones(1)}), "unexpected  blocks.-7.y"),
    "500 tensors too many": (
        timm_folder(tensors={**sound(), **{f"blocks.0.x{n}": torch.ones(1) for n in range(500)}}),
        "more",
    ),
}

K = np.zeros((24, 2, 12), np.float32)
ARCHIVES: dict[str, tuple[Maker, str]] = {
    "a pickle by that name": (file("x.npz", SYSTEM), "x.npz is not a valid .npz file"),
    "nothing": (file("x.npz", b""), "x.npz is not a valid .npz file"),
    "no members": (npz({}), "x.npz is not a ViT or ResNet in Google's layout: it contains nothing"),
    "an array of objects": (
        google(cls=npy((1,), "|O", pickle.dumps([Call(os.system, f"touch {CANARY}")]))),
        "holds objects",
    ),
    "objects in a record": (google(cls=npy((1,), [("a", "|O")], SYSTEM)), "holds objects"),
    "records": (google(cls=npy((1,), [("a", "<f4"), ("b", "<i8")], bytes(12))), "x.npz"),
    "text": (google(cls=np.array(["a", "b"])), "x.npz"),
    "times": (google(cls=np.zeros((1, 1, 24), "datetime64[s]")), "x.npz"),
    "complex numbers": (google(cls=np.zeros((1, 1, 24), np.complex64)), "x.npz"),
    "no magic": (google(cls=b"NUMPY" * 9), "not a valid .npz"),
    "version 3": (google(cls=b"\x93NUMPY\x03\x00" + npy()[8:]), "unknown version of the .npy format"),
    "version 255": (google(cls=b"\x93NUMPY\xff\xff" + npy()[8:]), "x.npz"),
    "a header that calls": (google(cls=npy().replace(b"'<f4'", b"exit()")), "not a valid .npz"),
    "a header of 60,000 bytes": (google(cls=npy([1] * 20_000)), "not a valid .npz"),
    "a header cut short": (google(cls=npy()[:30]), "not a valid .npz"),
    "10^12 numbers": (google(cls=npy((10**12,))), "has 8 bytes"),
    "2^70 numbers": (google(cls=npy((2**35, 2**35))), "has 8 bytes"),
    "a shape below zero": (google(cls=npy((-2,))), "has 8 bytes"),
    "two shapes below zero": (google(cls=npy((-1, -2))), "has 8 bytes"),
    "a shape of fractions": (google(cls=npy((2.0,))), "not a valid .npz"),
    "a shape that is a number": (google(cls=npy(2)), "not a valid .npz"),
    "an order that is a word": (google(cls=npy(order="C")), "not a valid .npz"),
    "columns first and too few": (google(cls=npy((3,), order=True)), "has 8 bytes"),
    "a type of 2 GB": (google(cls=npy((1,), "|V2147483647")), "has 8 bytes"),
    "10^12 classes of no numbers": (
        google(head__kernel=npy((0, 10**12), data=b""), head__bias=npy((10**12, 0), data=b"")),
        "x.npz",
    ),
    "patches of nothing": (google(embedding__kernel=npy((0, 0, 3, 24), data=b"")), "cannot be built"),
    "patches of 10^12 by nothing": (google(embedding__kernel=npy((10**12, 0, 3, 24), data=b"")), "cannot be built"),
    "patches of nothing, without positions": (
        google(embedding__kernel=npy((0, 0, 3, 24), data=b""), Transformer__posembed_input__pos_embedding=None),
        "cannot be built",
    ),
    "a patch of 17,000 pixels": (
        google(embedding__kernel=np.zeros((17_000, 1, 1, 24), np.float32)),
        "size is (34000, 2)",
    ),
    "a kernel of two axes": (google(embedding__kernel=np.zeros((16, 24), np.float32)), "cannot be built"),
    "a kernel that is one number": (google(embedding__kernel=np.zeros((), np.float32)), "cannot be built"),
    "no heads": (
        google(Transformer__encoderblock_0__MultiHeadDotProductAttention_1__query__kernel=npy((24, 0, 12), data=b"")),
        "cannot be built",
    ),
    "block 10^9": (
        google(Transformer__encoderblock_999999999__LayerNorm_0__bias=np.zeros(1)),
        "for 1000000000 modules",
    ),
    "block of 5,000 digits": (google(**{f"Transformer__encoderblock_{'9' * 5000}__x": np.zeros(1)}), "does not use"),
    "more arrays than a ViT has": (google(extra=np.zeros(1)), "does not use: extra"),
    "whole numbers": (google(cls=np.zeros((1, 1, 24), int)), "weights has the type int64"),
    "paths that climb": (npz({"../../ran.npy": npy()}), "it contains ../../ran"),
    "an absolute path": (npz({"/tmp/ran.npy": npy()}), "x.npz is not a ViT"),
    "names with line ends": (npz({"a\r\n\x1b[2Jb.npy": npy()}), "x.npz is not a ViT"),
    "one name twice": (npz({"a": npy(), "a.npy": npy()}), "two arrays of the same name"),
    "10,001 members": (lambda folder: npz({str(n): b"" for n in range(10_001)})(folder), "holds 10,001 arrays"),
    "100 MB of zeros, squeezed": (
        lambda folder: npz({"a": npy((25_000_000,), data=bytes(100_000_000))}, packing=zipfile.ZIP_DEFLATED)(folder),
        "expands to",
    ),
    "no archive": (file("x.npz", npy()), "is not a valid .npz file"),
    "no array": (google(cls=b"hello"), "not a valid .npz"),
    "a header of another kind": (google(cls=b"\x93NUMPY\x01\x00\x08\x00{{}: 1}\n"), "not a valid .npz"),
    "a packing that is not known": (zip_bytes({"cls.npy": bytes(99)}, "x.npz", packing=zipfile.ZIP_LZMA), "x.npz"),
    "a stack of blocks of nothing": (
        npz({"embedding/kernel.npy": npy((1, 1, 1, 2)), "Transformer/encoderblock/x.npy": npy((0,), data=b"")}),
        "cannot be built",
    ),
    "another model": (npz({"weights.npy": npy()}), "x.npz is not a ViT"),
    "no blocks": (npz({"embedding/kernel.npy": npy((1, 1, 1, 2))}), "x.npz"),
    "sizes that are not those of the members": (
        lambda folder: lying_sizes(npz({"a": npy((2**28,), data=bytes(10))})(folder)),
        "expands to 4,2",
    ),
}


def lying_sizes(path: Path) -> Path:
    """Writes 4 GB as the size of the only member into the directory of the archive."""
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = b"\xff\xff\xff\xfe"
    path.write_bytes(content)
    return path


def told(**arguments: object) -> Maker:
    return timm_folder(model_args={"num_heads": 2, **arguments})


def seen(**values: object) -> Maker:
    return timm_folder(pretrained_cfg=values)


FOLDERS: dict[str, tuple[Maker, str]] = {
    "no heads": (told(num_heads=-1), "heads"),
    "heads that do not divide": (told(num_heads=7), "heads"),
    "heads in words": (told(num_heads="1e9"), "heads"),
    "heads in a list": (told(num_heads=[2]), "heads"),
    "heads of 10^400": (told(num_heads=10**400), "a whole number has 401 digits"),
    "half a head": (told(num_heads=1.5), "heads"),
    "heads of NaN": (told(num_heads=float("nan")), "heads"),
    "arguments in a list": (timm_folder(model_args=[1, 2]), "model_args"),
    "an activation in a list": (told(act_layer=["gelu"]), "act_layer"),
    "an activation of a program": (told(act_layer="os.system"), "act_layer must be gelu"),
    "a pool of a number": (timm_folder(global_pool=5), "pools by '5'"),
    "a pool in a dict": (timm_folder(global_pool={"a": 1}), "pools by"),
    "a pool that was not trained": (
        timm_folder(global_pool="map"),
        "pools by map without the tokens before the patches",
    ),
    "preprocessing in a list": (timm_folder(pretrained_cfg=[1]), "is not a mapping"),
    "a mean in words": (seen(mean="abc"), "cannot be used"),
    "a mean of a million": (seen(mean=[0.5] * 100_000), "100000 means for 3"),
    "a mean of NaN": (seen(mean=[float("nan")] * 3), "cannot be used"),
    "a mean of infinity": (seen(mean=[1e999] * 3), "cannot be used"),
    "a deviation of nothing": (seen(std=[0, 0, 0]), "cannot be used"),
    "a deviation of NaN": (seen(std=[float("nan")] * 3), "cannot be used"),
    "a crop of nothing": (seen(crop_pct=0), "crop_pct"),
    "a crop of 10^-9": (seen(crop_pct=1e-9), "crop_pct"),
    "a crop of NaN": (seen(crop_pct=float("nan")), "crop_pct"),
    "a crop in words": (seen(crop_pct="all"), "cannot be used"),
    "a crop of 10^400": (seen(crop_pct=10**400), "a whole number has 401 digits"),
    "a filter in a dict": (seen(interpolation={"a": 1}), "interpolation"),
    "a mode of cropping in a list": (seen(crop_mode=["center"]), "crop_mode"),
    "a config of nothing": (timm_folder(b""), "config.json is not JSON"),
    "a config of a list": (timm_folder(b"[]"), "config.json is not a JSON object"),
    "a config 10,000 deep": (timm_folder(b'{"architecture":' + b"[" * 10_000 + b"]" * 10_000 + b"}"), "is not JSON"),
    "a config of a number of 5,000 digits": (timm_folder(b'{"architecture":%b}' % (b"9" * 5000)), "is not JSON"),
    "a config of 17 MB": (lambda folder: timm_folder(b" " * 17_000_000)(folder), "is longer than"),
    "a config of 15 MB of lists": (
        lambda folder: timm_folder(b"[" + b"[]," * 5_000_000 + b"1]")(folder),
        "at most 500,000 are read",
    ),
    "a config that says a thing twice": (timm_folder(b'{"architecture":"a","architecture":"b"}'), "appears twice"),
    "a config that is no text": (timm_folder(b"\xff\xfe\x00"), "is not JSON"),
    "a config that is a folder": (lambda folder: (folder / "config.json").mkdir() or folder, "is not a model"),
    "vitrail's, format 99": (native_folder(format_version=99), "format version 99"),
    "vitrail's, format in a list": (native_folder(format_version=[1]), "format version [1]"),
    "vitrail's, architecture in a list": (native_folder(architecture=["vit"]), "architecture"),
    "vitrail's, 10^9 blocks": (native_folder(config={"depth": 10**9}), "for 1000000000 blocks"),
    "vitrail's, 2^40 wide": (native_folder(config={"width": 2**40}), "too large"),
    "vitrail's, 2^62 registers": (native_folder(config={"registers": 2**62}), "model"),
    "vitrail's, an MLP of 2^62": (native_folder(config={"mlp_width": 2**62}), "model"),
    "vitrail's, 10^300 wide": (native_folder(config={"width": 10**300, "heads": 1}), "model"),
    "vitrail's, no heads": (native_folder(config={"heads": 0}), "heads is 0"),
    "vitrail's, patches of nothing": (native_folder(config={"patch_size": [0, 0]}), "patch_size"),
    "vitrail's, images of 10^9": (native_folder(config={"image_size": [16 * 10**9] * 2}), "model"),
    "vitrail's, an epsilon of NaN": (native_folder(config={"norm_eps": float("nan")}), "norm_eps"),
    "vitrail's, pictures of 10^9": (native_folder(preprocessing={"size": [10**9, 10**9]}), "cannot be used"),
    "vitrail's, a size of text": (native_folder(preprocessing={"size": "ab"}), "cannot be used"),
    "vitrail's, scaled to 10^9": (
        native_folder(preprocessing={"resize": "short", "resize_to": 10**9}),
        "cannot be used",
    ),
    "vitrail's, a deviation of NaN": (native_folder(preprocessing={"std": [float("nan")] * 3}), "cannot be used"),
    "vitrail's, a temperature of NaN": (native_folder(temperature=float("nan")), "temperature"),
    "vitrail's, an infinite temperature": (native_folder(temperature=float("inf")), "temperature"),
    "vitrail's, names that are numbers": (native_folder(classes=[1, 2, 3]), "cannot be used"),
    "vitrail's, names in one word": (native_folder(classes="abc"), "cannot be used"),
    "vitrail's, provenance in a list": (native_folder(provenance=[1]), "cannot be used"),
    "vitrail's, a hash that is a number": (native_folder(sha256=5), "SHA-256"),
    "an index of a path that climbs": (sharded(moved("../x.safetensors")), "not a file name in its folder"),
    "an index of an absolute path": (sharded(moved("/tmp/x.safetensors")), "not a file name in its folder"),
    "an index of a path of Windows": (sharded(moved("C:\\x.safetensors")), "not a file name in its folder"),
    "an index of a name with a zero": (sharded(moved("a\0.safetensors")), "not a file name in its folder"),
    "an index of a pickle": (sharded(moved("pytorch_model.bin")), "not a file name in its folder"),
    "an index of a link that leaves": (sharded(linked), "is a link that leaves its folder"),
    "an index of a file that is not there": (sharded(lambda f, i: (f / SHARDS[1]).unlink()), "No such file"),
    "an index of a folder": (
        sharded(lambda f, i: ((f / "y.safetensors").mkdir(), moved("y.safetensors")(f, i))),
        "cannot be read",
    ),
    "a torn shard": (sharded(lambda f, i: (f / SHARDS[1]).write_bytes(b"{")), SHARDS[1]),
    "a tensor in no shard": (sharded(lambda f, i: i["weight_map"].update(z=SHARDS[0])), "which does not contain it"),
    "a tensor in another shard": (sharded(lambda f, i: i["weight_map"].update(cls_token=SHARDS[1])), "lists in"),
    "a tensor that the index does not name": (sharded(lambda f, i: i["weight_map"].pop("cls_token")), "does not list"),
    "a tensor in two shards": (sharded(doubled), "'norm.weight', which model.safetensors.index.json lists in"),
    "an index of another size": (sharded(lambda f, i: i["metadata"].update(total_size=10**12)), "declares 10000000"),
    "an index of a size in words": (
        sharded(lambda f, i: i["metadata"].update(total_size="x")),
        "invalid total size 'x'",
    ),
    "an index of lists": (sharded(lambda f, i: i.update(weight_map=[1, 2])), "has no valid weight_map"),
    "an index of dicts": (sharded(lambda f, i: i["weight_map"].update(cls_token={})), "not a file name in its folder"),
    "an index of nothing": (sharded(lambda f, i: i.clear()), "has no valid weight_map"),
    "an index of 10,001 tensors": (
        sharded(lambda f, i: i["weight_map"].update({str(n): SHARDS[0] for n in range(10_001)})),
        "lists 10,0",
    ),
    "an index of 1,001 files": (
        sharded(lambda f, i: i["weight_map"].update({str(n): f"{n}.safetensors" for n in range(1_001)})),
        "in 1,003 files",
    ),
    "a pickle for weights": (
        lambda folder: (
            (timm_folder()(folder) / "model.safetensors").unlink()
            or torch_zip(lambda f: {"a": Call(os.system, touch(f))}, "pytorch_model.bin")(folder).parent
        ),
        "pytorch_model.bin would call 'posix.system'",
    ),
}
