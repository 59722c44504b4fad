"""What `vitrail convert` writes, opened by timm itself from the disk: equal logits, and the same pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform, resolve_data_config

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import MODELS, sketch
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.verbs.convert import convert
from vitrail.weights import load
from vitrail.weights.native import save_model
from vitrail.weights.timm import family_of, read_timm

pytestmark = pytest.mark.peers
SMALL: dict[str, Any] = {"image_size": 48, "patch_size": 8, "width": 192, "depth": 2, "heads": 3, "mlp_width": 401}
KINDS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "exact GELU": {"gelu": "exact"},
    "mean": {"pool": "gap", "prefix": ()},
    "mean beside a class token": {"pool": "gap"},
    "mean, then the norm": {"pool": "gap", "pool_norm": True},
    "attention pooling": {"pool": "map", "prefix": ()},
    "attention pooling of all tokens": {"pool": "map", "registers": 1},
    "two heads": {"prefix": ("cls", "dist")},
    "registers": {"registers": 3},
    "registers, positions on patches": {"registers": 3, "prefix_positions": False},
    "registers alone": {"registers": 2, "prefix": (), "pool": "gap"},
    "DeiT III": {"layer_scale": 0.1, "prefix_positions": False, "gelu": "exact"},
    "no biases of q, k, v": {"qkv_bias": False},
    "other heads": {"heads": 6},
    "one channel": {"in_channels": 1},
    "five channels": {"in_channels": 5},
    "no square": {"image_size": (32, 48), "patch_size": (8, 16)},
}


TIMMS = {"standardise": "timm", "group_norm_eps": 1e-5}
HYBRID = {"image_size": 64, "width": 192, "depth": 2, "heads": 3, "mlp_width": 401, "gelu": "exact", **TIMMS}
UNTUNED = {"relative_bias": "shared", "pool": "cls", "positions": True}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Swin": ("swin-t", {"image_size": 64, "width": 12, "depths": (2, 1, 2), "heads": (1, 2, 4), "window": 4}),
    "Swin on an oblong": (
        "swin-t",
        {"image_size": (64, 128), "width": 12, "depths": (2, 2, 1), "heads": (1, 2, 4), "window": 4},
    ),
    "Swin without biases": (
        "swin-b-384",
        {"image_size": 96, "width": 16, "depths": (2,), "heads": (4,), "window": 12, "qkv_bias": False},
    ),
    "CaiT": ("cait-xxs24", {"image_size": 48, "patch_size": 8, "depth": 2, "class_depth": 1, "mlp_width": 401}),
    "CaiT on an oblong": ("cait-s36", {"image_size": (32, 48), "patch_size": 16, "depth": 3, "in_channels": 1}),
    "PVT v2": ("pvt-v2-b0", {"image_size": (64, 96), "depths": (1, 2, 1, 1), "in_channels": 5}),
    "linear PVT v2": ("pvt-v2-b2-li", {"image_size": 64, "widths": (8, 16, 40, 64), "depths": (1, 1, 1, 1)}),
    "BEiT": ("beit-b16", {"image_size": 48, "width": 192, "depth": 2, "heads": 3, "mlp_width": 401}),
    "BEiT before fine-tuning": (
        "beit-l16",
        {"image_size": (32, 48), "width": 128, "depth": 2, "heads": 4, **UNTUNED},
    ),
    "BiT": ("bit-r50x1", {"image_size": 64, "depths": (3,), **TIMMS}),
    "BiT of other widths than timm's on an odd map": (
        "bit-r152x2",
        {"image_size": (66, 53), "depths": (3, 8), "width_factor": 1, "in_channels": 1, **TIMMS},
    ),
    "the root of a hybrid": ("r-vit-ti16", HYBRID),
    "the root of a hybrid, on an oblong": (
        "r-vit-ti16",
        {**HYBRID, "image_size": (32, 48), "patch_size": (8, 16), "heads": 6, "in_channels": 5},
    ),
    "a hybrid of four stages": ("r26-vit-s32", {**HYBRID, "prefix": (), "pool": "gap"}),
    "a hybrid of three stages": ("r50-vit-b16", {**HYBRID, "image_size": (32, 64), "gelu": "tanh", "registers": 2}),
}


def a_model(name: str = "vit-ti16", small: dict[str, Any] = SMALL, **changes: Any) -> Classifier:
    model = create_classifier(name, classes=["ant", "bee", "cat"], **{**small, **changes})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.08 if parameter.ndim == 2 else 0.3))
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_timm_makes_the_same_model_of_the_folder(kind, tmp_path: Path):
    model = a_model(**KINDS[kind])
    folder = convert(save_model(tmp_path / "source", model), tmp_path / "timm", "timm").path
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(
        2, model.config.in_channels, *model.config.image_size, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(theirs(images), model(images), atol=1e-5, rtol=1e-5)
    assert list(theirs.pretrained_cfg["label_names"]) == ["ant", "bee", "cat"]
    state = load_file(folder / "model.safetensors")
    assert state.keys() == theirs.state_dict().keys()


@pytest.mark.parametrize("kind", OTHERS)
def test_timm_makes_the_same_model_of_every_architecture_that_it_has(kind, tmp_path: Path):
    name, changes = OTHERS[kind]
    model = a_model(name, small={}, **changes)
    folder = convert(save_model(tmp_path / "source", model), tmp_path / "timm", "timm").path
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(
        2, model.config.in_channels, *model.config.image_size, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(theirs(images), model(images), atol=1e-5, rtol=1e-5)
    timm.models.save_for_hf(theirs, tmp_path / "again", safe_serialization=True)
    again = load(tmp_path / "again", log=lambda line: None)
    assert torch.equal(again(images), model(images))
    assert again.classes == model.classes
    assert again.config.image_size == model.config.image_size


def empty(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors of the names and shapes of a model's, which take no memory."""
    return {name: torch.zeros(()).expand(tensor.shape) for name, tensor in model.state_dict().items()}


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


