"""Checksums inside of the files that vitrail writes, so that no damage to them is read as a result.

Each is computed over the rest of its file: JSON documents and safetensors have a field, text has a last line, lines of metrics
a last key, rows of CSV a last column, ONNX files a last entry of their metadata, XML files and zip archives a comment. Files
without a checksum, of other tools or earlier versions, are read.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.untrusted.json_documents import parse_json

FIELD = "vitrail_sha256"
UNSEALED = "0" * 64  # in the place of a checksum while it is computed
_TEXT_BEGINS = "# The last line is a checksum.\n"  # without it, text that was cut at the end of a line would pass
_TEXT_ENDS = re.compile(r"# sha256 of the lines above: ([0-9a-f]{64})\n")
_LINE = re.compile(rb'(.*), "crc": "([0-9a-f]{8})"}')


def sha256_of(content: bytes | memoryview) -> str:
    """Returns the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal, without reading it into memory. Raises `OSError`."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_file(path: Path) -> dict[str, Any]:
    """Returns size and SHA-256 of a file, as manifests state them. Raises `OSError`."""
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def add_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON document with its checksum as the last field."""
    content = {name: value for name, value in document.items() if name != FIELD}
    # one form for equal values, so that whitespace and the order of keys do not matter
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, FIELD: sha256_of(text.encode())}


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a JSON document has its checksum, or none."""
    try:
        return FIELD not in document or document[FIELD] == add_checksum(document)[FIELD]
    except RecursionError:  # nested deeper than anything that was checksummed
        return False


def add_checksum_to_tensors(content: bytes) -> bytes:
    """Puts the checksum into a safetensors file whose metadata has `UNSEALED` as its `FIELD`, and sorts the metadata by key."""
    end = _header_end(content)
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # the library's order changes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned to 8 bytes
    head, tensors = len(text).to_bytes(8, "little") + text, memoryview(content)[end:]
    hashed = hashlib.sha256(head)
    hashed.update(tensors)
    return b"".join((head.replace(UNSEALED.encode(), hashed.hexdigest().encode(), 1), tensors))


def are_tensors_intact(content: bytes, checksum: str) -> bool:
    """Whether a safetensors file has the ``checksum`` that stands in its metadata."""
    at = content.find(checksum.encode(), 0, _header_end(content))
    if at < 0 or len(checksum) != 64:
        return False
    hashed = hashlib.sha256(memoryview(content)[:at])
    hashed.update(UNSEALED.encode())
    hashed.update(memoryview(content)[at + 64 :])
    return hashed.hexdigest() == checksum


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def add_checksum_to_text(text: str) -> str:
    """Returns text, such as YAML, with its checksum as a comment on the last line; one on the first line announces it."""
    text = _TEXT_BEGINS + text
    return f"{text}# sha256 of the lines above: {sha256_of(text.encode())}\n"


def is_text_intact(text: str) -> bool:
    """Whether text has its checksum on the last line, or none and does not announce it."""
    lines = text.splitlines(keepends=True)
    found = _TEXT_ENDS.fullmatch(lines[-1]) if lines else None
    if found is None:
        return not text.startswith(_TEXT_BEGINS)
    return found[1] == sha256_of("".join(lines[:-1]).encode())


def add_checksum_to_line(record: Mapping[str, float | None]) -> str:
    """Returns a record of numbers as one line of JSON with its CRC-32 as the last key."""
    line = json.dumps(record)
    return f'{line[:-1]}, "crc": "{crc_of(line.encode())}"}}\n'


def parse_line(line: bytes) -> dict[str, Any]:
    """Returns the record of a line without its CRC-32. Raises `ValueError` for a damaged line."""
    found = _LINE.fullmatch(line.removesuffix(b"\n"))
    content = line if found is None else found[1] + b"}"
    if found is not None and crc_of(content).encode() != found[2]:
        raise ValueError("a line does not match its CRC-32")
    record = parse_json(content)
    # records are of numbers: a string at the end is a CRC-32 that lost its form
    if not isinstance(record, dict) or isinstance(next(reversed(record.values()), None), str):
        raise ValueError("a line is no record of numbers")
    return record


def crc_of(content: bytes) -> str:
    """Returns the CRC-32 in hexadecimal, for a line or a row."""
    return f"{zlib.crc32(content):08x}"


@dataclass(frozen=True)
class Seal:
    """The end of a file with the SHA-256 of everything before it, which other software ignores, between two markers."""

    before: bytes
    after: bytes = b""

    @property
    def length(self) -> int:
        return len(self.before) + 64 + len(self.after)

    def write(self, digest: str) -> bytes:
        """Returns the end of a file whose SHA-256 without it is ``digest``."""
        return self.before + digest.encode() + self.after

    def read(self, end: bytes) -> str | None:
        """Returns the digest in the last `length` bytes of a file; None if they are something else."""
        is_seal = len(end) == self.length and end.startswith(self.before) and end.endswith(self.after)
        return end[len(self.before) :][:64].decode("ascii", "replace") if is_seal else None


# an entry of `metadata_props` in a protobuf ModelProto: field 14, 74 bytes with key (field 1) and value (field 2)
ONNX_SEAL = Seal(b"\x72\x4a\x0a\x06sha256\x12\x40")
XML_SEAL = Seal(b"<!-- sha256 ", b" -->\n")
