"""Pickled checkpoints that lie: how each is made, and words of the message that refuses it."""

from __future__ import annotations

import builtins
import os
import pickle
import subprocess
import zipfile
from typing import Any

import numpy as np
import torch

from tests.weights.untrusted import (
    CANARY,
    Call,
    Maker,
    file,
    legacy_bytes,
    sound,
    torch_legacy,
    torch_zip,
    touch,
    zip_bytes,
)

WIDE = sound(width=192, heads=3)  # as wide as a published model, so a bare file of it can be read
SYSTEM = b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03."
BOMB = {"x/data.pkl": pickle.dumps({}), "x/version": b"3\n", "x/data/0": bytes(50_000_000)}


def itself(depth: int) -> dict[str, Any]:
    held: dict[str, Any] = {"epoch": depth}
    held["model"] = held["state_dict"] = held
    return held


def deep(depth: int) -> bytes:
    """A tuple in a tuple in a tuple ..."""
    return b"\x80\x02)" + b"\x85" * depth + b"."


class Whole(torch.nn.Module):
    """A model saved as it is, code and all."""


PICKLES: dict[str, tuple[Maker, str]] = {
    "os.system": (torch_zip(lambda f: {"a": Call(os.system, touch(f))}), "would call 'posix.system'"),
    "os.system, older format": (torch_legacy(lambda f: {"a": Call(os.system, touch(f))}), "would call 'posix.system'"),
    "eval": (torch_zip(lambda f: Call(builtins.eval, f"open({str(f / CANARY)!r}, 'w')")), "would call 'eval'"),
    "exec": (torch_legacy(lambda f: Call(builtins.exec, f"open({str(f / CANARY)!r}, 'w')")), "would call 'exec'"),
    "subprocess": (
        torch_zip(lambda f: [Call(subprocess.Popen, ["touch", str(f / CANARY)])]),
        "Popen' when it is opened",
    ),
    "a call in a call beside sound tensors": (
        torch_zip(lambda f: {"model": {**WIDE, "z": Call(getattr, Call(__import__, "os"), "system")}}),
        "would call 'getattr'",
    ),
    "torch.load itself": (torch_zip(lambda f: Call(torch.load, str(f / "y.pt"), None, None, False)), "torch"),
    "a file that is opened for writing": (torch_zip(lambda f: Call(open, str(f / CANARY), "w")), "open"),
    "a bare pickle": (file("x.pkl", SYSTEM), "x.pkl would call 'posix.system'"),
    "the INST opcode": (legacy_bytes(b"(S'touch ran'\nios\nsystem\n."), "is not a valid checkpoint"),
    "the OBJ opcode": (legacy_bytes(b"(cos\nsystem\nS'touch ran'\no."), "x.pth"),
    "a call by a name in two parts": (legacy_bytes(b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "is not a valid"),
    "an extension code": (legacy_bytes(b"\x80\x02\x82\x01."), "is not a valid checkpoint"),
    "an empty stack": (legacy_bytes(b"\x80\x020000R."), "is not a valid checkpoint"),
    "a memory of 2^31 places": (legacy_bytes(b"\x80\x02Nr\xff\xff\xff\x7f0."), "x.pth"),
    "bytes of 2^40 that are not there": (
        legacy_bytes(b"\x80\x04\x8e" + (2**40).to_bytes(8, "little")),
        "is not a valid",
    ),
    "a string of 2^31 that is not there": (legacy_bytes(b"\x80\x02X\xff\xff\xff\x7f"), "x.pth"),
    "tuples 100,000 deep": (zip_bytes({"x/data.pkl": deep(100_000), "x/version": b"3\n"}), "contains no named tensors"),
    "a dict in itself": (torch_zip(lambda f: itself(3)), "contains no named tensors but a dict of 3 other items"),
    "a whole model": (torch_zip(lambda f: Whole()), "Whole' when it is opened"),
    "numbers of NumPy": (torch_zip(lambda f: {"a": np.float64(1)}), "would call 'numpy._core.multiarray.scalar'"),
    "a bytearray of 10^12": (torch_zip(lambda f: {"a": Call(bytearray, 10**12)}), "takes more memory than a file"),
    "4 numbers that stand for 10^12": (torch_zip(lambda f: {"a": torch.zeros(1).expand(10**12)}), "would take 4,000,"),
    "overlapping strides": (
        torch_zip(lambda f: {"a": torch.zeros(2000).as_strided((1000, 1000), (1, 1))}),
        "would take 4,000,000",
    ),
    "many views of one storage": (
        torch_zip(lambda f: {str(number): part[number:] for part in [torch.zeros(10_000)] for number in range(100)}),
        "would take",
    ),
    "a sparse tensor": (torch_zip(lambda f: {"a": torch.eye(3).to_sparse()}), "sparse or nested tensor 'a'"),
    "a complex tensor": (torch_zip(lambda f: {"a": torch.zeros(3, dtype=torch.complex64)}), "complex tensor 'a'"),
    "a tensor without data": (torch_zip(lambda f: {"a": torch.zeros(3, device="meta")}), "meta device) tensor 'a'"),
    "a tensor alone": (torch_zip(lambda f: torch.zeros(3)), "contains no named tensors but one Tensor"),
    "a list": (torch_zip(lambda f: [torch.zeros(3)]), "contains no named tensors but one list"),
    "an empty dict": (torch_zip(lambda f: {}), "a dict of 0 other items"),
    "names that are no text": (
        torch_zip(lambda f: {1: torch.zeros(3), None: torch.zeros(2)}),
        "contains no named tensors",
    ),
    "a name that is no Unicode": (torch_zip(lambda f: {"\ud800": torch.zeros(3)}), "surrogates not allowed"),
    "a name of a megabyte": (torch_zip(lambda f: {"n" * 2**20: torch.zeros(3)}), "not a plain ViT"),
    "a name that moves the cursor": (torch_zip(lambda f: {"\x1b[2J\r\n": torch.zeros(3)}), "it contains ?[2J"),
    "10,001 tensors": (torch_zip(lambda f: {str(n): torch.zeros(()) for n in range(10_001)}), "holds 10,001 tensors"),
    "a squeezed archive": (
        lambda folder: zip_bytes(BOMB, packing=zipfile.ZIP_DEFLATED)(folder),
        "and expands to 50,000,00",
    ),
    "an archive without a pickle": (zip_bytes({"x/version": b"3\n"}), "is not a valid checkpoint"),
    "an archive of TorchScript": (
        zip_bytes({"x/data.pkl": b"N.", "x/constants.pkl": b"N.", "x/version": b"3\n"}),
        "TorchScript",
    ),
    "an archive of paths that climb": (zip_bytes({"../../ran": b"", "x/data.pkl": b"N."}), "is not a valid checkpoint"),
    "an empty file": (file("x.pt", b""), "x.pt is not a valid checkpoint"),
    "noise": (file("pytorch_model.bin", np.random.default_rng(0).bytes(5000)), "pytorch_model.bin is not a valid"),
    "a text": (file("x.ckpt", b"not weights at all\n" * 100), "x.ckpt is not a valid checkpoint"),
    "a page of the web": (file("x.th", b"<!DOCTYPE html><html>404</html>"), "x.th is not a valid checkpoint"),
    "a real archive of files": (
        file("x.tar", b"a.jpg".ljust(257, b"\0") + b"ustar" + bytes(1000)),
        "an archive of files",
    ),
}
