"""Checksums inside of the files that vitrail writes, so that no damage to them is read as a result.

Each is computed over the rest of its file: JSON documents and safetensors have a field, text has a last line, lines of metrics
a last key, ONNX files a last entry of their metadata. Files without a checksum, of other tools or earlier versions, are read.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

FIELD = "vitrail_sha256"
UNSEALED = "0" * 64  # in the place of a checksum while it is computed
_TEXT = re.compile(r"# sha256 of the lines above: ([0-9a-f]{64})\n")
_LINE = re.compile(rb'(.*), "crc": "([0-9a-f]{8})"}')
# an entry of `metadata_props` in a protobuf ModelProto: field 14, 74 bytes with key (field 1) and value (field 2)
_ONNX = b"\x72\x4a\x0a\x06sha256\x12\x40"
ONNX_BYTES = len(_ONNX) + 64


def sha256_of(content: bytes | memoryview) -> str:
    """Returns the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON document with its checksum as the last field."""
    content = {name: value for name, value in document.items() if name != FIELD}
    return {**content, FIELD: _hash_json(content)}


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a JSON document has its checksum, or none."""
    try:
        return FIELD not in document or document[FIELD] == seal(document)[FIELD]
    except RecursionError:  # nested deeper than anything that was sealed
        return False


def _hash_json(content: Mapping[str, Any]) -> str:
    # one form for equal values, so that whitespace and the order of keys do not matter
    return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def seal_tensors(content: bytes) -> bytes:
    """Puts the checksum into a safetensors file whose metadata has `UNSEALED` as its `FIELD`, and sorts the metadata by key:
    the library writes them in an order that changes.
    """
    end = _header_end(content)
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
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


def seal_text(text: str) -> str:
    """Returns text, such as YAML, with its checksum as a comment on the last line."""
    return f"{text}# sha256 of the lines above: {sha256_of(text.encode())}\n"


def is_text_intact(text: str) -> bool:
    """Whether text has its checksum on the last line, or none."""
    lines = text.splitlines(keepends=True)
    found = _TEXT.fullmatch(lines[-1]) if lines else None
    return found is None or found[1] == sha256_of("".join(lines[:-1]).encode())


def seal_line(record: Mapping[str, float | None]) -> str:
    """Returns a record of numbers as one line of JSON with its CRC-32 as the last key."""
    line = json.dumps(record)
    return f'{line[:-1]}, "crc": "{zlib.crc32(line.encode()):08x}"}}\n'


def parse_line(line: bytes) -> dict[str, Any]:
    """Returns the record of a line without its CRC-32. Raises `ValueError` for a damaged line."""
    found = _LINE.fullmatch(line.removesuffix(b"\n"))
    content = line if found is None else found[1] + b"}"
    if found is not None and zlib.crc32(content) != int(found[2], 16):
        raise ValueError("a line does not match its CRC-32")
    record = parse_unicode_json(content)
    # records are of numbers: a string at the end is a CRC-32 that lost its form
    if not isinstance(record, dict) or isinstance(next(reversed(record.values()), None), str):
        raise ValueError("a line is no record of numbers")
    return record


def parse_unicode_json(content: bytes) -> Any:
    r"""Parses JSON in UTF-8.

    Raises:
        ValueError: for anything else, and for a lone surrogate in a string, as in ``"\ud800"``: JSON can express it, but no
            file name, HTTP reply or database accepts it.
        RecursionError: nested too deeply.
    """
    text = content.decode("utf-8-sig")
    value = json.loads(text)
    if "\\ud" in text.lower():
        check_unicode(value)
    return value


def check_unicode(value: Any) -> None:
    """Raises `ValueError` for a lone surrogate in a string of a document of JSON or YAML."""
    json.dumps(value, ensure_ascii=False, default=str).encode()


def onnx_checksum(digest: str) -> bytes:
    """Returns the entry that ends an ONNX file: the SHA-256 ``digest`` of everything before it, as metadata "sha256"."""
    return _ONNX + digest.encode()


def read_onnx_checksum(end: bytes) -> str | None:
    """Returns the digest in the last `ONNX_BYTES` of an ONNX file; None if they are something else."""
    return end[len(_ONNX) :].decode("ascii", "replace") if len(end) == ONNX_BYTES and end.startswith(_ONNX) else None
