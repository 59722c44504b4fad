"""Reads untrusted safetensors files and checks their tensors against those of a model.

Nothing is unpickled, nothing is mapped into memory, and the header is checked before the tensors are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from vitrail.checksums import FIELD, UNSEALED, add_checksum_to_tensors, are_tensors_intact, is_intact, sha256_of
from vitrail.errors import CheckpointError
from vitrail.models import Backbone, Config, create_backbone, sketch
from vitrail.text import printable
from vitrail.untrusted import json_documents
from vitrail.untrusted.limits import HEADER_BYTES as MAX_HEADER_BYTES
from vitrail.untrusted.limits import HEADER_PIECES as MAX_PIECES
from vitrail.untrusted.limits import TENSORS as MAX_TENSORS

MAX_LISTED = 12
LFS_POINTER = b"version "  # of "version https://git-lfs.github.com/spec/v1"; as a length it is beyond every header
OTHER = "it is another architecture, or has parts that are not supported; docs/model-zoo.md lists what is read"
AGAIN = "it is damaged or was not copied whole; fetch it again"


def encode_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Returns a safetensors file with this metadata and its checksum: the same bytes for the same arguments."""
    return add_checksum_to_tensors(to_bytes(dict(tensors), {**metadata, FIELD: UNSEALED}))


