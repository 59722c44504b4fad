"""Data: from whatever a user has to batches of pictures and targets. Nothing here knows a parameter of a model.

The names below load their modules when they are asked for, so that a run can be described without reading a picture.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.data.check import CheckResult as CheckResult
    from vitrail.data.images import BadImage as BadImage
    from vitrail.data.images import Preprocessing as Preprocessing
    from vitrail.data.images import decode as decode
    from vitrail.data.memory import keep_decoded as keep_decoded
    from vitrail.data.policing import BadImages as BadImages
    from vitrail.data.sources import Item as Item
    from vitrail.data.sources import Source as Source
    from vitrail.data.sources import Splits as Splits
    from vitrail.data.sources import open_data as open_data

MODULES = {
    "BadImage": "images",
    "BadImages": "policing",
    "CheckResult": "check",
    "Item": "sources",
    "Preprocessing": "images",
    "Source": "sources",
    "Splits": "sources",
    "decode": "images",
    "keep_decoded": "memory",
    "open_data": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
