"""What an .onnx file contains, read without running it and without memory for what it claims to contain.

The file is one protobuf message, a ModelProto of onnx.proto. Its fields are read where they lie.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.errors import CheckpointError
from vitrail.weights.onnx.operators import Node
from vitrail.weights.tensors import printable

MOST_BYTES = 2**31 - 1  # of a protobuf message; larger weights are in separate files
MOST_FIELDS, MOST_NODES = 1_000_000, 50_000  # many times those of the deepest model
MOST_DEPTH = 4  # of graphs inside of nodes
MOST_AXES = 32
DISTRUST = "fetch it again from a source you trust, or export the model again: vitrail export MODEL --to onnx"

# the fields of each message by their numbers in onnx.proto
FIELDS = {
    "model": {1: "ir_version", 2: "producer_name", 3: "producer_version", 4: "domain", 5: "model_version"}
    | {6: "doc_string", 7: "graph", 8: "opset_import", 14: "metadata_props"},
    "graph": {1: "node", 2: "name", 5: "initializer", 10: "doc_string", 11: "input", 12: "output", 13: "value_info"}
    | {14: "quantization_annotation", 16: "metadata_props"},
    "node": {1: "input", 2: "output", 3: "name", 4: "op_type", 5: "attribute", 6: "doc_string", 7: "domain"}
    | {8: "overload", 9: "metadata_props"},
    "attribute": {1: "name", 2: "f", 3: "i", 4: "s", 5: "t", 6: "g", 7: "floats", 8: "ints", 9: "strings"}
    | {10: "tensors", 11: "graphs", 13: "doc_string", 20: "type"},
    "tensor": {1: "dims", 2: "data_type", 4: "float_data", 5: "int32_data", 7: "int64_data", 8: "name"}
    | {9: "raw_data", 10: "double_data", 11: "uint64_data", 12: "doc_string", 13: "external_data"}
    | {14: "data_location", 16: "metadata_props"},
    "entry": {1: "key", 2: "value"},
    "value": {1: "name", 2: "type", 3: "doc_string", 4: "metadata_props"},
}
UNWANTED = {
    ("model", 20): "a training graph",
    ("model", 25): "functions",
    ("graph", 15): "sparse tensors",
    ("attribute", 22): "sparse tensors",
    ("attribute", 23): "sparse tensors",
    ("tensor", 3): "a tensor in segments",
    ("tensor", 6): "a tensor of text",
}
REPEATED = {"node", "initializer", "input", "output", "value_info", "quantization_annotation", "metadata_props"}
REPEATED |= {"opset_import", "attribute", "floats", "ints", "strings", "tensors", "graphs", "dims", "external_data"}
WIDTHS = {"float_data": 4, "double_data": 8, "int32_data": 0, "int64_data": 0, "uint64_data": 0}  # 0: variable
REPEATED |= WIDTHS.keys()
# bytes per value of a tensor by its data_type: float, 8 to 64 bit integers, bool, float16, double, bfloat16
SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
EXTERNAL = {"location", "offset", "length", "checksum"}


@dataclass(frozen=True)
class Contents:
    """The metadata of a file, its inputs, nodes and constants, and how many bytes of which other files it uses."""

    metadata: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)
    external: Counter[str] = field(default_factory=Counter)

    def list_files(self, path: Path) -> list[Path]:
        """Returns the file itself, and those in its folder that hold its weights."""
        return [path, *(path.resolve().parent / name for name in sorted(self.external))]


class Unreadable(ValueError):
    """Why a file is refused, as the end of a sentence that begins with its path."""


class Field(NamedTuple):
    """A field of a message: a number, or the bytes of a string, a message or a list of numbers."""

    name: str
    value: int | memoryview

    @property
    def content(self) -> memoryview:
        if isinstance(self.value, int):
            raise Unreadable(f"is damaged: its field {self.name!r} is a number")
        return self.value

    @property
    def number(self) -> int:
        if not isinstance(self.value, int):
            raise Unreadable(f"is damaged: its field {self.name!r} is not a number")
        return self.value

    @property
    def text(self) -> str:
        try:
            return str(self.content, "utf-8")
        except UnicodeDecodeError:
            raise Unreadable(f"is damaged: its field {self.name!r} is not UTF-8") from None


def read_contents(path: Path) -> Contents:
    """Reads what an .onnx file contains. docs/export.md lists what is refused.

    Raises:
        CheckpointError: the file cannot be read, is damaged or beyond a limit, or has weights elsewhere than in its folder.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Unreadable("has more than 2 GB, the limit of its format")
        reader = _Reader(path.resolve().parent)  # the folder of the file, not that of a link to it
        reader.read_model(memoryview(path.read_bytes()))
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise CheckpointError(what, "check the path and its permissions") from error
    except ValueError as error:
        raise CheckpointError(f"{path} {printable(error, 300)}", DISTRUST) from error
    return reader.contents


