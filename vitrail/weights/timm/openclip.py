"""open_clip's folders: the image tower, by ``open_clip_config.json`` in the terms of timm's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.text import printable
from vitrail.weights.folders import OPEN_CLIP_CONFIG
from vitrail.weights.layout import Weights
from vitrail.weights.names import rename
from vitrail.weights.tensors import refusing_values
from vitrail.weights.timm import read_timm
from vitrail.weights.timm.authors import OPENAI

FIRST_LAYERS = ("conv1.weight", "patch_embed.proj.weight")
# a tower that timm has, and the projection after it
TRUNK = {"visual.trunk.": "visual.", "visual.head.proj": "visual.projection"}
# open_clip's defaults
VISION: dict[str, Any] = {"image_size": 224, "width": 768, "layers": 12, "patch_size": 16}
VISION |= {"head_width": 64, "mlp_ratio": 4.0}
VISION |= {"pool_type": "tok", "timm_pool": "avg", "timm_proj": "linear", "pos_embed_type": "learnable"}
IMAGES: dict[str, Any] = {**OPENAI, "interpolation": "bicubic", "resize_mode": "shortest"}
# the supported values
CHOICES: dict[str, tuple[Any, ...]] = {
    "pool_type": ("tok", "avg"),
    "timm_pool": ("avg", "token", "map", ""),
    "timm_proj": ("linear", "none", "", None),
    "block_type": ("default", None),
    "interpolation": ("bicubic", "bilinear"),
    "resize_mode": ("shortest", "squash"),
}
# follow from tensors, or have no effect on the features
UNREAD = frozenset({"ls_init_value", "patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads"})
UNREAD |= {"timm_model_pretrained", "timm_drop", "timm_drop_path"}
READ = VISION.keys() | CHOICES.keys() | UNREAD | {"no_ln_pre", "final_ln_after_pool", "timm_model_name"}


def read_open_clip(tensors: Mapping[str, Tensor], stated: Mapping[str, Any], path: Path) -> Weights:
    """Converts the image tower of a folder of open_clip.

    Args:
        tensors: of the tower, without the prefix, after `TRUNK`.
        stated: the content of ``open_clip_config.json``.

    Raises:
        CheckpointError: a field is unsupported or contradicts the tensors, or as `read_timm`.
    """
    where = path / OPEN_CLIP_CONFIG
    with refusing_values(f"{where} cannot be used", "fetch it again"):
        model = stated["model_cfg"]
        vision = {**VISION, **model["vision_cfg"]}
        images = {**IMAGES, **{name: value for name, value in (stated.get("preprocess_cfg") or {}).items() if value}}
        _check_supported(vision, images, where)
        is_trunk = bool(vision.get("timm_model_name"))
        described = _describe_trunk(vision) if is_trunk else _describe_tower(vision, bool(model.get("quick_gelu")))
        mode = {"shortest": "center", "squash": "squash"}[images["resize_mode"]]
        described["pretrained_cfg"] = {**{name: images[name] for name in (*OPENAI, "interpolation")}, "crop_mode": mode}
        if is_trunk:
            tensors = _name_projection(tensors, path)
        elif vision.get("final_ln_after_pool"):
            tensors = rename(tensors, {"ln_post": "fc_norm"})
        weights = read_timm(dict(tensors), described, path)
        _check_agrees(weights.config, vision, model["embed_dim"], where, is_trunk=is_trunk)
    return weights


def _check_supported(vision: Mapping[str, Any], images: Mapping[str, Any], where: Path) -> None:
    named = {f"vision_cfg.{name}": value for name, value in vision.items() if value and name not in READ}
    values = {**vision, **{name: images[name] for name in ("interpolation", "resize_mode")}}
    named |= {name: values[name] for name in CHOICES if name in values and values[name] not in CHOICES[name]}
    if isinstance(vision["layers"], list):
        named["vision_cfg.layers"] = vision["layers"]  # a ResNet
    if vision.get("timm_model_name") and not vision["timm_pool"] and vision["timm_proj"] != "linear":
        named["vision_cfg.timm_pool"] = vision["timm_pool"]  # all tokens
    if named:
        what = ", ".join(f"{name}={value!r}" for name, value in named.items())
        raise CheckpointError(f"{where} has what is not supported: {printable(what, 300)}", "such models are not read")


def _describe_tower(vision: Mapping[str, Any], is_quick: bool) -> dict[str, Any]:
    arguments = {"img_size": vision["image_size"], "num_heads": vision["width"] // vision["head_width"]}
    arguments |= {"act_layer": "quick_gelu" if is_quick else "gelu", "use_rot_pos_emb": False}
    return {"model_args": arguments, "global_pool": {"tok": "token", "avg": "avg"}[vision["pool_type"]]}


def _describe_trunk(vision: Mapping[str, Any]) -> dict[str, Any]:
    """``quick_gelu`` has no effect on timm's towers."""
    arguments, pool = {"img_size": vision["image_size"]}, vision["timm_pool"] or None
    return {"architecture": vision["timm_model_name"], "model_args": arguments, "global_pool": pool}


def _name_projection(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Without a layer after the trunk, its head is the projection."""
    bias = tensors.get("head.bias")
    if bias is not None and bias.any():
        raise CheckpointError(f"{path} has an image-text projection with a bias", "such models are not supported")
    kept = {name: tensor for name, tensor in tensors.items() if name != "head.bias"}
    return rename(kept, {"head": "projection"})


def _check_agrees(config: Any, vision: Mapping[str, Any], embed_dim: int, where: Path, *, is_trunk: bool) -> None:
    found = {"embed_dim": (embed_dim, config.projection or config.width)}
    if not is_trunk:
        patch, size = vision["patch_size"], config.patch_size
        found |= {
            "width": (vision["width"], config.width),
            "layers": (vision["layers"], config.depth),
            "patch_size": (tuple(patch) if isinstance(patch, list) else (patch, patch), size),
            "mlp_ratio": (int(vision["width"] * vision["mlp_ratio"]), config.mlp_width),
            "no_ln_pre": (bool(vision.get("no_ln_pre")), not config.pre_norm),
        }
    for name, (said, seen) in found.items():
        if said != seen:
            what = f"{where} states {name} as {printable(said)}, and the tensors have {printable(seen)}"
            raise CheckpointError(what, "give the config that belongs to the weights")
