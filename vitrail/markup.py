"""Builds HTML and SVG; everything that is not `Markup` is escaped."""

from __future__ import annotations

import base64
import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

VOID = {"meta", "link", "img", "br"}
UNWRITABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is already markup; `tag` and the templates of pages escape any other text."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Returns one element. Children and attributes that are None are omitted.

    In attribute names, a trailing underscore is removed and other underscores become hyphens (``class_``,
    ``stroke_width``). Case is preserved (``viewBox``).
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{words}>" if name in VOID else f"<{name}{words}>{join(*children)}</{name}>")


def safe(words: Any, *, quote: bool = True) -> str:
    """Returns any value as escaped text, with characters that XML or UTF-8 does not allow replaced."""
    return escape(UNWRITABLE.sub("\ufffd", str(words)), quote=quote)


def join(*children: Any) -> Markup:
    """Concatenates the children; those that are not markup are escaped."""
    return Markup(
        "".join(child if isinstance(child, Markup) else safe(child) for child in children if child is not None)
    )


def image_uri(image: Image, kind: str) -> str:
    """Encodes an image as a data URI, ``kind`` "png" or "jpeg"."""
    return f"data:image/{kind};base64,{base64.b64encode(encode_image(image, kind, quality=85)).decode()}"


def encode_image(image: Image, kind: str, **options: Any) -> bytes:
    """Returns the bytes of an image file; ``options`` are those of `PIL.Image.Image.save`."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
