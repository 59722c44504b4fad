"""HTML and SVG that are safe by construction: whatever is not already markup is escaped on its way in."""

from __future__ import annotations

import base64
import io
import re
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from vitrail.analysis.pictures import to_rgb

VOID = {"meta", "link", "img", "br"}
UNWRITABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
SHORT_SIDE_OF_A_DRAWING = 64  # pictures up to this size stay lossless, and are shown with hard pixel edges


class Markup(str):
    """Text that is markup already; any other text met by `tag` is escaped."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """One element. Children that are None are left out, and so are attributes that are None.

    In an attribute's name a trailing underscore is dropped and the others become hyphens, so that ``class_`` and
    ``stroke_width`` can be written; names with capitals (``viewBox``) pass as they are.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{words}>" if name in VOID else f"<{name}{words}>{join(*children)}</{name}>")


def safe(words: Any, *, quote: bool = True) -> str:
    """Any value as text that is no markup: escaped, and without characters that no XML or UTF-8 file may hold."""
    return escape(UNWRITABLE.sub("\ufffd", str(words)), quote=quote)


def join(*children: Any) -> Markup:
    """The children one after the other, escaped unless they are markup."""
    return Markup(
        "".join(child if isinstance(child, Markup) else safe(child) for child in children if child is not None)
    )


def data_uri(picture: np.ndarray, most: int = 288) -> str:
    """A uint8 picture (H, W[, C]) inside the page, its sides at most ``most`` pixels: JPEG, or PNG where small."""
    image = Image.fromarray(np.ascontiguousarray(to_rgb(picture)))
    image.thumbnail((most, most), Image.Resampling.LANCZOS)
    return _inside(image, "png" if min(image.size) <= SHORT_SIDE_OF_A_DRAWING else "jpeg")


def exact_uri(picture: np.ndarray) -> str:
    """The same without loss and as large as it is, for pictures whose edges are hard."""
    return _inside(Image.fromarray(np.ascontiguousarray(to_rgb(picture))), "png")


def _inside(image: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
