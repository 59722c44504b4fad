"""Parsing of image files from request bodies, in memory: multipart, raw or JSON."""

from __future__ import annotations

import binascii
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vitrail.serving.refusals import Refused
from vitrail.untrusted import json_documents

MOST_NAME = 255  # maximum length of a file name; longer ones are truncated
MOST_PARTS = 64  # maximum number of parts of a multipart body, including fields without a file
MOST_COMMAS = 4096  # maximum number of commas in JSON with images; base64 contains none
FORMS = "send multipart/form-data, an image/* body, or JSON with 'image' or 'images' in base64"


@dataclass(frozen=True)
class Upload:
    """One image file and its name, if given."""

    name: str | None
    content: bytes


def parse_uploads(body: bytes, content_type: str, *, most: int) -> list[Upload]:
    """Returns the image files of a body, in order.

    Args:
        most: maximum number of images.

    Raises:
        Refused: an unsupported media type, a malformed body, no image, or too many images.
    """
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        uploads = _parse_multipart(body, options.get(b"boundary", b""), most)
    elif kind.startswith(b"image/") or kind == b"application/octet-stream":
        uploads = [Upload(None, body)] if body else []
    elif kind == b"application/json":
        uploads = _parse_json_uploads(body)
    else:
        kind = content_type[:80] or "nothing"
        raise Refused("unsupported_media_type", f"the content type is {kind!r}", FORMS)
    if not uploads:
        raise Refused("bad_request", "there is no image in the request", FORMS)
    if len(uploads) > most:
        raise Refused("too_large", f"{len(uploads)} images in one request", f"send at most {most} at a time")
    return uploads


@dataclass
class _MultipartHandler:
    """Callbacks of the multipart parser. Parts without a file name are discarded."""

    most: int
    uploads: list[Upload] = field(default_factory=list)
    count: int = 0
    whole: bool = False
    _field: bytes = b""
    _value: bytes = b""
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _content: list[bytes] = field(default_factory=list)
    _name: str | None = None

    def on_part_begin(self) -> None:
        self.count += 1
        if self.count > MOST_PARTS:
            raise Refused("too_large", f"more than {MOST_PARTS} parts in one request", "send fewer at a time")
        self._headers, self._content, self._name = {}, [], None

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def on_headers_finished(self) -> None:
        disposition, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if disposition == b"form-data" and b"filename" in options:
            self._name = options[b"filename"].decode("utf-8", "replace")[:MOST_NAME]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is not None:
            self._content.append(data[start:end])

    def on_part_end(self) -> None:
        if self._name is None:
            return
        self.uploads.append(Upload(self._name, b"".join(self._content)))
        if len(self.uploads) > self.most:
            raise Refused("too_large", f"more than {self.most} images in one request", "send fewer at a time")

    def on_end(self) -> None:
        self.whole = True


def _parse_multipart(body: bytes, boundary: bytes, most: int) -> list[Upload]:
    parts = _MultipartHandler(most)
    names = [name for name in dir(parts) if name.startswith("on_")]
    try:
        parser = MultipartParser(boundary, {name: getattr(parts, name) for name in names})  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Refused("bad_request", "the multipart body is malformed", FORMS) from error
    if not parts.whole:
        raise Refused("bad_request", "the multipart body ends before its last boundary", FORMS)
    return parts.uploads


def _parse_json_uploads(body: bytes) -> list[Upload]:
    content = parse_json(body, most=MOST_COMMAS)
    images = content.get("images", [content["image"]] if "image" in content else [])
    if not isinstance(images, list):
        raise Refused("bad_request", "'images' is not a list", FORMS)
    return [_parse_json_upload(image) for image in images]


def parse_json(body: bytes, *, most: int) -> dict[str, Any]:
    """Returns the object of a JSON body. Raises `Refused` for anything else, and for more than ``most`` commas.

    The number of values is limited because the parser holds the GIL, and needs about 60 bytes of memory for a value of
    two bytes.
    """
    if body.count(b",") > most:
        raise Refused("too_large", f"the JSON has over {most:,} values", "send fewer at a time")
    try:
        content = json_documents.parse_json(body)
    except ValueError as error:
        raise Refused("bad_request", "the body is not JSON in UTF-8 with valid Unicode strings", FORMS) from error
    if not isinstance(content, dict):
        raise Refused("bad_request", "the body is not a JSON object", FORMS)
    return content


def _parse_json_upload(image: Any) -> Upload:
    name, data = (image.get("name"), image.get("data")) if isinstance(image, dict) else (None, image)
    if not (name is None or isinstance(name, str)) or not isinstance(data, str):
        raise Refused("bad_request", "an image in JSON is neither base64 nor {'name', 'data'}", FORMS)
    return Upload(name[:MOST_NAME] if name else None, decode_base64(data))


def decode_base64(text: str) -> bytes:
    """Decodes base64. Raises `Refused` if it is invalid."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(
            "bad_request", "an image is not valid base64", "encode the bytes of the file, without a 'data:' prefix"
        ) from error
