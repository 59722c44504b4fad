"""Adapters of our runs in peft, and peft's own here: the same outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from tests.models.theirs import build, saved, shaken
from tests.training.test_lora import HOW
from vitrail.models import ViTConfig, create_backbone
from vitrail.weights import load

peft = pytest.importorskip("peft")
# of peft with transformers 5
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")]
SMALL = {"image_size": 8, "patch_size": 4, "num_channels": 1}


def silent(line: str) -> None:
    """Takes what `load` says."""


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(3))


def train(base: Path, out: Path, *settings: str) -> torch.nn.Module:
    how = {**HOW, "set": [*HOW["set"], *settings], "lr": 0.05}
    return vitrail.train("digits", init=base, steps=3, out=out, **how).load().eval()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("vit", ()), ("vit", ("model.adapters.slices=qv", "model.adapters.rslora=true")), ("dinov2", ()), ("deit", ())],
)
def test_transformers_and_peft_compute_what_a_run_saved(tmp_path, kind, settings):
    start = build(kind, **SMALL)
    ours = train(saved(start, tmp_path / "base"), tmp_path / "run", *settings)
    theirs = build(kind, **SMALL, num_labels=10)
    body = {name: tensor for name, tensor in start.state_dict().items() if not name.startswith("classifier")}
    theirs.load_state_dict({**theirs.state_dict(), **body})
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "run" / "adapter").eval()
    with torch.no_grad():
        expected = ours(images())
        torch.testing.assert_close(adapted(images()).logits, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(adapted.merge_and_unload()(images()).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("slices", ["qkv", "qv"])
def test_timm_and_peft_compute_what_a_run_saved(tmp_path, slices):
    timm = pytest.importorskip("timm")
    config = ViTConfig(
        image_size=8, patch_size=4, in_channels=1, width=192, depth=2, heads=3, mlp_width=768, classes=10, norm_eps=1e-6
    )
    backbone = create_backbone(config)
    shaken(backbone)
    tensors = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    save_file(tensors, tmp_path / "base.safetensors")
    ours = train(tmp_path / "base.safetensors", tmp_path / "run", f"model.adapters.slices={slices}")
    size = {
        "img_size": 8,
        "patch_size": 4,
        "embed_dim": 192,
        "depth": 2,
        "num_heads": 3,
        "in_chans": 1,
        "num_classes": 10,
    }
    theirs = timm.models.VisionTransformer(**size)
    theirs.load_state_dict(tensors)
    adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "run" / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(adapted(images()), ours(images()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", ["vit", "dinov2", "deit"])
def test_an_adapter_of_peft_is_read(tmp_path, kind, rslora):
    theirs = build(kind, **SMALL)
    base = tmp_path / "base"
    settings = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules="all-linear", modules_to_save=["classifier"], use_rslora=rslora,
        rank_pattern={"fc1": 2}, alpha_pattern={"o_proj": 9},
    )  # fmt: skip
    adapted = peft.get_peft_model(theirs, settings)
    shaken(adapted)
    adapted.eval()
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    saved(restore_base(adapted, kind), base)
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        expected = adapted(images()).logits
        torch.testing.assert_close(
            load(tmp_path / "adapter", log=silent).eval()(images()), expected, atol=1e-5, rtol=1e-5
        )


def restore_base(adapted: torch.nn.Module, kind: str) -> torch.nn.Module:
    """The base of an adapted model, with the weights that it has there."""
    model = build(kind, **SMALL)
    inside = adapted.base_model.model.state_dict()
    plain = {
        name.replace(".base_layer", "").replace("classifier.original_module", "classifier"): t
        for name, t in inside.items()
    }
    model.load_state_dict({name: tensor for name, tensor in plain.items() if name in model.state_dict()})
    return model
