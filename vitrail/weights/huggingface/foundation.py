"""Foundation models in transformers: DINOv3, CLIP, MetaCLIP 2, SigLIP and AIMv2. Text towers are left out.

D width, N patches, P prefix tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, cat

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.models.rope import ROPES
from vitrail.weights.blocks import split_gates
from vitrail.weights.huggingface.family import (
    CHANNELS,
    GELU,
    IMAGE_SIZE,
    PATCH_SIZE,
    Family,
    Field,
    note_sizes,
)
from vitrail.weights.layout import is_cut, refuse
from vitrail.weights.names import State, invert, nest, rename
from vitrail.weights.tensors import printable

TEXT = ("text_model.", "text_projection.", "text_projection", "logit_scale", "logit_bias")
ATTENTION = {f"attn.{part}": f"{part}_proj" for part in "qkv"}
OF_CLIP_BLOCK = {
    "norm1": "layer_norm1",
    **nest("", "self_attn.", {**ATTENTION, "attn.proj": "out_proj"}),
    "norm2": "layer_norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
OF_CLIP = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj": "embeddings.patch_embedding",
    "norm_pre": "pre_layrnorm",
    **nest("blocks.{}.", "encoder.layers.{}.", OF_CLIP_BLOCK),
    "norm": "post_layernorm",
}
OF_SIGLIP = {
    **{ours: theirs for ours, theirs in OF_CLIP.items() if ours not in ("cls_token", "norm_pre")},
    "attn_pool.latent": "head.probe",
    "attn_pool.in_proj_weight": "head.attention.in_proj_weight",
    "attn_pool.in_proj_bias": "head.attention.in_proj_bias",
    "attn_pool.proj": "head.attention.out_proj",
    "attn_pool.norm": "head.layernorm",
    "attn_pool.mlp.fc1": "head.mlp.fc1",
    "attn_pool.mlp.fc2": "head.mlp.fc2",
}
OF_DINOV3 = {
    "cls_token": "embeddings.cls_token",
    "reg_token": "embeddings.register_tokens",
    "patch_embed.proj": "embeddings.patch_embeddings",
    **nest(
        "blocks.{}.",
        "layer.{}.",
        {
            "norm1": "norm1",
            **nest("", "attention.", {**ATTENTION, "attn.proj": "o_proj"}),
            "ls1.gamma": "layer_scale1.lambda1",
            "norm2": "norm2",
            "mlp.g": "mlp.gate_proj",
            "mlp.x": "mlp.up_proj",
            "mlp.fc2": "mlp.down_proj",
            "ls2.gamma": "layer_scale2.lambda1",
        },
    ),
    "norm": "norm",
}
OF_AIMV2 = {
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj": "embeddings.patch_embed",
    "patch_embed.norm": "embeddings.rms_norm",
    **nest(
        "blocks.{}.",
        "encoder.layers.{}.",
        {
            "norm1": "rms_norm1",
            **nest("", "attention.", {**ATTENTION, "attn.proj": "out_proj"}),
            "norm2": "rms_norm2",
            "mlp.g": "ffn.gate_proj",
            "mlp.x": "ffn.up_proj",
            "mlp.fc2": "ffn.down_proj",
        },
    ),
    "norm": "rms_norm",
}


def from_flat_tokens(state: State) -> State:
    """Adds the leading axes of token and table, (D,) and (P + N, D), and splits q, (D, D), from k and v of attention pooling."""
    own = {name: tensor for name, tensor in state.items() if not name.startswith("attn_pool.in_proj_")}
    for name, theirs in (("cls_token", "cls_token"), ("pos_embed", "pos_embed.weight")):
        if theirs in state:
            own[name] = own.pop(theirs).reshape(1, -1, state[theirs].shape[-1])
    for kind in ("weight", "bias"):
        if (joined := state.get(f"attn_pool.in_proj_{kind}")) is not None and len(joined) % 3 == 0:
            width = len(joined) // 3
            own |= {f"attn_pool.q.{kind}": joined[:width], f"attn_pool.kv.{kind}": joined[width:]}
    return own


def to_flat_tokens(state: State) -> State:
    """The inverse of `from_flat_tokens`."""
    theirs = {name: tensor for name, tensor in state.items() if not name.startswith(("attn_pool.q.", "attn_pool.kv."))}
    if "cls_token" in state:
        theirs["cls_token"] = state["cls_token"].flatten()
    theirs["pos_embed.weight"] = theirs.pop("pos_embed")[0]
    for kind in ("weight", "bias"):
        if f"attn_pool.q.{kind}" in state:
            theirs[f"attn_pool.in_proj_{kind}"] = cat([state[f"attn_pool.q.{kind}"], state[f"attn_pool.kv.{kind}"]])
    return theirs


UNGATED = {"blocks.{}.mlp.x": "blocks.{}.mlp.fc1"}  # transformers' up_proj is the only first layer without a gate


def _join_ungated(state: State) -> State:
    own = {name: tensor for name, tensor in state.items() if name != "reg_token" or tensor.numel()}
    return own if any(".mlp.g." in name for name in own) else rename(own, UNGATED)


def _split_ungated(state: State) -> State:
    """Names the first layer of an MLP as transformers does, unless it is that of a SwiGLU, which has been split."""
    return rename(state, invert(UNGATED))


def _width(state: State, name: str) -> int:
    tensor: Tensor | None = state.get(name)
    return 0 if tensor is None else len(tensor)


def read_clip(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """A classifier of transformers takes the mean of the patches without the last norm, others the class token after it."""
    has_classes = values["classes"] > 0
    return ViTConfig(
        **values,
        pre_norm=True,
        pool="gap" if has_classes else "cls",
        final_norm=not has_classes,
        projection=_width(state, "projection.weight"),
        position_resize="bicubic",
    )


def read_siglip(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """A classifier of transformers takes the mean of the patches, others attention pooling."""
    is_mean = values["classes"] > 0 or "attn_pool.latent" not in state
    return ViTConfig(**values, prefix=(), pool="gap" if is_mean else "map", position_resize="bicubic")


def read_dinov3(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    biases = tuple(bool(fields[f"{part}_bias"]) for part in ("query", "key", "value"))
    kinds: dict[tuple[bool, ...], bool | str] = {(True, False, True): "qv", (True,) * 3: True, (False,) * 3: False}
    if biases not in kinds or fields["proj_bias"] != fields["mlp_bias"]:
        raise CheckpointError(f"it has biases of q, k and v {biases}", "q and v, all of them or none are supported")
    is_gated = bool(fields["use_gated_mlp"])
    _check_act(fields, gated=is_gated)
    return ViTConfig(
        **values,
        rope="dinov3",
        rope_theta=None if fields["rope_theta"] == ROPES["dinov3"].theta else float(fields["rope_theta"]),
        positions="none",
        qkv_bias=kinds[biases],
        bias=bool(fields["proj_bias"]),
        mlp="swiglu" if is_gated else "gelu",
    )


def _check_act(fields: Mapping[str, Any], *, gated: bool) -> None:
    if gated and fields["hidden_act"] != "silu":
        raise CheckpointError(f"it has hidden_act {printable(repr(fields['hidden_act']))}", "a gate needs silu")


def read_aimv2(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    if fields["use_head"] or fields["is_native"]:
        what = "it pools by a head of its own or takes images of varying size (use_head, is_native)"
        raise CheckpointError(what, "the encoder alone is supported: use_head false")
    _check_act(fields, gated=True)
    return ViTConfig(
        **values,
        prefix=(),
        pool="gap",
        norm="rms",
        patch_norm=True,
        mlp="swiglu",
        bias=bool(fields["mlp_bias"]),
        position_resize="bicubic",
    )


def write(model_type: str, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Returns further fields of config.json. Raises `CheckpointError` for what the model type does not have."""
    likes: dict[str, Any]
    fields: dict[str, Any] = {}
    if model_type == "dinov3_vit":
        likes, fields = _write_dinov3(config)
    elif model_type.startswith("clip"):
        likes = {"pre_norm": True, **({"pool": "gap", "final_norm": False} if config.classes else {"pool": "cls"})}
        fields = {} if config.classes else {"projection_dim": config.projection or 512}
    elif model_type.startswith("siglip"):
        likes = {"prefix": (), "pool": "gap" if config.classes else "map"}
    else:
        likes = {"prefix": (), "pool": "gap", "norm": "rms", "patch_norm": True, "mlp": "swiglu", "bias": config.bias}
        likes |= {"qkv_bias": config.qkv_bias}
        fields = {"use_head": False, "mlp_bias": config.bias, "hidden_act": "silu"}
    values: dict[str, Any] = {name: getattr(config, name) for name in ("classes", "projection", *VARYING)}
    plain = ViTConfig(**values, **likes)
    wrong = {f"{name}={getattr(config, name)!r}": getattr(config, name) != getattr(plain, name) for name in COMPARED}
    refuse(f"transformers' {model_type!r}", {**wrong, "padding": is_cut(config)})
    notes = note_sizes(config, {} if model_type == "dinov3_vit" else {"positions": (config.position_resize, "bicubic")})
    named = {"architectures": ["CLIPVisionModelWithProjection"]} if config.projection else {}
    return {**fields, **named}, notes


