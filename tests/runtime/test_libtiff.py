"""What libtiff says of broken files reaches a function once per kind, and nothing reaches stderr."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.images.decode import BadImage, decode
from vitrail.runtime.libtiff import redirect_libtiff

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or "libtiff" not in Path("/proc/self/maps").read_text(), reason="no shared libtiff"
)


def broken(compression: str) -> bytes:
    """A TIFF file with noise in the middle of its pixels."""
    draw, file = np.random.default_rng(0), io.BytesIO()
    mode = "1" if compression == "group4" else "RGB"
    picture = Image.fromarray(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)).convert(mode)
    picture.save(file, "TIFF", compression=compression)
    content = bytearray(file.getvalue())
    content[200:300] = draw.bytes(100)
    return bytes(content)


def decode_all() -> None:
    for compression in ("group4", "tiff_lzw") * 2:
        try:
            decode(broken(compression))
        except BadImage:
            continue


def test_each_kind_of_message_is_passed_on_once_and_stderr_stays_empty(capfd):
    messages: list[str] = []
    with redirect_libtiff(messages.append) as could:
        decode_all()
    assert could
    assert capfd.readouterr().err == ""
    assert 2 <= len(messages) <= 6
    assert any("Fax4Decode: Bad code word at line" in each for each in messages)
    assert any("LZW" in each or "code not yet in table" in each for each in messages)
    assert all(each.isprintable() and "%" not in each for each in messages)
    decode_all()
    assert "Fax4Decode" in capfd.readouterr().err, "the handlers of before are back"
    assert len(messages) <= 6
