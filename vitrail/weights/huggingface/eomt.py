"""EoMT in transformers, with the network of DINOv2 or DINOv3: names, config.json, and the task, which no file states.

D width, N patches, P prefix tokens, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.tasks.queries.loss import NONE_WEIGHT
from vitrail.tasks.queries.task import HEAD, QueryTask
from vitrail.text import printable
from vitrail.weights.blocks import PACKED, split_gates
from vitrail.weights.description import OWN
from vitrail.weights.huggingface import foundation, vit
from vitrail.weights.huggingface.family import CHANNELS, GELU, IMAGE_SIZE, PATCH_SIZE, Family, Field
from vitrail.weights.layout import Weights, refuse
from vitrail.weights.names import State, nest, rename
from vitrail.weights.tensors import build_backbone

OF_HEAD = {
    "query": "query.weight",
    "classifier": "class_predictor",
    "embed.{}": "mask_head.fc{1}",
    **nest("upscale.{}.", "upscale_block.block.{}.", {"expand": "conv1", "depthwise": "conv2", "norm": "layernorm2d"}),
    "masking": "attn_mask_probs",
}
OF_EOMT = {
    **{name: vit.AROUND[name] for name in ("cls_token", "patch_embed.proj", "norm")},
    "reg_token": "embeddings.register_tokens",
    "pos_embed": f"{vit.AROUND['pos_embed']}.weight",
    **nest("blocks.{}.", "layers.{}.", {name: name for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")}),
    **nest("blocks.{}.", "layers.{}.attention.", {**foundation.ATTENTION, "attn.proj": "out_proj"}),
    **nest("blocks.{}.", "layers.{}.", {"ls1.gamma": "layer_scale1.lambda1", "ls2.gamma": "layer_scale2.lambda1"}),
    # of a SwiGLU
    **nest("blocks.{}.mlp.", "layers.{}.mlp.", {"g": "gate_proj", "x": "up_proj", "w3": "down_proj"}),
}
OLDER = nest("layers.{}.mlp.", "blocks.{}.mlp.", {"weights_in": "w12", "weights_out": "w3"})
OF_EOMT_DINOV3 = {
    **{
        ours: theirs.replace("layer.", "layers.", 1)
        for ours, theirs in foundation.OF_DINOV3.items()
        if "mlp" not in ours
    },
    **nest("blocks.{}.mlp.", "layers.{}.mlp.", {"fc1": "up_proj", "fc2": "down_proj"}),
    "norm": "layernorm",
}
# what names of the head begin with, ours and theirs: an unknown tensor among these is an error
OWN_MODULES = (OWN, *sorted({name.partition(".")[0] for name in OF_HEAD.values()}))
CLASSES, UPSCALE, EXPAND = f"{OWN}head.classifier.bias", f"{OWN}head.upscale.", ".expand.weight"
COUNTS = {"queries": "num_queries", "query_blocks": "num_blocks", "upscales": "num_upscale_blocks"}
# of the answers, which config.json does not state
ANSWERS: dict[str, dict[str, Any]] = {
    "panoptic": {"threshold": 0.8},
    "instances": {"threshold": 0.3, "most": 100},
    "segmentation": {},
}
COCO, ADE20K = 133, 150  # classes of the authors' panoptic models
THINGS = 80  # of COCO's classes, the first


def read(model_type: str, values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """Patches alone have positions. ``hidden_act`` is also that of the head, where it is exact here."""
    if values["gelu"] != "exact":
        raise CheckpointError(f"it has hidden_act {printable(repr(fields['hidden_act']))}", "supported: 'gelu'")
    if model_type == "eomt":
        return foundation.check_square(replace(vit.read(model_type, values, fields, state), prefix_positions=False))
    theta = dict(fields["rope_parameters"])["rope_theta"]
    return foundation.check_square(foundation.read_dinov3(values, {**fields, "rope_theta": theta}, state))


def write(model_type: str, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    with_table = model_type == "eomt"
    wrong = {
        "an image that is not square": config.image_size[0] != config.image_size[1],
        "a patch that is not square": config.patch_size[0] != config.patch_size[1],
        f"gelu={config.gelu!r}": config.gelu != "exact",
        "a SwiGLU beside RoPE": config.mlp != "gelu" and not with_table,
        "positions of the class token": config.prefix_positions and with_table,
        f"qkv_bias={config.qkv_bias!r}": config.qkv_bias is not True and with_table,
        f"projection={config.projection}": config.projection > 0,
    }
    refuse(f"transformers' {model_type!r}", wrong)
    fields, notes = (vit if with_table else foundation).write(model_type, config)
    if not with_table:
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": float(fields.pop("rope_theta"))}
    return {**fields, "architectures": [f"{NAMES[model_type]}ForUniversalSegmentation"]}, notes


def prepare(state: State) -> State:
    own = {name: tensor for name, tensor in state.items() if name != "reg_token" or tensor.numel()}
    for name, tensor in own.items():
        if name == "pos_embed":
            own[name] = tensor[None]  # (1, N, D)
        elif name.startswith(UPSCALE) and name.endswith(EXPAND) and tensor.ndim == 4:
            own[name] = tensor.permute(1, 2, 3, 0).flatten(0, 2)[..., None, None]  # (D, D, 2, 2) to (4 D, D, 1, 1)
    return rename(own, PACKED)


def express_parts(state: State) -> State:
    """The inverse of `prepare`, with the weights of classes in the loss."""
    width, weights = state["cls_token"].shape[2], torch.ones_like(state[CLASSES])
    weights[-1] = NONE_WEIGHT
    theirs = {"reg_token": torch.zeros(1, 0, width), "criterion.empty_weight": weights, **state}
    for name, tensor in state.items():
        if name == "pos_embed":
            theirs[name] = tensor[0]
        elif name.startswith(UPSCALE) and name.endswith(EXPAND):
            theirs[name] = tensor[..., 0, 0].unflatten(0, (width, 2, 2)).permute(3, 0, 1, 2)
    return theirs


def express_state(config: ViTConfig, state: State) -> State:
    return rename(split_gates(state), {"blocks.{}.mlp.fc2": "blocks.{}.mlp.w3"}) if config.mlp == "swiglu" else state


def express_model(model: QueryTask) -> tuple[QueryTask, list[str]]:
    """Returns the model with the network that transformers has, which computes the same, and notes.

    Positions are one table for the patches, that of the class token is added to the token, and LayerScale is one. Masks of
    attention are off, which transformers would apply in evaluation, too.
    """
    config, state = model.config, dict(model.backbone.state_dict())
    if not isinstance(config, ViTConfig) or config.prefix != ("cls",):
        refuse("transformers' 'eomt'", {f"the prefix {getattr(config, 'prefix', None)}": True})
    expressed, notes = (config, []) if config.rope == "dinov3" else vit.express_config(config)
    if expressed.positions == "learned" and expressed.positions_at == "stem":
        table = vit.express_state(replace(config, mlp="gelu"), state)["pos_embed"]  # (1, P + N, D)
        first, rest = table.split([1, prod(config.grid)], 1)
        state |= {"cls_token": state["cls_token"] + first, "pos_embed": rest}
        expressed = replace(expressed, prefix_positions=False)
    if config.layer_scale is None:
        scales = [f"blocks.{block}.ls{branch}.gamma" for block in range(config.depth) for branch in (1, 2)]
        state |= {name: torch.ones(config.width) for name in scales}
        expressed = replace(expressed, layer_scale=1.0)
    if config.pool in ("gap", "cls+gap") and not config.pool_norm:
        expressed = replace(expressed, pool="cls")
        notes.append("features are those of the class token")
    model.own["head"].get_buffer("masking").zero_()
    model.backbone = build_backbone(expressed, state, "the network").eval()
    return model, notes


def model_type_of(model: QueryTask) -> str:
    return "eomt_dinov3" if getattr(model.config, "rope", None) == "dinov3" else "eomt"


def write_task(model: QueryTask) -> dict[str, Any]:
    """Returns the fields of config.json for the head, and those of our own for the task."""
    counts = {theirs: getattr(model, ours) for ours, theirs in COUNTS.items()}
    return {**counts, "task": model.name, **({"things": list(model.things)} if hasattr(model, "things") else {})}


def read_task(weights: Weights, fields: Mapping[str, Any], processor: Mapping[str, Any], state: State) -> Weights:
    """Adds the task: the field ``task`` of config.json, which transformers does not have, or else what the authors' models with
    as many classes do. ``things`` are the field of that name, or else those of COCO, or all.
    """
    classes = weights.outputs
    of_windows, name, things = bool(processor.get("do_split_image")), fields.get("task"), fields.get("things")
    assumed = []
    if name is None:
        name = "segmentation" if of_windows else "panoptic" if classes in (COCO, ADE20K) else "instances"
        assumed.append(f'the task {name} ("task" in config.json: {" or ".join(map(repr, ANSWERS))})')
    if name not in ANSWERS:
        raise CheckpointError(f"it has the task {printable(repr(name))}", f"supported: {', '.join(ANSWERS)}")
    task = {"task": name, "head": HEAD, **{ours: fields[theirs] for ours, theirs in COUNTS.items()}, **ANSWERS[name]}
    if name == "panoptic":
        if things is None:
            count = THINGS if classes == COCO else classes
            things = [row < count for row in range(classes)]
            assumed.append(
                f'things: the first {count} of {classes} classes ("things" in config.json: true or false for each)'
            )
        task["things"] = things
    if of_windows:
        assumed.append("no windows along the longer side")
    masking = state.get(f"{OWN}head.masking")
    if masking is not None and bool((masking > 0).any()):
        assumed.append("attention without masks, as after training (its attn_mask_probs are above 0)")
    return replace(weights, task=task, assumed=(*weights.assumed, *assumed))


def count_classes(state: State) -> int:
    bias = state.get(CLASSES)
    return max(len(bias) - 1, 0) if bias is not None and bias.ndim else 0


NAMES = {"eomt": "Eomt", "eomt_dinov3": "EomtDinov3"}
FIELDS = (
    Field("width", "hidden_size", 1024),
    Field("depth", "num_hidden_layers", 24),
    Field("heads", "num_attention_heads", 16),
    IMAGE_SIZE._replace(default=640),
    PATCH_SIZE,
    CHANNELS,
    GELU,
    Field("dropout", "hidden_dropout_prob", 0.0),
    Field("attention_dropout", "attention_dropout", 0.0),
    *vit.OF_DINO,
    Field("registers", "num_register_tokens", 4),
)
HEAD_FIELDS = {"num_queries": 200, "num_blocks": 4, "num_upscale_blocks": 2}


def _family(model_type: str, *, names: Mapping[str, str], fields: tuple[Field, ...] = (), **parts: Any) -> Family:
    return Family(
        model_type=model_type,
        body=model_type,
        names=names,
        heads=nest(f"{OWN}head.", "", OF_HEAD),
        unused=("embeddings.mask_token",),
        unused_heads=("criterion.empty_weight",),
        model=NAMES[model_type],
        processor="Eomt",
        fields=(*FIELDS, *fields),
        read=partial(read, model_type),
        write=partial(write, model_type),
        prepare=prepare,
        express_parts=express_parts,
        express_state=express_state,
        read_task=read_task,
        **parts,
    )


FAMILIES = (
    _family("eomt", names=OF_EOMT, also=OLDER, others={"mlp_ratio": 4, "use_swiglu_ffn": False, **HEAD_FIELDS}),
    _family(
        "eomt_dinov3",
        names=OF_EOMT_DINOV3,
        fields=(Field("mlp_width", "intermediate_size", 4096), *foundation.OF_ROPE),
        others={**foundation.DINOV3_SWITCHES, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
        | HEAD_FIELDS,
    ),
)
