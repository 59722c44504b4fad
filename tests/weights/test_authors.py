"""ViTs as torchvision, and DINOv2, MAE and Swin as their authors save them, against the forward pass by timm's rules."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.each_row import each_row
from tests.models.conftest import shaken
from tests.weights.test_timm import WIDTH, a_state, forward
from vitrail.errors import CheckpointError
from vitrail.models import configure, create_backbone
from vitrail.weights import load
from vitrail.weights.timm.families import SWIN

TORCHVISION = {
    r"^cls_token$": "class_token",
    r"^patch_embed\.proj": "conv_proj",
    r"^pos_embed$": "encoder.pos_embedding",
    r"^norm\.": "encoder.ln.",
    r"^head\.": "heads.head.",
    r"^blocks\.(\d+)\.norm": r"encoder.layers.encoder_layer_\1.ln_",
    r"^blocks\.(\d+)\.attn\.qkv\.": r"encoder.layers.encoder_layer_\1.self_attention.in_proj_",
    r"^blocks\.(\d+)\.attn\.proj": r"encoder.layers.encoder_layer_\1.self_attention.out_proj",
    r"^blocks\.(\d+)\.mlp\.fc1": r"encoder.layers.encoder_layer_\1.mlp.0",
    r"^blocks\.(\d+)\.mlp\.fc2": r"encoder.layers.encoder_layer_\1.mlp.3",
}
OLDER = {**TORCHVISION, r"mlp\.0\.": "mlp.linear_1.", r"mlp\.3\.": "mlp.linear_2."}
IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
MEAN = "mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]"


def renamed(state: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    for old, new in names.items():
        state = {re.sub(old, new, name): tensor for name, tensor in state.items()}
    return state


@each_row("names", [TORCHVISION, OLDER])
def test_the_vit_of_torchvision_gives_the_same_logits(names, tmp_path):
    save_file(renamed(a_state(), names), tmp_path / "x.safetensors")
    lines: list[str] = []
    model = load(tmp_path / "x.safetensors", log=lines.append)
    torch.testing.assert_close(model(IMAGES), forward(a_state(), IMAGES), atol=1e-4, rtol=1e-4)
    assert model.provenance["layout"] == "torchvision"
    assert (
        f"image size 12x12, a grid of 3x3 patches (--grid states another), {MEAN}, interpolation bilinear" in lines[1]
    )


@each_row("width", [192, 64])
def test_a_hidden_layer_in_the_head_is_read_if_it_is_as_wide_as_the_model(width, tmp_path):
    state = renamed(a_state(), TORCHVISION)
    hidden = {"heads.pre_logits.weight": torch.randn(width, WIDTH) * 0.1, "heads.pre_logits.bias": torch.randn(width)}
    save_file({**state, **hidden, "heads.head.weight": torch.randn(5, width)}, tmp_path / "x.safetensors")
    if width == WIDTH:
        model = load(tmp_path / "x.safetensors", log=lambda line: None)
        assert model.config.pre_logits
        assert torch.equal(model.backbone.state_dict()["head.pre_logits.bias"], hidden["heads.pre_logits.bias"])
        return
    with pytest.raises(CheckpointError, match="has a hidden layer of 64 in its head, and its width is 192"):
        load(tmp_path / "x.safetensors")


def dinov2(registers: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A state dict by DINOv2's names, with a position of the class token, and one by timm's that computes the same."""
    timms = a_state(registers=registers, slots=False, scale=True)
    place = torch.linspace(-0.5, 0.5, WIDTH).expand(1, 1, -1)  # a constant would not pass a LayerNorm
    theirs = {"register_tokens" if name == "reg_token" else name: tensor for name, tensor in timms.items()}
    theirs |= {"cls_token": timms["cls_token"] - place, "pos_embed": torch.cat([place, timms["pos_embed"]], 1)}
    return {**theirs, "mask_token": torch.ones(1, WIDTH)}, timms


@each_row("registers, chunked", [(0, False), (4, False), (4, True)])
def test_dinov2_of_its_authors_gives_the_same_outputs(registers, chunked, tmp_path):
    theirs, timms = dinov2(registers)
    if chunked:
        theirs = {re.sub(r"^blocks\.(\d+)\.", r"blocks.0.\1.", name): tensor for name, tensor in theirs.items()}
    save_file({f"teacher.backbone.{name}": tensor for name, tensor in theirs.items()}, tmp_path / "x.safetensors")
    lines: list[str] = []
    model = load(tmp_path / "x.safetensors", log=lines.append)
    torch.testing.assert_close(model(IMAGES), forward(timms, IMAGES), atol=1e-4, rtol=1e-4)
    assert model.config.registers == registers
    assert lines[-1] == "unused   1 tensors: teacher.backbone.mask_token"
    assert MEAN in lines[-2]


def test_deit_iii_of_its_authors_gives_the_same_outputs(tmp_path):
    timms = a_state(slots=False, scale=True)
    save_file(renamed(timms, {r"\.ls([12])\.gamma$": r".gamma_\1"}), tmp_path / "x.safetensors")
    model = load(tmp_path / "x.safetensors", log=lambda line: None)
    torch.testing.assert_close(model(IMAGES), forward(timms, IMAGES), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_the_encoder_of_a_masked_autoencoder_gives_the_same_outputs(tmp_path):
    state = a_state()
    decoder = {
        f"decoder_{name}": torch.ones(2)
        for name in ("pos_embed", "embed.weight", "blocks.0.attn.qkv.weight", "pred.bias")
    }
    torch.save({"model": {**state, **decoder, "mask_token": torch.ones(2)}, "epoch": 3}, tmp_path / "mae.pth")
    lines: list[str] = []
    model = load(tmp_path / "mae.pth", log=lines.append)
    torch.testing.assert_close(model(IMAGES), forward(state, IMAGES), atol=1e-4, rtol=1e-4)
    assert lines[-1].startswith(
        "unused   5 tensors: model.decoder_blocks.0.attn.qkv.weight, model.decoder_embed.weight"
    )
    assert MEAN in lines[-2]


def test_swin_of_its_authors_gives_the_same_outputs_as_timms(tmp_path):
    config = configure("swin-t", width=8, depths=(2, 1), heads=(1, 2), window=2, image_size=32, classes=3)
    backbone = shaken(create_backbone(config)).eval()
    timms = {name: tensor.contiguous() for name, tensor in SWIN.write(config, backbone.state_dict()).items()}
    theirs = renamed(timms, {r"^head\.fc\.": "head.", r"^layers\.1\.downsample": "layers.0.downsample"})
    buffers = {
        "layers.0.blocks.1.attn_mask": torch.ones(4),
        "layers.1.blocks.0.attn.relative_position_index": torch.ones(4).int(),
    }
    save_file({**theirs, **buffers}, tmp_path / "x.safetensors")
    lines: list[str] = []
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = load(tmp_path / "x.safetensors", image_size=32, log=lines.append)
    torch.testing.assert_close(model(images), backbone(images))
    assert lines[-1] == f"unused   2 tensors: {', '.join(buffers)}"


def test_the_assumed_image_size_of_a_swin_is_reported(tmp_path):
    config = configure("swin-t", width=8, depths=(1,), heads=(1,), window=2, image_size=32, classes=0)
    save_file(
        {
            name: tensor.contiguous()
            for name, tensor in SWIN.write(config, create_backbone(config).state_dict()).items()
        },
        tmp_path / "x.safetensors",
    )
    lines: list[str] = []
    load(tmp_path / "x.safetensors", log=lines.append)
    assert "image size 64x64, mean" in lines[0]
