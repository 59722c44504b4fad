"""Files in the layouts of open_clip and Perception Encoder, against transformers' CLIP and timm's Perception Encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from tests.peers.test_weights_timm import shaken
from vitrail.weights import load
from vitrail.weights.names import rename

pytestmark = pytest.mark.peers
State = dict[str, Tensor]
BLOCK = "transformer.resblocks.{}"
OF_TRANSFORMERS = {
    "embeddings.class_embedding": "class_embedding",
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.patch_embedding": "conv1",
    "pre_layrnorm": "ln_pre",
    "encoder.layers.{}.layer_norm1": f"{BLOCK}.ln_1",
    "encoder.layers.{}.self_attn.out_proj": f"{BLOCK}.attn.out_proj",
    "encoder.layers.{}.layer_norm2": f"{BLOCK}.ln_2",
    "encoder.layers.{}.mlp.fc1": f"{BLOCK}.mlp.c_fc",
    "encoder.layers.{}.mlp.fc2": f"{BLOCK}.mlp.c_proj",
    "post_layernorm": "ln_post",
}
OF_TIMM = {
    "cls_token": "class_embedding",
    "pos_embed": "positional_embedding",
    "patch_embed.proj": "conv1",
    "norm_pre": "ln_pre",
    "blocks.{}.norm1": f"{BLOCK}.ln_1",
    "blocks.{}.gamma_1": f"{BLOCK}.ls_1.gamma",
    "blocks.{}.attn.qkv.weight": f"{BLOCK}.attn.in_proj_weight",
    "blocks.{}.attn.qkv.bias": f"{BLOCK}.attn.in_proj_bias",
    "blocks.{}.attn.proj": f"{BLOCK}.attn.out_proj",
    "blocks.{}.norm2": f"{BLOCK}.ln_2",
    "blocks.{}.gamma_2": f"{BLOCK}.ls_2.gamma",
    "blocks.{}.mlp.fc1": f"{BLOCK}.mlp.c_fc",
    "blocks.{}.mlp.fc2": f"{BLOCK}.mlp.c_proj",
    "norm": "ln_post",
    "attn_pool.latent": "attn_pool.probe",
    "attn_pool.proj": "attn_pool.attn.out_proj",
    "attn_pool.norm": "attn_pool.layernorm",
    "attn_pool.mlp.fc1": "attn_pool.mlp.c_fc",
    "attn_pool.mlp.fc2": "attn_pool.mlp.c_proj",
}


def name_transformers(model: nn.Module) -> State:
    state = {name.removeprefix("vision_model."): tensor for name, tensor in model.state_dict().items()}
    projection = state.pop("visual_projection.weight")
    for block in range(2):
        for kind in ("weight", "bias"):
            parts = [state.pop(f"encoder.layers.{block}.self_attn.{part}_proj.{kind}") for part in "qkv"]
            state[f"{BLOCK.format(block)}.attn.in_proj_{kind}"] = torch.cat(parts)
    return {**rename(state, OF_TRANSFORMERS), "proj": projection.T}


def name_timm(model: nn.Module) -> State:
    state = rename(model.state_dict(), OF_TIMM)
    for name in {"class_embedding", "positional_embedding"} & state.keys():
        state[name] = state[name].flatten(0, 1) if name == "positional_embedding" else state[name].flatten()
    if "head.weight" in state:
        state["proj"] = state.pop("head.weight").T
        state.pop("head.bias")
    for kind in ("weight", "bias"):
        if f"attn_pool.q.{kind}" in state:
            parts = [state.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv")]
            state[f"attn_pool.attn.in_proj_{kind}"] = torch.cat(parts)
    return state


def assert_same(state: State, expected: Tensor, images: Tensor, folder: Path, grid: tuple[int, int]) -> None:
    path = folder / "tower.safetensors"
    save_file({f"visual.{name}": tensor.detach().clone().contiguous() for name, tensor in state.items()}, path)
    lines: list[str] = []
    model = load(path, grid=grid, log=lines.append)
    with torch.no_grad():
        error = (model.backbone.features(images) - expected).norm() / expected.norm()
    assert error < 1e-6
    assert not any(line.startswith("unused") for line in lines), lines


def test_clip_in_the_layout_of_open_clip_gives_the_features_of_transformers(tmp_path):
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    config = CLIPVisionConfig(**sizes, image_size=32, patch_size=8, projection_dim=40, hidden_act="gelu")
    theirs = shaken(CLIPVisionModelWithProjection(config))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(images).image_embeds
    state = {name: tensor for name, tensor in name_transformers(theirs).items() if "position_ids" not in name}
    assert_same(state, expected, images, tmp_path, (4, 4))


@pytest.mark.parametrize(
    "name", ["vit_pe_core_tiny_patch16_384", "vit_pe_spatial_tiny_patch16_512", "vit_pe_lang_large_patch14_448"]
)
def test_perception_encoder_at_the_size_of_its_training_gives_the_features_of_timm(name, tmp_path):
    patch = 14 if "14" in name else 16
    changes = {"embed_dim": 192, "num_heads": 3, "img_size": (3 * patch, 5 * patch), "ref_feat_shape": (3, 5)}
    theirs = timm.create_model(name, depth=2, **changes, **({"num_classes": 0} if "core" not in name else {}))
    theirs = shaken(theirs)
    with torch.no_grad():
        for bias in [parameter for each, parameter in theirs.named_parameters() if each == "head.bias"]:
            bias.zero_()
    images = torch.randn(2, 3, 3 * patch, 5 * patch, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(images)
    assert_same(name_timm(theirs), expected, images, tmp_path, (3, 5))
