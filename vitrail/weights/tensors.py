"""Reading a safetensors file that may come from anyone, and comparing what it holds with what a model needs.

Nothing is unpickled, nothing is mapped into memory, and the header is checked before the tensors are read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from torch import Tensor, nn

from vitrail.errors import CheckpointError
from vitrail.models import Backbone, Config, sketch

MOST_HEADER_BYTES = 16 * 2**20
MOST_TENSORS = 10_000
MOST_LISTED = 12
MOST_PIECES = 500_000  # of JSON: keys, values and brackets, each of which takes far more memory than its text
AGAIN = "it is damaged or was not copied whole; fetch it again"


def read_tensors(path: Path, *, sha256: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU, and the text in its header.

    Args:
        sha256: what the bytes must hash to, where that is known.

    Raises:
        CheckpointError: the file is not there, is damaged, or has a header beyond 16 MB or 10,000 tensors.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            metadata = _check_header(path, file.read(8), size, file.read)
            file.seek(0)
            content = file.read()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise CheckpointError(f"{path} does not match its SHA-256", AGAIN)
    try:
        return from_bytes(content), metadata
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{path} is no sound safetensors file: {printable(error, 200)}", AGAIN) from error


def _check_header(path: Path, start: bytes, size: int, read: Any) -> dict[str, str]:
    """The header's text; refuses a header that is too large, or that promises another size of the file."""
    length = int.from_bytes(start, "little")
    if len(start) < 8 or (length <= MOST_HEADER_BYTES and 8 + length > size):
        raise CheckpointError(f"{path} has {size:,} bytes, fewer than its header needs", AGAIN)
    if length > MOST_HEADER_BYTES:
        what = f"{path} is no safetensors file, or has a header of {length:,} bytes"
        raise CheckpointError(what, f"headers up to {MOST_HEADER_BYTES:,} bytes are read")
    try:
        header = _load_json(read(length))
        metadata = header.pop("__metadata__", {})
        promised = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        sound = all(isinstance(value, str) for value in metadata.values())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path} is no sound safetensors file: its header cannot be read", AGAIN) from error
    if len(header) > MOST_TENSORS or not sound:
        raise CheckpointError(f"{path} holds {len(header):,} tensors", f"up to {MOST_TENSORS:,} are read")
    if promised != size:
        raise CheckpointError(f"{path} has {size:,} bytes, its header promises {promised:,}", AGAIN)
    return metadata


def check_fit(needed: Mapping[str, Tensor], given: Mapping[str, Tensor], path: str | Path) -> None:
    """Refuses tensors that are not exactly those a model needs, naming up to 12 of them.

    Raises:
        CheckpointError: lists every missing, unexpected or mis-shaped tensor, and those that are not numbers.
    """
    faults = [
        f"missing     {printable(name)} {shape_of(tensor)}" for name, tensor in needed.items() if name not in given
    ]
    faults += [
        f"unexpected  {printable(name)} {shape_of(tensor)}" for name, tensor in given.items() if name not in needed
    ]
    for name in (name for name in needed if name in given):
        if given[name].shape != needed[name].shape:
            faults.append(
                f"shape       {printable(name)} is {shape_of(given[name])}, the model has {shape_of(needed[name])}"
            )
        elif not given[name].is_floating_point():
            faults.append(f"type        {printable(name)} is {given[name].dtype}")
    if not faults:
        return
    shown = faults[:MOST_LISTED] + ([f"and {len(faults) - MOST_LISTED} more"] if len(faults) > MOST_LISTED else [])
    what = f"{path} does not fit the model: {len(faults)} of its tensors"
    raise CheckpointError(what, "give the weights of this architecture and size", value="\n".join(shown))


def build_backbone(config: Config, tensors: Mapping[str, Tensor], path: str | Path) -> Backbone:
    """The backbone of ``config`` with these weights in fp32; the fit is checked before memory is taken for it.

    Raises:
        CheckpointError: lists the tensors that do not fit.
    """
    return build_network(lambda: sketch(config), config.blocks, tensors, path)


M = TypeVar("M", bound=nn.Module)


def build_network(draft: Callable[[], M], blocks: int, tensors: Mapping[str, Tensor], path: str | Path) -> M:
    """The same of any network of so many ``blocks`` that ``draft`` makes on the meta device."""
    if blocks > len(tensors):
        what = f"{path} does not fit the model: {len(tensors)} tensors for {blocks} blocks"
        raise CheckpointError(what, "give the weights of this architecture and size")
    try:
        model = draft()
    except (RuntimeError, TypeError, OverflowError) as error:
        what = f"{path} does not fit the model, which would be too large: a tensor of it has 2^63 elements or more"
        raise CheckpointError(what, "give the weights of this architecture and size") from error
    check_fit(model.state_dict(), tensors, path)
    model.load_state_dict({name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}, assign=True)
    return model


def warn_of_broken(tensors: Mapping[str, Tensor], path: Path, log: Callable[[str], None]) -> None:
    """Says where numbers are none: such weights are whole and can be looked into, but not used."""
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        log(
            f"warning  {path.name}: NaN or infinity in {len(broken)} tensors, such as {broken[0]}: answers mean nothing"
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises `CheckpointError` where it is not there, too long, or no object."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_HEADER_BYTES + 1)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from error
    return parse_json(content, str(path))


def parse_json(content: str | bytes, where: str) -> dict[str, Any]:
    """The same from memory; ``where`` names it in messages."""
    if len(content) > MOST_HEADER_BYTES:
        raise CheckpointError(f"{where} is longer than {MOST_HEADER_BYTES:,} bytes", "it is no model's description")
    try:
        value = _load_json(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is no JSON: {printable(error, 200)}", AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds no JSON object", AGAIN)
    return value


def _load_json(content: str | bytes) -> Any:
    """Raises `ValueError` before much memory is taken, and where a key stands twice: readers differ in which they take."""
    content = content.encode() if isinstance(content, str) else content
    pieces = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if pieces > MOST_PIECES:
        raise ValueError(f"it has {pieces:,} parts, and up to {MOST_PIECES:,} are read")
    return json.loads(content, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{printable(twice, 80)!r} stands twice")
    return content


def printable(text: object, most: int = 80) -> str:
    """Text from a stranger for a message: one short line that moves no cursor."""
    words = " ".join(str(text)[: 4 * most].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words[:most])
    return shown if len(words) <= most else f"{shown}..."


def shape_of(tensor: Tensor) -> str:
    """The axes in a word, as in 3x224x224."""
    return "x".join(map(str, tensor.shape)) or "scalar"