# fields that may be of any value, and those that must be the model type's
VARYING = ("image_size", "patch_size", "in_channels", "width", "depth", "heads", "mlp_width", "gelu", "norm_eps")
COMPARED = (
    "prefix", "registers", "pool", "pool_norm", "positions", "positions_at", "prefix_positions", "pre_logits", "qkv_bias",
    "window", "skips", "layer_scale", "rope", "rope_theta", "rope_shift", "rope_jitter", "rope_rescale", "norm", "norm_at",
    "pre_norm", "patch_norm", "final_norm", "mlp", "mlp_norm", "attention_norm", "bias", "pool_heads", "pool_mlp_width", "stem",
)  # fmt: skip


def _write_dinov3(config: ViTConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of our config that are free in DINOv3's, and those of config.json."""
    what = "a head: its model type has no classifier (timm's layout has one: --to timm)"
    refuse(
        "transformers' 'dinov3_vit'",
        {what: config.classes > 0, "blocks without LayerScale": config.layer_scale is None},
    )
    varying = (
        "registers",
        "layer_scale",
        "qkv_bias",
        "bias",
        "mlp",
        "rope_theta",
        "rope_shift",
        "rope_jitter",
        "rope_rescale",
    )
    likes = {"rope": "dinov3", "positions": "none", **{name: getattr(config, name) for name in varying}}
    biases = {"qv": (True, False, True), True: (True,) * 3, False: (False,) * 3}[config.qkv_bias]
    fields = {f"{part}_bias": bias for part, bias in zip(("query", "key", "value"), biases)}
    fields |= {"proj_bias": config.bias, "mlp_bias": config.bias, "use_gated_mlp": config.mlp == "swiglu"}
    fields |= {"rope_theta": config.rope_theta or ROPES["dinov3"].theta}
    return likes, fields | ({"hidden_act": "silu"} if config.mlp == "swiglu" else {})


def _sizes(width: int, depth: int, heads: int, mlp_width: int) -> tuple[Field, ...]:
    """Returns the fields of the size, with transformers' defaults."""
    return (
        Field("width", "hidden_size", width),
        Field("depth", "num_hidden_layers", depth),
        Field("heads", "num_attention_heads", heads),
        Field("mlp_width", "intermediate_size", mlp_width),
        IMAGE_SIZE,
        CHANNELS,
    )


BASE = _sizes(768, 12, 12, 3072)
DROPOUT = Field("attention_dropout", "attention_dropout", 0.0)
OF_TEXT = (
    DROPOUT,
    Field("norm_eps", "layer_norm_eps", 1e-5),
    GELU._replace(default="quick_gelu"),
    PATCH_SIZE._replace(default=32),
)
SILENT_GATE = GELU._replace(read=lambda act: "exact" if act == "silu" else GELU.read(act))


def _family(
    model_type: str, *, reader: Any, fields: tuple[Field, ...], sizes: tuple[Field, ...] = BASE, **parts: Any
) -> Family:
    parts = {"body": "vision_model", "unused_heads": TEXT, **parts}
    return Family(
        model_type=model_type,
        fields=(*sizes, *fields),
        read=reader,
        write=partial(write, model_type),
        express_state=lambda config, state: split_gates(state) if config.mlp == "swiglu" else state,
        **parts,
    )


def _image_text(name: str, *types: str, **parts: Any) -> tuple[Family, ...]:
    """Returns the families of both towers and of the image tower alone, by their model types."""
    heads = {"head": "classifier", "projection": "visual_projection"}
    flat = {"prepare": from_flat_tokens, "express_parts": to_flat_tokens}
    unused = ("embeddings.position_ids",)
    whole, tower = types
    parts |= {"heads": heads, "unused": unused, **flat}
    return _family(whole, model=name, is_nested=True, **parts), _family(tower, model=f"{name}Vision", **parts)


CLIPS = {"CLIP": ("clip", "clip_vision_model"), "MetaClip2": ("metaclip_2", "metaclip_2_vision_model")}
FAMILIES = (
    *(
        family
        for name, types in CLIPS.items()
        for family in _image_text(
            name,
            *types,
            names=OF_CLIP,
            unused_with_classes=("post_layernorm",),
            processor="CLIP",
            reader=read_clip,
            fields=OF_TEXT,
        )
    ),
    *_image_text(
        "Siglip",
        *("siglip", "siglip_vision_model"),
        names=OF_SIGLIP,
        unused_with_classes=("head.",),
        processor="Siglip",
        reader=read_siglip,
        fields=(
            DROPOUT,
            Field("norm_eps", "layer_norm_eps", 1e-6),
            GELU._replace(default="gelu_pytorch_tanh"),
            PATCH_SIZE,
        ),
    ),
    _family(
        "dinov3_vit",
        body="model",
        names=OF_DINOV3,
        also={
            theirs.replace("layer.", "model.layer.", 1): ours
            for ours, theirs in OF_DINOV3.items()
            if "layer." in theirs
        },
        heads={},
        unused=("embeddings.mask_token",),
        model="DINOv3ViT",
        processor="DINOv3ViT",
        prepare=_join_ungated,
        express_parts=_split_ungated,
        reader=read_dinov3,
        sizes=_sizes(384, 12, 6, 1536),
        fields=(
            DROPOUT,
            Field("norm_eps", "layer_norm_eps", 1e-5),
            Field("registers", "num_register_tokens", 0),
            Field("layer_scale", "layerscale_value", 1.0),
            Field("drop_path", "drop_path_rate", 0.0),
            Field("rope_shift", "pos_embed_shift", None),
            Field("rope_jitter", "pos_embed_jitter", None),
            Field("rope_rescale", "pos_embed_rescale", 2.0),
            SILENT_GATE,
            PATCH_SIZE,
        ),
        others={"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True, "mlp_bias": True}
        | {"use_gated_mlp": False, "rope_theta": 100.0, "hidden_act": "gelu"},
    ),
    _family(
        "aimv2_vision_model",
        body="aimv2",
        names=OF_AIMV2,
        heads={},
        model="Aimv2Vision",
        processor="CLIP",
        prepare=from_flat_tokens,
        express_parts=to_flat_tokens,
        reader=read_aimv2,
        sizes=_sizes(1024, 24, 8, 2816),
        fields=(
            DROPOUT,
            Field("norm_eps", "rms_norm_eps", 1e-5),
            Field("qkv_bias", "qkv_bias", False),
            SILENT_GATE,
            PATCH_SIZE._replace(default=14),
        ),
        others={"mlp_bias": False, "use_head": True, "is_native": False, "hidden_act": "silu"},
    ),
)


def model_type_of(config: ViTConfig) -> str | None:
    """Returns the model type of a config that is one of these, None for others."""
    if config.rope == "dinov3" and config.positions == "none":
        return "dinov3_vit"
    if config.norm == "rms":
        return "aimv2_vision_model"
    if config.pre_norm:
        return "clip" if config.classes else "clip_vision_model"
    if config.prefix == () and config.positions == "learned" and not config.registers:
        is_tower = config.pool == "map" and not config.classes
        # the mean of the patches after the norm is a classifier of I-JEPA's type, too, which is not said to have read text
        return "siglip_vision_model" if is_tower else None
    return None
