"""Request bodies, errors and examples of the OpenAPI document that cannot be derived from types."""

from __future__ import annotations

from typing import Any

from vitrail.serving.refusals import STATUS
from vitrail.serving.schemas import Error

# a PNG of one grey pixel
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
IMAGE_ERRORS = ("bad_request", "unauthorised", "forbidden", "not_found", "too_slow", "too_large")
IMAGE_ERRORS += ("unsupported_media_type", "bad_image", "internal", "queue_full", "deadline")
MODEL_ERRORS = ("unauthorised", "forbidden", "not_found", "invalid")


def errors(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Returns the documented error responses of a route, given its error codes."""
    replies: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        entry = replies.setdefault(STATUS[code], {"model": Error, "description": code})
        if code not in entry["description"]:
            entry["description"] += f", {code}"
        if STATUS[code] == 503:
            entry["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return replies


def image_body(*, several: bool = True) -> dict[str, Any]:
    """Returns the documentation of a body with images: multipart, raw or JSON."""
    binary, base64 = {"type": "string", "format": "binary"}, {"type": "string", "format": "byte"}
    named = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "data": base64},
        "required": ["data"],
        "additionalProperties": False,
    }
    image = {"oneOf": [base64, named]}
    one = {"type": "object", "properties": {"image": image}, "required": ["image"]}
    many: dict[str, Any] = {
        "type": "object",
        "properties": {"images": {"type": "array", "items": image, "minItems": 1}},
    }
    many["required"] = ["images"]
    form = {"type": "array", "items": binary} if several else binary
    examples: dict[str, Any] = {"one image": {"value": {"image": PIXEL}}}
    if several:
        examples["multiple, with names"] = {"value": {"images": [{"name": "grey.png", "data": PIXEL}, PIXEL]}}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {"type": "object", "properties": {"file": form}, "required": ["file"]}
                },
                "image/*": {"schema": binary},
                "application/json": {"schema": {"oneOf": [one, many]} if several else one, "examples": examples},
            },
        }
    }