class _Reader:
    """Collects the `Contents` of one file. All methods raise `Unreadable`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents = Contents()
        self.fields = 0

    def read_model(self, content: memoryview) -> None:
        has_graph = False
        for part in self.visit("model", content):
            if part.name == "graph":
                has_graph = True
                self.read_graph(part.content, 0)
            elif part.name == "metadata_props":
                key, value = self.read_entry(part.content)
                self.contents.metadata[key] = value
        if not has_graph:
            raise Unreadable("is not an ONNX file: it has no graph")

    def read_graph(self, content: memoryview, depth: int) -> None:
        """Reads a graph that is inside of ``depth`` others."""
        if depth > MOST_DEPTH:
            raise Unreadable(f"has more than {MOST_DEPTH} graphs inside of each other")
        for part in self.visit("graph", content):
            if part.name == "node":
                self.contents.nodes.append(self.read_node(part.content, depth))
                if len(self.contents.nodes) > MOST_NODES:
                    raise Unreadable(f"has more than {MOST_NODES:,} nodes")
            elif part.name == "initializer":
                self.contents.constants.add(self.check_tensor(part.content))
            elif part.name == "input" and depth == 0:
                fields = self.visit("value", part.content)
                self.contents.inputs.extend(value.text for value in fields if value.name == "name")

    def read_node(self, content: memoryview, depth: int) -> Node:
        words = {"op_type": "", "domain": ""}
        inputs: list[str] = []
        outputs: list[str] = []
        for part in self.visit("node", content):
            if part.name == "input":
                inputs.append(part.text)
            elif part.name == "output":
                outputs.append(part.text)
            elif part.name in words:
                words[part.name] = part.text
            elif part.name == "attribute":
                self.read_attribute(part.content, depth)
        return Node(words["op_type"], words["domain"], inputs, outputs)

    def read_attribute(self, content: memoryview, depth: int) -> None:
        for value in self.visit("attribute", content):
            if value.name in ("t", "tensors"):
                self.check_tensor(value.content)
            elif value.name in ("g", "graphs"):
                self.read_graph(value.content, depth + 1)

    def check_tensor(self, content: memoryview) -> str:
        """Returns the name of a tensor that holds as many values as it claims."""
        name, kind, lengths, external = "", 0, [], {}
        held, raw = 0, 0  # values in lists of numbers, and bytes
        for part in self.visit("tensor", content):
            if part.name == "name":
                name = part.text
            elif part.name == "data_type":
                kind = part.number
            elif part.name == "dims":
                lengths += islice(_read_numbers(part), MOST_AXES + 1)
            elif part.name == "raw_data":
                raw = len(part.content)
            elif part.name in WIDTHS:
                held += _count_values(part)
            elif part.name == "external_data":
                external.update([self.read_entry(part.content)])
        if kind not in SIZES:
            raise Unreadable(f"has the tensor {name!r} of the unsupported data type {kind}")
        if len(lengths) > MOST_AXES or any(length >= 2**63 for length in lengths):  # negative numbers have the 64th bit
            raise Unreadable(f"has the tensor {name!r} with {len(lengths)} axes or negative lengths")
        claimed = math.prod(lengths)
        if external:
            self.check_external(name, external, claimed * SIZES[kind])
        elif (held, raw) not in ((claimed, 0), (0, claimed * SIZES[kind])):
            what = f"claims {claimed:,} values of {SIZES[kind]} bytes and holds {held:,} values and {raw:,} bytes"
            raise Unreadable(f"has the tensor {name!r} that {what}")
        return name

    def check_external(self, name: str, external: dict[str, str], size: int) -> None:
        """Checks that the ``size`` bytes of a tensor are in a file in the same folder, each byte used once."""
        location, unknown = external.get("location", ""), external.keys() - EXTERNAL
        numbers = [external.get("offset", "0"), external.get("length", str(size))]
        if unknown or not all(number.isdecimal() and len(number) < 20 for number in numbers):
            raise Unreadable(f"has the tensor {name!r} at a place that is not described as in ONNX: {external}")
        offset, length = map(int, numbers)
        if location in ("", ".", "..") or any(mark in location for mark in "/\\:\0"):
            raise Unreadable(f"has the tensor {name!r} in {location!r}; only files in the same folder are read")
        found = self.find_external(location)
        if length != size or offset + length > found.st_size:
            what = f"claims {size:,} bytes from byte {offset:,} of {location!r}, which has {found.st_size:,}"
            raise Unreadable(f"has the tensor {name!r} that {what}")
        self.contents.external[location] += length
        if self.contents.external[location] > found.st_size:
            raise Unreadable(f"has tensors that use the same bytes of {location!r} several times")

    def find_external(self, location: str) -> os.stat_result:
        """Returns the facts of a regular file that is in this folder only."""
        try:
            found = os.lstat(self.folder / location)
        except FileNotFoundError:
            raise Unreadable(f"has weights in {location!r}, which is not in its folder: copy both") from None
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(f"has weights in {location!r}, which is a link or no regular file: copy the file itself")
        if found.st_nlink > 1:
            raise Unreadable(f"has weights in {location!r}, which is a hard link to another file: copy the file itself")
        return found

    def read_entry(self, content: memoryview) -> tuple[str, str]:
        found = {part.name: part.text for part in self.visit("entry", content)}
        return found.get("key", ""), found.get("value", "")

    def visit(self, kind: str, content: memoryview) -> Iterator[Field]:
        """Returns the fields of a message, none of which is unknown, unwanted or set twice."""
        seen = set()
        for number, value in _split(content):
            self.fields += 1
            if self.fields > MOST_FIELDS:
                raise Unreadable(f"has more than {MOST_FIELDS:,} fields")
            if (name := FIELDS[kind].get(number)) is None:
                raise Unreadable(_explain_field(kind, number))
            if name in seen:
                raise Unreadable(f"is damaged: it sets {name!r} twice in one {kind}")
            if name not in REPEATED:
                seen.add(name)
            yield Field(name, value)


def _explain_field(kind: str, number: int) -> str:
    if unwanted := UNWANTED.get((kind, number)):
        return f"has {unwanted}, which vitrail does not read"
    return f"is not an ONNX file, or is damaged: it has the unknown field {number} in one {kind}"


def _split(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Returns the fields of a message by number (https://protobuf.dev/programming-guides/encoding)."""
    at = 0
    while at < len(content):
        tag, at = _read_varint(content, at)
        if tag & 7 == 0:
            value, at = _read_varint(content, at)
            yield tag >> 3, value
            continue
        sizes = {1: 8, 5: 4}
        if tag & 7 == 2:
            size, at = _read_varint(content, at)
        elif (size := sizes.get(tag & 7, -1)) < 0:
            raise Unreadable("is not an ONNX file, or is damaged")
        if at + size > len(content):
            raise Unreadable("is not an ONNX file, or is damaged: it ends too early")
        yield tag >> 3, content[at : at + size]
        at += size


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """Returns a number of up to 64 bits, and where it ends."""
    value = 0
    for place, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value & (2**64 - 1), at + place + 1
    raise Unreadable("is not an ONNX file, or is damaged: it has a number without an end")


def _read_numbers(part: Field) -> Iterator[int]:
    """Returns the numbers of a list, which may be packed into one field."""
    if isinstance(part.value, int):
        yield part.value
        return
    at = 0
    while at < len(part.value):
        value, at = _read_varint(part.value, at)
        yield value


def _count_values(part: Field) -> int:
    """Returns how many numbers a field of a tensor holds."""
    if isinstance(part.value, int):
        return 1
    if width := WIDTHS[part.name]:
        return len(part.value) // width
    return int(np.count_nonzero(np.frombuffer(part.value, np.uint8) < 128))  # the last byte of each
