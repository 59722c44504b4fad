"""Messages of libtiff, which decodes TIFF files for Pillow and writes to stderr past Python.

Pillow has no option for them. libtiff has two functions that replace its handlers, for the whole process.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import PIL.Image  # noqa: F401  # loads libtiff

SETTERS = ("TIFFSetWarningHandler", "TIFFSetErrorHandler")
MAX_BYTES = 300  # of a message
# void handler(const char *module, const char *format, va_list arguments); a va_list is passed on as it comes
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
_LOADED = re.compile(r"/.*/libtiff[^/\n]*$", re.MULTILINE)


@contextmanager
def redirect_libtiff(log: Callable[[str], None]) -> Iterator[bool]:
    """Within the block, passes each kind of message of libtiff to ``log`` once, and writes none to stderr.

    A kind is a format string of libtiff's source: a file with thousands of bad lines makes one message.

    Returns:
        Whether it could: on Linux, where Pillow loads libtiff as a shared library, as its wheels do.
    """
    library = _find_library()
    if library is None:
        yield False
        return
    formatter, known = ctypes.CDLL(None).vsnprintf, set()

    @HANDLER
    def handle(module: bytes | None, kind: bytes, arguments: int | None) -> None:
        if kind not in known:
            known.add(kind)
            text = ctypes.create_string_buffer(MAX_BYTES)
            formatter(text, ctypes.c_size_t(MAX_BYTES), ctypes.c_char_p(kind), ctypes.c_void_p(arguments))
            message = ascii((module or b"") + b": " + text.value)[2:-1]
            log(f"libtiff: {message} (further ones of this kind are not logged)")

    before = {name: _set_handler(library, name, ctypes.cast(handle, ctypes.c_void_p)) for name in SETTERS}
    try:
        yield True
    finally:
        for name, handler in before.items():
            _set_handler(library, name, ctypes.c_void_p(handler))


def _find_library() -> Any:
    """Returns the libtiff that Pillow has loaded, or None."""
    try:
        found = _LOADED.search(Path("/proc/self/maps").read_text())
        library = found and ctypes.CDLL(found[0])
        return library if library and all(hasattr(library, name) for name in SETTERS) else None
    except OSError:
        return None


def _set_handler(library: Any, name: str, handler: ctypes.c_void_p) -> int | None:
    """Returns the previous handler."""
    setter = getattr(library, name)
    setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return setter(handler)