def read_tensors(path: Path, *, sha256: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads the tensors of a safetensors file, on the CPU, and the metadata in its header.

    Args:
        sha256: the expected hash of the file, if known; it is checked in place of the one in the metadata.

    Raises:
        CheckpointError: the file is missing or damaged, or has a header above 16 MB or more than 10,000 tensors.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            metadata = _check_header(path, file.read(8), size, file.read)
            file.seek(0)
            content = file.read()
        checksum = metadata.pop(FIELD, None)
        if sha256 is not None and sha256_of(content) != sha256:
            raise CheckpointError(f"{path} does not match its SHA-256", AGAIN)
        if sha256 is None and checksum is not None and not are_tensors_intact(content, checksum):
            what = f"{path} was changed after vitrail wrote it: its content does not match its SHA-256"
            raise CheckpointError(what, AGAIN)
        return from_bytes(content), metadata
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        what = f"there is not enough memory to read {path} of {path.stat().st_size / 1e6:,.0f} MB"
        remedy = "close other programs, raise the limit (ulimit -v), or use a larger machine"
        raise CheckpointError(what, remedy) from error
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not a valid safetensors file: {printable(error, 200)}", AGAIN) from error


@contextmanager
def refusing_values(what: str, remedy: str) -> Iterator[None]:
    """Turns the errors that invalid values cause inside the block into a `CheckpointError`: ``what``, with the reason."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        reason = printable(f"it has no {error}" if isinstance(error, KeyError) else error, 300)
        raise CheckpointError(f"{what}: {reason}", remedy) from error


def unreadable(path: Path | str, error: OSError) -> CheckpointError:
    """Returns the error for a file that the system does not give."""
    return CheckpointError(f"{path} cannot be read: {error.strerror or error}", "check the path and its permissions")


def _check_header(path: Path, start: bytes, size: int, read: Any) -> dict[str, str]:
    """Reads the metadata of the header. Raises `CheckpointError` if it is too large or does not match the file size."""
    if start == LFS_POINTER:
        what = f"{path} is a pointer of Git LFS, not the weights"
        raise CheckpointError(what, "run `git lfs pull` in its repository, or download the file itself")
    length = int.from_bytes(start, "little")
    if len(start) < 8 or (length <= MAX_HEADER_BYTES and 8 + length > size):
        raise CheckpointError(f"{path} has {size:,} bytes, which is less than its header", AGAIN)
    if length > MAX_HEADER_BYTES:
        what = f"{path} is not a safetensors file, or has a header of {length:,} bytes"
        raise CheckpointError(what, f"headers are limited to {MAX_HEADER_BYTES:,} bytes")
    try:
        header = _load_json(read(length))
        metadata = header.pop("__metadata__", {})
        promised = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        sound = all(isinstance(value, str) for value in metadata.values())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path} is not a valid safetensors file: its header cannot be read", AGAIN) from error
    if len(header) > MAX_TENSORS or not sound:
        raise CheckpointError(f"{path} holds {len(header):,} tensors", f"up to {MAX_TENSORS:,} are read")
    if promised != size:
        raise CheckpointError(f"{path} has {size:,} bytes, but its header declares {promised:,}", AGAIN)
    return metadata


def check_fit(needed: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Checks that the tensors are exactly those that a model needs.

    Raises:
        CheckpointError: lists up to 12 missing or unexpected tensors, and those of another shape or type.
    """
    faults = [f"missing     {printable(name)} {shape_of(needed[name])}" for name in needed if name not in tensors]
    faults += [f"unexpected  {printable(name)} {shape_of(tensors[name])}" for name in tensors if name not in needed]
    for name in (name for name in needed if name in tensors):
        if tensors[name].shape != needed[name].shape:
            shapes = f"{shape_of(tensors[name])}, the model has {shape_of(needed[name])}"
            faults.append(f"shape       {printable(name)} is {shapes}")
        elif (
            tensors[name].is_floating_point() != needed[name].is_floating_point()
        ):  # a registered model may count batches
            faults.append(f"type        {printable(name)} is {tensors[name].dtype}")
    if faults:
        shown = faults[:MAX_LISTED]
        shown += [f"and {len(faults) - MAX_LISTED} more"] if len(faults) > MAX_LISTED else []
        what = f"{path} does not fit the model: {len(faults)} of its tensors"
        raise CheckpointError(what, OTHER, value="\n".join(shown))


def build_backbone(config: Config, tensors: Mapping[str, Tensor], path: str | Path) -> Backbone:
    """Builds the backbone of ``config`` with these weights in fp32; they are checked before memory is allocated.

    Raises:
        CheckpointError: lists the tensors that do not fit.
    """
    backbone = build_network(lambda: sketch(config), config.blocks, tensors, path)
    if any(buffer.is_meta for buffer in backbone.buffers()):  # those of a registered model that are not saved
        weights, backbone = backbone.state_dict(), create_backbone(config)
        backbone.load_state_dict(weights)
    return backbone


M = TypeVar("M", bound=nn.Module)


def build_network(draft: Callable[[], M], blocks: int, tensors: Mapping[str, Tensor], path: str | Path) -> M:
    """Builds the network of ``blocks`` blocks that ``draft`` creates on the meta device, as `build_backbone` does."""
    if blocks > len(tensors):
        what = f"{path} does not fit the model: {len(tensors)} tensors for {blocks} blocks"
        raise CheckpointError(what, OTHER)
    try:
        model = draft()
    except (RuntimeError, TypeError, OverflowError) as error:
        what = f"{path} does not fit the model, which would be too large: a tensor would have 2^63 elements or more"
        raise CheckpointError(what, OTHER) from error
    check_fit(model.state_dict(), tensors, path)
    kinds = {name: torch.float32 if tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()}
    model.load_state_dict({name: tensor.to(kinds[name], copy=True) for name, tensor in tensors.items()}, assign=True)
    return model


def warn_of_broken(tensors: Mapping[str, Tensor], path: Path, log: Callable[[str], None]) -> None:
    """Warns of NaN and infinity: such weights can be inspected, but not used."""
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        where = f"{len(broken)} tensors, such as {broken[0]}"
        log(f"warning  {path.name}: NaN or infinity in {where}: its predictions are meaningless")


def read_json(path: Path, *, log: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        log: called with a line if the file was changed after vitrail wrote it, which is an error otherwise.

    Raises:
        CheckpointError: the file is missing, too long, changed or not an object.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_HEADER_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    value = parse_json(content, str(path))
    if log is None:
        check_intact(value, path)
    elif not is_intact(value):
        log(f"warning  {path} was changed after vitrail wrote it, by other software or by damage; it is used as it is")
    return value


def check_intact(document: Mapping[str, Any], where: Path | str) -> None:
    """Raises `CheckpointError` for a JSON object that does not match its checksum."""
    if not is_intact(document):
        what = f"{where} was changed after vitrail wrote it: it does not match its {FIELD}"
        remedy = (
            f"fetch it again; for other class names use `vitrail convert SRC DST --to native --classes FILE`; "
            f"if the change is intended, remove the field {FIELD!r}"
        )
        raise CheckpointError(what, remedy)


def parse_json(content: str | bytes, where: str) -> dict[str, Any]:
    """Parses a JSON object; ``where`` names its source in messages. Raises `CheckpointError`."""
    if len(content) > MAX_HEADER_BYTES:
        what = f"{where} is longer than {MAX_HEADER_BYTES:,} bytes"
        raise CheckpointError(what, "it is not the description of a model")
    try:
        value = _load_json(content)
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON: {printable(error, 200)}", AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is not a JSON object", AGAIN)
    return value


def _load_json(content: str | bytes) -> Any:
    """Raises `ValueError` for too many values, and for duplicate keys, which parsers resolve differently."""
    content = content.encode() if isinstance(content, str) else content
    pieces = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if pieces > MAX_PIECES:
        raise ValueError(f"it has {pieces:,} elements, at most {MAX_PIECES:,} are read")
    return json_documents.parse_json(content, unique=True)


def shape_of(tensor: Tensor) -> str:
    """Returns the shape as text, such as 3x224x224."""
    return "x".join(map(str, tensor.shape)) or "scalar"
