"""The names of other repositories for networks that timm has: torchvision's ViT, and DINOv2, DeiT III and Swin as their authors
publish them. Their tensors are renamed to timm's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

State = Mapping[str, Tensor]
IMAGENET: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "crop_pct": 224 / 256}

# torchvision's module or parameter -> timm's; the MLP had other names before torchvision 0.12
TORCHVISION = {
    r"class_token": "cls_token",
    r"conv_proj": "patch_embed.proj",
    r"encoder\.pos_embedding": "pos_embed",
    r"encoder\.layers\.encoder_layer_(\d+)\.ln_([12])": r"blocks.\1.norm\2",
    r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(weight|bias)": r"blocks.\1.attn.qkv.\2",
    r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj": r"blocks.\1.attn.proj",
    r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)": r"blocks.\1.mlp.fc1",
    r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)": r"blocks.\1.mlp.fc2",
    r"encoder\.ln": "norm",
    r"heads\.pre_logits": "pre_logits.fc",
    r"heads\.head": "head",
}
TORCHVISION_MARK, DINOV2_MARK, SWIN_MARK = "conv_proj.weight", "register_tokens", "layers.0.downsample.reduction.weight"
OTHER_SCALES = (
    "blocks.0.attn.q_bias",
    "blocks_token_only.0.attn.q.weight",
)  # BEiT and CaiT have DeiT III's names in timm, too
SCALE = re.compile(r"^(blocks\.\d+)\.gamma_([12])$")
CHUNKED = re.compile(r"blocks\.\d+\.(\d+\.(?:norm|attn|mlp|ls))")  # DINOv2's blocks in chunks, as FSDP needs them
# tensors that follow from the shape of a network; timm no longer stores them
BUFFERS = re.compile(r"(.*\.)?(relative_position_index|attn_mask)")
# tensors of a pre-training that timm does not have
PRETRAINING = ("mask_token", "decoder_pos_embed", "decoder_embed.weight")


@dataclass(frozen=True)
class Renamed:
    """Tensors by timm's names.

    Args:
        layout: the name of the layout that they had.
        defaults: the preprocessing of the published models, if it is not timm's default.
        unused: names of tensors that follow from the shape of the network.
    """

    tensors: dict[str, Tensor]
    layout: str = "timm"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def to_timm_names(state: State) -> Renamed:
    """Renames the tensors of torchvision's ViT, and of DINOv2, DeiT III and Swin from their authors. Others are kept."""
    if TORCHVISION_MARK in state:
        return Renamed(_rename_torchvision(state), "torchvision", {**IMAGENET, "interpolation": "bilinear"})
    published = any(name in state for name in (*PRETRAINING, DINOV2_MARK, SWIN_MARK))
    unused = tuple(name for name in state if BUFFERS.fullmatch(name))
    state = {name: tensor for name, tensor in state.items() if not BUFFERS.fullmatch(name)}
    renamed = _rename_unless_taken(state, lambda name: CHUNKED.sub(r"blocks.\1", name))
    if "blocks.0.gamma_1" in renamed and not any(name in renamed for name in OTHER_SCALES):
        renamed = _rename_unless_taken(renamed, lambda name: SCALE.sub(r"\1.ls\2.gamma", name))
    if SWIN_MARK in renamed:
        renamed = _rename_unless_taken(renamed, _rename_swin)
    if DINOV2_MARK in renamed and {"cls_token", "pos_embed"} <= renamed.keys():
        renamed = _move_class_position(renamed)
    return Renamed(renamed, defaults=IMAGENET if published else {}, unused=unused)


def separate_head(state: State) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the tensors of a ViT without a head for features of another width, such as those of several layers, and the
    names of the head's tensors.
    """
    layer, head, bias = (state.get(name) for name in ("patch_embed.proj.weight", "head.weight", "head.bias"))
    if layer is None or layer.ndim != 4 or head is None or bias is None or "blocks.0.attn.qkv.weight" not in state:
        return dict(state), ()
    if head.ndim != 2 or bias.shape != head.shape[:1] or head.shape[1] == len(layer):
        return dict(state), ()
    names = ("head.weight", "head.bias")
    return {name: tensor for name, tensor in state.items() if name not in names}, names


def _rename_torchvision(state: State) -> dict[str, Tensor]:
    patterns = [(re.compile(rf"{theirs}(\.weight|\.bias)?"), timms) for theirs, timms in TORCHVISION.items()]

    def rename(name: str) -> str:
        for pattern, timms in patterns:
            if match := pattern.fullmatch(name):
                return match.expand(timms) + (match[pattern.groups] or "")
        return name

    return _rename_unless_taken(state, rename)


def _rename_swin(name: str) -> str:
    """The authors' layers end with a downsampling, timm's begin with it."""
    name = re.sub(r"^layers\.(\d{1,6})\.downsample", lambda match: f"layers.{int(match[1]) + 1}.downsample", name)
    return re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)


def _move_class_position(state: State) -> dict[str, Tensor]:
    """DINOv2's table has a slot for the class token and none for registers: the slot is added to the token, as by timm."""
    token, table = state["cls_token"], state["pos_embed"]
    moved = {"reg_token" if name == DINOV2_MARK else name: tensor for name, tensor in state.items()}
    if token.ndim == table.ndim == 3 and token.shape[2] == table.shape[2] and table.shape[1] > 1:
        moved |= {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:].contiguous()}
    return moved


def _rename_unless_taken(state: State, rename: Callable[[str], str]) -> dict[str, Tensor]:
    """Renames tensors. A name whose new one is taken is kept, and is then listed as unexpected."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        other = rename(name)
        renamed[name if other in renamed else other] = tensor
    return renamed
