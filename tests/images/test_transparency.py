"""Pictures laid on white, a strip at a time."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.images import decode


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_large_picture_is_laid_on_white_strip_by_strip_as_if_at_once(mode, monkeypatch):
    values = np.random.default_rng(0).integers(0, 256, (37, 23, 4), dtype=np.uint8)
    image = Image.fromarray(values).convert("RGBA").convert(mode)
    if mode == "P":
        image.info["transparency"] = bytes(range(256))
    seen = image.convert("RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    monkeypatch.setattr(decode, "ROWS", 100)
    assert np.array_equal(np.asarray(decode.composite_on_white(image)), np.asarray(whole))
