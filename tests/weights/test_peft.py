"""Adapters in peft's files: added to the weights of their base, written by a run, or refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.models.conftest import shaken
from tests.models.theirs import build, saved
from tests.training.test_lora import CONFIG, HOW
from vitrail.errors import CheckpointError
from vitrail.models import create_backbone
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights import load
from vitrail.weights.folders import PEFT, PEFT_CONFIG
from vitrail.weights.peft import find_weight

RANK, ALPHA = 3, 5.0
# a layer of a ViT as peft names it with transformers 5, and before; its name in files; the size of its output
LAYERS = {
    "vit.layers.1.attention.q_proj": ("vit.encoder.layer.1.attention.attention.query", 16),
    "vit.layers.2.attention.o_proj": ("vit.encoder.layer.2.attention.output.dense", 16),
    "vit.layers.0.mlp.fc1": ("vit.encoder.layer.0.intermediate.dense", 24),
    "vit.layers.2.mlp.fc2": ("vit.encoder.layer.2.output.dense", 16),
}


def silent(line: str) -> None:
    """Takes what `load` says."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def write_adapter(folder: Path, base: str, tensors: dict[str, torch.Tensor], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    described = {
        "peft_type": "LORA",
        "target_modules": [],
        "r": RANK,
        "lora_alpha": ALPHA,
        "base_model_name_or_path": base,
    }
    (folder / PEFT_CONFIG).write_text(json.dumps({**described, **changes}))
    save_file({f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, folder / PEFT)
    return folder


@pytest.mark.parametrize("names", ["now", "before"])
@pytest.mark.parametrize("root", [False, True], ids=["rank", "root"])
def test_updates_are_added_to_the_weights_of_their_base(tmp_path, names, root):
    base = saved(build("vit"), tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    expected, adapter = dict(tensors), {"classifier.weight": draw(2, 16), "classifier.bias": draw(2)}
    for seed, (now, (before, outputs)) in enumerate(LAYERS.items()):
        name = now if names == "now" else before
        a, b = draw(RANK, tensors[f"{before}.weight"].shape[1], seed=seed), draw(outputs, RANK, seed=9 + seed)
        adapter |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
        alpha = 7.0 if "fc1" in now else ALPHA
        expected[f"{before}.weight"] = tensors[f"{before}.weight"] + alpha / (RANK**0.5 if root else RANK) * (b @ a)
    pattern = {"mlp.fc1" if names == "now" else "intermediate.dense": 7.0}
    how = {"modules_to_save": ["classifier"], "use_rslora": root, "alpha_pattern": pattern}
    folder = write_adapter(tmp_path / "adapter", str(base), adapter, **how)
    expected |= {name: adapter[name] for name in ("classifier.weight", "classifier.bias")}
    lines: list[str] = []
    model = load(folder, log=lines.append)
    assert f"adapter: 4 layers of {base} adapted" in " ".join(lines)
    save_file(expected, base / "model.safetensors", {"format": "pt"})
    merged = load(base, log=silent)
    ours, theirs = model.backbone.state_dict(), merged.backbone.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-6, rtol=1e-5)
    assert ours["head.weight"].shape == (2, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "adapter of the kind 'LOHA'"),
        ({"lora_alpha": "x"}, "an alpha that is no number"),
        ({"lora_alpha": float("inf")}, "an alpha that is no number"),
        ({"alpha_pattern": {"q_proj": None}}, "an alpha that is no number"),
        ({"alpha_pattern": ["q_proj"]}, "an alpha that is no number"),
        ({"modules_to_save": 3}, "modules_to_save that is no list"),
        ({"use_dora": True}, "sets use_dora"),
        ({"fan_in_fan_out": True}, "sets fan_in_fan_out"),
        ({"base_model_name_or_path": None}, "has no base_model_name_or_path"),
        ({"modules_to_save": None}, r"has the tensor base_model\.model\.classifier\.\w+, which is not of a LoRA"),
    ],
)
def test_other_adapters_are_refused(tmp_path, changes, message):
    base = saved(build("vit"), tmp_path / "base")
    name = next(iter(LAYERS))
    tensors = {f"{name}.lora_A.weight": draw(RANK, 16), f"{name}.lora_B.weight": draw(16, RANK)}
    tensors |= {"classifier.weight": draw(2, 16), "classifier.bias": draw(2)}
    folder = write_adapter(tmp_path / "adapter", str(base), tensors, **{"modules_to_save": ["classifier"], **changes})
    with pytest.raises(CheckpointError, match=message):
        load(folder, log=silent)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"vit.layers.9.mlp.fc1": ((RANK, 16), (24, RANK))},
            r"adapts vit\.layers\.9\.mlp\.fc1 of shape .* has no such layer",
        ),
        ({"vit.layers.1.mlp.fc1": ((RANK, 16), (16, RANK))}, r"fc1 of shape \(16, 16\), and .* of shape \(24, 16\)"),
        ({"vit.layers.1.mlp.fc1": ((RANK, 16), (24, 2))}, r"lora_A of shape \(3, 16\) and lora_B of shape \(24, 2\)"),
        ({"vit.layers.1.mlp.fc1": ((RANK, 16), None)}, r"lora_B of shape None"),
        ({"vit.layers.1.mlp.fc1": ((0, 16), (24, 0))}, r"lora_A of shape \(0, 16\)"),
        ({"vit.embeddings.projection": ((RANK, 3, 8, 8), (16, RANK, 1, 1))}, "adapters of dense layers are read"),
    ],
)
def test_layers_that_do_not_fit_are_named(tmp_path, tensors, message):
    base = saved(build("vit"), tmp_path / "base")
    named = {
        f"{module}.lora_{side}.weight": draw(*shape)
        for module, shapes in tensors.items()
        for side, shape in zip("AB", shapes)
        if shape is not None
    }
    with pytest.raises(CheckpointError, match=message):
        load(write_adapter(tmp_path / "adapter", str(base), named), log=silent)


