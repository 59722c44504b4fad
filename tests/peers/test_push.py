"""What `vitrail push` uploads, opened by the Python of its card: transformers and timm give our logits, labels and pixels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.weights.hub_mirror import serve_mirror
from tests.weights.hub_uploads import serve_uploads, use_hub
from tests.weights.kinds import a_model
from vitrail.data.preprocessing import Preprocessing

pytestmark = [
    pytest.mark.peers,
    # of the HTTP library, at how the hub's client calls it
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
]
SIZE = (32, 32)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
@torch.inference_mode()
def test_the_python_of_the_card_opens_what_was_uploaded(layout, tmp_path, monkeypatch, capsys):
    model = a_model(gelu="exact", image_size=SIZE, position_resize="bicubic")
    values = {"interpolation": "bicubic", "mean": (0.4,) * 3, "std": (0.2,) * 3}
    model.preprocessing = Preprocessing(size=SIZE, resize="squash", **values)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(tmp_path / "photograph.jpg")
    picture = Image.open(tmp_path / "photograph.jpg").convert("RGB")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub").mkdir()
    with serve_uploads(tmp_path / "hub") as uploads:
        use_hub(uploads.address, tmp_path / "cache", monkeypatch)
        vitrail.push(model, "hf:me/bees", layout=layout)
    blocks = re.findall("```python\n(.*?)```", (tmp_path / "hub/me/bees/README.md").read_text(), re.DOTALL)
    with serve_mirror(tmp_path / "hub") as (address, _):
        use_hub(address, tmp_path / "cache", monkeypatch)
        ours, theirs = (run(block) for block in blocks)
    label = model.predict(picture)[0].label
    first, second = capsys.readouterr().out.splitlines()
    assert (f"label={label!r}" in first, second) == (True, label)
    if layout == "timm":
        pixels, logits = theirs["transform"](picture)[None], theirs["outputs"]
        labels = theirs["model"].pretrained_cfg["label_names"]
    else:
        pixels, logits = theirs["processor"](picture, return_tensors="pt")["pixel_values"], theirs["outputs"].logits
        labels = list(theirs["model"].config.id2label.values())
    assert labels == list(model.classes)
    torch.testing.assert_close(logits, model(pixels), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours["model"](pixels), model(pixels), rtol=0, atol=0)
    torch.testing.assert_close(pixels, model.preprocess(picture), rtol=0, atol=0.03)  # a level is 1 / (255 * 0.2)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, "card", "exec"), names)
    return names
