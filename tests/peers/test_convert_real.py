"""A real ViT-Ti through every layout: what we wrote is opened by transformers and by timm, from the disk, and gives the golden
logits of validation images, which `tests/weights/test_timm.py` compares with ours for all 300.
"""

from __future__ import annotations

import csv

import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform, resolve_data_config

from vitrail.verbs.convert import convert
from vitrail.weights import load

pytestmark = [pytest.mark.peers, pytest.mark.slow]
CHAIN = ("native", "google", "native", "huggingface", "native", "timm")


@pytest.fixture(scope="module")
def written(tmp_path_factory, real_data):
    """The folder that each step of the chain wrote, by its number and layout."""
    place, folder = real_data / "vit_tiny_patch16_224.safetensors", tmp_path_factory.mktemp("chain")
    found = {}
    for number, layout in enumerate(CHAIN):
        named = real_data / "imagenet_val" / "classes.txt" if number == 0 else None
        name = f"{number}.npz" if layout == "google" else str(number)
        place = found[number, layout] = convert(place, folder / name, layout, classes=named).path
    return found


@pytest.fixture(scope="module")
def examples(real_data):
    """Every fifth picture, its golden logits, and the names of all classes."""
    folder = real_data / "imagenet_val"
    with open(folder / "labels.csv", encoding="utf-8") as file:
        paths = [folder / row["path"] for row in csv.DictReader(file)][::5]
    golden = load_file(folder / "golden_logits.safetensors")["logits"][::5]
    return [Image.open(path).convert("RGB") for path in paths], golden, (folder / "classes.txt").read_text().split()


def test_no_bit_changes_on_the_way(written):
    first, *others = (load(path).backbone.state_dict() for path in written.values())
    for other in others:
        assert other.keys() == first.keys()
        assert all(torch.equal(other[name], first[name]) for name in first)


@torch.inference_mode()
def test_transformers_gives_the_golden_logits(written, examples):
    path, (pictures, golden, names) = written[3, "huggingface"], examples
    model = transformers.ViTForImageClassification.from_pretrained(path).eval()
    logits = model(load(path).preprocess(pictures)).logits
    torch.testing.assert_close(logits, golden, atol=1e-3, rtol=0)
    assert [model.config.id2label[number] for number in range(1000)] == names
    # its own processor has no words for the half pixel to which timm's crop is rounded, and answers for one as another
    processor = transformers.ViTImageProcessorPil.from_pretrained(path)
    own = model(processor(pictures, return_tensors="pt").pixel_values).logits
    assert (own.argmax(1) == golden.argmax(1)).sum() >= len(pictures) - 1


@torch.inference_mode()
def test_timm_gives_the_golden_logits(written, examples):
    pictures, golden, names = examples
    model = timm.create_model(f"local-dir:{written[5, 'timm']}", pretrained=True).eval()
    transform = create_transform(**resolve_data_config(model=model))
    torch.testing.assert_close(model(torch.stack([*map(transform, pictures)])), golden, atol=1e-3, rtol=0)
    assert list(model.pretrained_cfg["label_names"]) == names