NAMED = ("swin_tiny_patch4_window7_224", "cait_xxs24_224", "pvt_v2_b0", "pvt_v2_b2_li", "beit_base_patch16_224",
         "beitv2_base_patch16_224")  # fmt: skip


def test_models_read_from_timm_keep_the_name_of_timm():
    for name in NAMED:
        with torch.device("meta"):
            theirs = timm.create_model(name)
        described = {"architecture": name, "pretrained_cfg": {"input_size": list(theirs.pretrained_cfg["input_size"])}}
        held = read_timm(empty(theirs), described, Path(name))
        named = family_of(held.config).architecture(held.config)
        assert named.split("_")[:2] == name.replace("beitv2", "beit").split("_")[:2]
        block = next(each for each in theirs.modules() if hasattr(each, "norm1") and hasattr(each, "attn"))
        assert held.config.norm_eps == block.norm1.eps, name


RESNETS = {  # ours: timm's
    **{f"bit-r{size}": f"resnetv2_{size}_bit" for size in ("50x1", "101x3", "152x4")},
    "r-vit-ti16": "vit_tiny_r_s16_p8_384",
    "r26-vit-s32": "vit_small_r26_s32_224",
    "r50-vit-b16": "vit_base_r50_s16_384",
    "r50-vit-l32": "vit_large_r50_s32_224",
}


def test_timms_own_resnets_and_hybrids_are_read_as_ours_with_its_numerics():
    for ours, name in RESNETS.items():
        with torch.device("meta"):
            theirs = timm.create_model(name)
        size = list(theirs.pretrained_cfg["input_size"])
        held = read_timm(empty(theirs), {"architecture": name, "pretrained_cfg": {"input_size": size}}, Path(name))
        numerics = {} if "bit" in ours else {"gelu": "exact", "position_resize": "bicubic-antialias"}
        assert held.config == replace(MODELS[ours], image_size=tuple(size[1:]), **TIMMS, **numerics)
        assert shapes_of(sketch(held.config).state_dict()) == shapes_of(held.tensors), ours
        eps = {type(each).__name__: each.eps for each in theirs.modules() if hasattr(each, "eps")}
        kernels = "StdConv2d" if "bit" in ours else "StdConv2dSame"
        assert eps == {kernels: 1e-8, "GroupNormAct": 1e-5, **({} if "bit" in ours else {"LayerNorm": 1e-6})}, ours
        named = family_of(held.config).architecture(held.config)
        assert named.replace("_384", "_224") == name.replace("_384", "_224")


def test_no_other_resnet_and_stem_of_timms_is_taken_for_one_of_ours():
    names = [name for name in timm.list_models("resnetv2_*") if not name.endswith("_bit")]
    names += [
        name for name in timm.list_models(module="vision_transformer_hybrid") if "_resnet" in name or "mci" in name
    ]
    assert len(names) > 15
    for name in names:
        with torch.device("meta"):
            theirs = timm.create_model(name)
        try:
            held = read_timm(empty(theirs), {"architecture": name}, Path(name))
        except CheckpointError:
            continue
        assert sketch(held.config).state_dict().keys() != held.tensors.keys(), name


@pytest.mark.parametrize("size", [48, (32, 48)])
@pytest.mark.parametrize(
    "changes",
    [{}, {"resize": "short", "resize_to": 55, "interpolation": "bicubic"}, {"resize": "squash", "resize_to": 60}],
)
def test_timm_makes_the_same_pictures_of_files(size, changes, tmp_path: Path):
    model = a_model(image_size=size)
    shape = model.config.image_size
    changes = changes and {**changes, "rounding": "floor" if shape[0] == shape[1] else "round"}
    model.preprocessing = Preprocessing(size=shape, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), **changes)
    folder = convert(save_model(tmp_path / "source", model), tmp_path / "timm", "timm").path
    theirs = timm.create_model(f"local-dir:{folder}")
    transform = create_transform(**resolve_data_config({}, model=theirs))
    noise = torch.rand(3, 70, 101, generator=torch.Generator().manual_seed(1))
    picture = Image.fromarray((noise.permute(1, 2, 0) * 255).byte().numpy())
    torch.testing.assert_close(transform(picture), model.preprocess(picture)[0], atol=1e-6, rtol=1e-6)


def test_a_folder_saved_again_by_timm_is_the_same_model(tmp_path: Path):
    model = a_model(gelu="exact", registers=2, prefix_positions=False)
    folder = convert(save_model(tmp_path / "source", model), tmp_path / "timm", "timm").path
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True)
    timm.models.save_for_hf(theirs, tmp_path / "again", safe_serialization=True)
    again = load(tmp_path / "again", log=lambda line: None)
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(images), model(images))
    assert again.config.registers == 2


def test_the_tensors_alone_load_into_a_model_of_timms(tmp_path: Path):
    model = a_model(mlp_width=768, patch_size=16, depth=12, gelu="exact")
    file = convert(save_model(tmp_path / "source", model), tmp_path / "timm.safetensors", "timm").path
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=48, num_classes=3, checkpoint_path=str(file)).eval()
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(theirs(images), model(images), atol=1e-5, rtol=1e-5)
