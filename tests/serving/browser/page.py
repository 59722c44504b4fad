"""What tests of the page in a browser share: a model with names that attack, pictures, and what is done on the page."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.serving.loaded_model import LoadedModel

CHROMIUM = Path("/usr/bin/chromium")
BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}"),
    # threads of the server and of the browser's driver may outlive a test by a moment
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ATTACK = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
CLASSES = ["tabby", "crane", ATTACK, *(f"class {number}" for number in range(8))]
CARD = f"# A card\n\nIt *says* `code` and **{ATTACK}**.\n\n| figure | value |\n| --- | ---: |\n| {ATTACK} | 1 |\n\n- {ATTACK}\n"
TOKEN = "sesame-sesame-sesame"
PATIENCE = 120_000  # milliseconds until what does not come, on a busy machine, fails a test
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def model(**changes) -> LoadedModel:
    """A small model with numbers in every tensor."""
    torch.manual_seed(7)
    if "name" not in changes:
        small = {"image_size": 64, "classes": CLASSES, "depth": 3, "width": 48, "heads": 3, "mlp_width": 64}
        changes = {"name": "vit-ti16", **small, **changes}
    classifier = vitrail.create_model(**changes)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    about = {"source": "small.safetensors", "metrics": {"top1": 0.75, "nll": 1.25}, "card": CARD, "parity": None}
    return LoadedModel(classifier.eval(), "small", about=about)


def photograph(height: int = 90, width: int = 120, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def file(name: str = "cat.png", **how) -> dict:
    return {"name": name, "mimeType": "image/png", "buffer": photograph(**how)}


def expect(thing: Any) -> Any:
    """Playwright's own, which waits until what follows is so; importing it takes a second."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    return expect(thing)


def settle(page) -> None:
    """Waits until all that was changed is drawn: the page draws in the next frame."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")


def wait_for(page, expression: str) -> None:
    """Waits until a JavaScript expression is true.

    `page.wait_for_function` asks again from inside the page, where the content security policy of the page refuses to evaluate.
    """
    wait_until(page, lambda: page.evaluate(expression), expression)


def wait_until(page, holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < until, f"not so after {PATIENCE / 1000} s: {what}"
        page.wait_for_timeout(20)


def give(page, *files: dict, place: str = "#invitation") -> None:
    page.locator(f"{place} input[type=file]").first.set_input_files(list(files))


def see(page, *files: dict) -> None:
    """Gives pictures and waits until their attention is shown."""
    give(page, *files)
    page.locator(".scale").nth(len(files) - 1).wait_for()


def says(page) -> str:
    return page.locator(".says").first.inner_text()


def pixels(page) -> str:
    return page.evaluate("document.querySelector('.pane canvas').toDataURL()")


def picture_of(url: str) -> np.ndarray:
    """A data URL as int32 (H, W, 3)."""
    return decoded(base64.b64decode(url.partition(",")[2]))


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), np.int32)
