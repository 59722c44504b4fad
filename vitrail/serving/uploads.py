"""Parsing of image files from request bodies, in memory: multipart, raw or JSON."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from vitrail.serving.refusals import Refused
from vitrail.untrusted import json_documents

MAX_NAME = 255  # maximum length of a file name; longer ones are truncated
MAX_PARTS = 64  # maximum number of parts of a multipart body, including fields without a file
MAX_COMMAS = 4096  # maximum number of commas in JSON with images; base64 contains none
FORMS = "send multipart/form-data, an image/* body, or JSON with 'image' or 'images' in base64"


class Upload(NamedTuple):
    """One image file and its name, if given."""

    name: str | None
    content: bytes


def parse_uploads(body: bytes, content_type: str, *, most: int) -> list[Upload]:
    """Returns the image files of a body, in order, at most ``most``.

    Raises `Refused` for an unsupported media type, a malformed body, no image, or too many images.
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


def _parse_multipart(body: bytes, boundary: bytes, most: int) -> list[Upload]:
    uploads: list[Upload] = []
    parts: list[Field | File] = []
    ends: list[bool] = []

    def add(part: Any) -> None:
        parts.append(part)
        if len(parts) > MAX_PARTS:
            raise Refused("too_large", f"more than {MAX_PARTS} parts in one request", "send fewer at a time")
        if isinstance(part, File):
            part.file_object.seek(0)
            name = (part.file_name or b"").decode("utf-8", "replace")[:MAX_NAME]
            uploads.append(Upload(name, part.file_object.read()))
        if len(uploads) > most:
            raise Refused("too_large", f"more than {most} images in one request", "send fewer at a time")

    in_memory = {"MAX_MEMORY_FILE_SIZE": float("inf")}
    try:
        parser = FormParser("multipart/form-data", add, add, lambda: ends.append(True), boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Refused("bad_request", "the multipart body is malformed", FORMS) from error
    if not ends:
        raise Refused("bad_request", "the multipart body ends before its last boundary", FORMS)
    return uploads


def _parse_json_uploads(body: bytes) -> list[Upload]:
    content = parse_json(body, most=MAX_COMMAS)
    images = content.get("images", [content["image"]] if "image" in content else [])
    if not isinstance(images, list):
        raise Refused("bad_request", "'images' is not a list", FORMS)
    uploads = []
    for image in images:
        name, data = (image.get("name"), image.get("data")) if isinstance(image, dict) else (None, image)
        if not (name is None or isinstance(name, str)) or not isinstance(data, str):
            raise Refused("bad_request", "an image in JSON is neither base64 nor {'name', 'data'}", FORMS)
        uploads.append(Upload(name[:MAX_NAME] if name else None, decode_base64(data)))
    return uploads


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


def decode_base64(text: str) -> bytes:
    """Decodes base64. Raises `Refused` if it is invalid."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        remedy = "encode the bytes of the file, without a 'data:' prefix"
        raise Refused("bad_request", "an image is not valid base64", remedy) from error