def test_a_small_file_cannot_ask_for_a_large_product(tmp_path):
    """Its factors give 40 GB; they are compared with the weight first."""
    base = saved(build("vit"), tmp_path / "base")
    name = "vit.layers.1.mlp.fc1"
    tensors = {f"{name}.lora_A.weight": torch.zeros(1, 100_000), f"{name}.lora_B.weight": torch.zeros(100_000, 1)}
    with pytest.raises(CheckpointError, match="of shape"):
        load(write_adapter(tmp_path / "adapter", str(base), tensors), log=silent)


def test_the_base_is_neither_vitrails_own_nor_an_adapter(tmp_path):
    model = create_classifier(CONFIG, classes=[str(label) for label in range(10)])
    vitrail.save(model, tmp_path / "own")
    for base in (tmp_path / "own", write_adapter(tmp_path / "adapter", str(tmp_path / "own"), {})):
        with pytest.raises(CheckpointError, match="not in the layout of transformers or timm"):
            load(write_adapter(tmp_path / "other", str(base), {}), log=silent)


def test_names_of_bases_without_a_head_are_found():
    tensors = {"encoder.layer.0.attention.attention.key.weight": draw(4, 4), "layer.1.mlp.up_proj.weight": draw(4, 4)}
    assert find_weight("vit.layers.0.attention.k_proj", tensors) == "encoder.layer.0.attention.attention.key.weight"
    assert find_weight("model.layer.1.mlp.up_proj", tensors) == "layer.1.mlp.up_proj.weight"
    assert find_weight("vit.layers.0.attention.v_proj", tensors) is None


def timm_base(path: Path) -> Path:
    """A file without a config, of a width from which the number of heads follows."""
    backbone = create_backbone(replace(CONFIG, width=192, depth=1, heads=3, mlp_width=768))
    shaken(backbone)
    save_file({name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("slices", ["qkv", *(pytest.param(part, marks=pytest.mark.slow) for part in ("qv", "k"))])
@pytest.mark.parametrize("layout", ["timm", "transformers"])
def test_the_adapter_of_a_run_gives_its_model_again(tmp_path, layout, slices):
    if layout == "timm":
        base: Path = timm_base(tmp_path / "base.safetensors")
    else:
        base = saved(build("vit", image_size=8, patch_size=4, num_channels=1), tmp_path / "b@se")
    how = {**HOW, "set": [*HOW["set"], f"model.adapters.slices={slices}"], "lr": 0.05}
    run = vitrail.train("digits", init=base, steps=3, out=tmp_path / "run", **how)
    adapter, model = load(tmp_path / "run" / "adapter", log=silent), run.load()
    assert adapter.backbone.config.classes == model.backbone.config.classes == 10
    for name, tensor in model.backbone.state_dict().items():
        torch.testing.assert_close(adapter.backbone.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)
    described = json.loads((tmp_path / "run" / "adapter" / PEFT_CONFIG).read_text())
    fused = len(slices) if layout == "timm" else 1
    assert described["rank_pattern"] == {name: 2 * fused for name in described["rank_pattern"]}
    assert described["lora_alpha"] / described["r"] == 16 / 2


def test_models_without_names_in_peft_have_no_adapter_folder(tmp_path):
    how = {**HOW, "set": [*HOW["set"], "model.changes.pool=gap"]}
    base = saved(build("bare dinov2", image_size=8, patch_size=4, num_channels=1), tmp_path / "base")
    run = vitrail.train("digits", init=base, steps=2, out=tmp_path / "run", **how)
    assert run.load() and not (tmp_path / "run" / "adapter").exists()
