"""Foundation models in transformers: DINOv3, CLIP, MetaCLIP 2, SigLIP, AIMv2, InternViT, TIPSv2 and RADIO. Text towers are left
out.

D width, N patches, P prefix tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from functools import partial
from typing import Any

from torch import cat

from vitrail.data.preprocessing import CLIP_COLOURS
from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.models.config import TRAINING_FIELDS
from vitrail.models.rope import ROPES
from vitrail.text import printable
from vitrail.weights.blocks import PACKED, from_flat_tokens, split_gates
from vitrail.weights.huggingface.family import (
    CHANNELS,
    DROPOUTS,
    GELU,
    IMAGE_SIZE,
    PATCH_SIZE,
    Family,
    Field,
    hidden_width,
    note_sizes,
    ratio_of,
)
from vitrail.weights.huggingface.radio import OF_RADIO, complete_radio, from_radio, radio_fields, to_radio
from vitrail.weights.layout import is_cut, refuse
from vitrail.weights.names import State, invert, nest, rename

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
    **nest("attn_pool.", "head.", {"latent": "probe", "norm": "layernorm", "proj": "attention.out_proj"}),
    **nest("attn_pool.", "head.attention.", {name: name for name in ("in_proj_weight", "in_proj_bias")}),
    **nest("attn_pool.mlp.", "head.mlp.", {name: name for name in ("fc1", "fc2")}),
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
OF_INTERNVL = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    **nest("blocks.{}.norm", "encoder.layer.{}.layernorm_", {"1": "before", "2": "after"}),
    **nest("blocks.{}.", "encoder.layer.{}.attention.", {**ATTENTION, "attn.proj": "projection_layer"}),
    **nest("blocks.{}.", "encoder.layer.{}.", {"ls1.gamma": "lambda_1", "mlp.": "mlp.", "ls2.gamma": "lambda_2"}),
    "norm": "layernorm",
}
OF_TIPSV2 = {
    **{name: name for name in ("cls_token", "pos_embed", "patch_embed.proj", "blocks.{}.", "norm")},
    "reg_token": "register_tokens",
    **nest("blocks.{}.mlp.", "blocks.{}.mlp.", {"fc1": "c_fc", "fc2": "c_proj"}),
}


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


def read_clip(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """A classifier of transformers takes the mean of the patches without the last norm, others the class token after it."""
    has_classes = values["classes"] > 0
    return ViTConfig(
        **values,
        pre_norm=True,
        pool="gap" if has_classes else "cls",
        final_norm=not has_classes,
        projection=len(state.get("projection.weight", ())),
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


def _require(fields: Mapping[str, Any], **needed: Any) -> None:
    """Raises `CheckpointError` for the first field of config.json that has another value."""
    for name, value in needed.items():
        if fields[name] != value:
            raise CheckpointError(f"it has {name} {printable(repr(fields[name]))}", f"supported: {value!r}")


def check_square(config: ViTConfig) -> ViTConfig:
    if config.image_size[0] != config.image_size[1]:
        what = f"it has image_size {config.image_size}, whose rows and columns transformers does not tell apart"
        raise CheckpointError(what, "only a square image_size is supported")
    return config


def read_internvl(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """The model of transformers returns the tokens only; its field ``use_mean_pooling`` removes the last norm."""
    _require(fields, use_qk_norm=False, use_absolute_position_embeddings=True, norm_type="layer_norm")
    _require(fields, projection_dropout=fields["hidden_dropout_prob"])
    return check_square(ViTConfig(**values, final_norm=not fields["use_mean_pooling"], position_resize="bicubic"))


def _read_mlp(values: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the type and width of the MLP, which config.json states by a ratio."""
    is_gated = bool(fields["use_swiglu_ffn"])
    if not is_gated:
        GELU.read(fields["hidden_act"])
    width = hidden_width(values["width"], float(fields["mlp_ratio"]), gated=is_gated)
    return {**values, "mlp": "swiglu" if is_gated else "gelu", "mlp_width": width}


def read_tipsv2(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    return check_square(ViTConfig(**_read_mlp(values, fields), position_resize="bilinear-antialias"))


def read_radio(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """Files without LayerScale are read by transformers as if it were ``layerscale_value``. All tokens but one are registers."""
    _require(fields, video_temporal_patch_size=None)
    if "blocks.0.ls1.gamma" not in state:
        _require(fields, layerscale_value=1.0)
        values["layer_scale"] = None
    return ViTConfig(
        **_read_mlp(values, fields),
        image_size=fields.get("image_size", 224),
        registers=fields["num_cls_tokens"] + fields["num_registers"] - 1,
        prefix_positions=False,
        final_norm=False,
        position_resize="bilinear",
    )


def _write_tower(model_type: str, config: ViTConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of InternViT, TIPSv2 or RADIO that are free or not the paper's, and those of config.json."""
    is_radio, is_internvl, is_gated = model_type == "radio", model_type == "internvl_vision", config.mlp == "swiglu"
    ratio = ratio_of(config.width, config.mlp_width, gated=is_gated)
    has_ratio = hidden_width(config.width, ratio, gated=is_gated) == config.mlp_width
    wrong = {
        "a head: its model type has no classifier (timm's layout has one: --to timm)": config.classes > 0,
        "blocks without LayerScale": config.layer_scale is None and not is_radio,
        "biases of q and v alone": config.qkv_bias == "qv",
        "positions of an image that is not square": config.image_size[0] != config.image_size[1],
        "a patch that is not square": config.patch_size[0] != config.patch_size[1],
        f"a SwiGLU {config.mlp_width} wide, no multiple of 8": not has_ratio and not is_internvl,
    }
    refuse(f"transformers' {model_type!r}", wrong)
    free = ("layer_scale", "qkv_bias") if is_internvl else ("layer_scale", "qkv_bias", "mlp", "registers")
    likes: dict[str, Any] = {name: getattr(config, name) for name in free}
    likes |= {"final_norm": False, "prefix_positions": is_internvl} if is_radio or is_internvl else {}
    if is_internvl:
        return likes, {"use_mean_pooling": True, "projection_dropout": config.dropout}
    fields: dict[str, Any] = {"mlp_ratio": ratio, "use_swiglu_ffn": is_gated}
    return likes, fields | (radio_fields(config) if is_radio else {})


def write(model_type: str, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """Returns further fields of config.json. Raises `CheckpointError` for what the model type does not have."""
    likes: dict[str, Any]
    fields: dict[str, Any] = {}
    if model_type in ROTARY:
        likes, fields = _write_dinov3(config)
    elif model_type.startswith(("internvl", "tipsv2", "radio")):
        likes, fields = _write_tower(model_type, config)
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
    compared = {field.name: getattr(config, field.name) for field in fields_of(config) if field.name not in FREE}
    wrong = {f"{name}={value!r}": value != getattr(plain, name) for name, value in compared.items()}
    refuse(f"transformers' {model_type!r}", {**wrong, "padding": is_cut(config)})
    rule = {"tipsv2_vision_model": "bilinear-antialias", "radio": "bilinear"}.get(model_type, "bicubic")
    notes = note_sizes(config, {} if model_type in ROTARY else {"positions": (config.position_resize, rule)})
    if model_type == "radio":
        notes.append("images are normalised by the image processor, not by the network, as in other weights of RADIO")
    named = {"architectures": ["CLIPVisionModelWithProjection"]} if config.projection else {}
    return {**fields, **named}, notes


ROTARY = ("dinov3_vit", "eomt_dinov3")
# fields that may be of any value, and those that say nothing without others, or nothing of outputs
VARYING = ("image_size", "patch_size", "in_channels", "width", "depth", "heads", "mlp_width", "gelu", "norm_eps")
FREE = {"classes", "projection", "position_resize", "pad", "head_bias", "initial", "global_blocks"}
FREE |= {"stem_width", "standardise", "group_norm_eps", *VARYING, *TRAINING_FIELDS}


def _write_dinov3(config: ViTConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of our config that are free in DINOv3's, and those of config.json."""
    what = "a head: its model type has no classifier (timm's layout has one: --to timm)"
    refuse(
        "transformers' 'dinov3_vit'",
        {what: config.classes > 0, "blocks without LayerScale": config.layer_scale is None},
    )
    varying = ("registers", "layer_scale", "qkv_bias", "bias", "mlp")
    varying += ("rope_theta", "rope_shift", "rope_jitter", "rope_rescale")
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
OF_ROPE = (
    Field("rope_shift", "pos_embed_shift", None),
    Field("rope_jitter", "pos_embed_jitter", None),
    Field("rope_rescale", "pos_embed_rescale", 2.0),
)
DINOV3_SWITCHES = {"query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True, "mlp_bias": True}
DINOV3_SWITCHES |= {"use_gated_mlp": False}
SILENT_GATE = GELU._replace(read=lambda act: "exact" if act == "silu" else GELU.read(act))


def _family(
    model_type: str, *, reader: Any, fields: tuple[Field, ...], sizes: tuple[Field, ...] = BASE, **parts: Any
) -> Family:
    split = {"express_state": lambda config, state: split_gates(state) if config.mlp == "swiglu" else state}
    parts = {"body": "vision_model", "unused_heads": TEXT, **split, **parts}
    return Family(
        model_type=model_type,
        fields=(*sizes, *fields),
        read=reader,
        write=partial(write, model_type),
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


SCALED = (
    *DROPOUTS,
    Field("norm_eps", "layer_norm_eps", 1e-6),
    Field("drop_path", "drop_path_rate", 0.0, write=float),
    Field("qkv_bias", "qkv_bias", True),
    Field("layer_scale", "layerscale_value", 1.0, write=lambda scale: 1.0 if scale is None else float(scale)),
    SILENT_GATE,
)
RATIO = {"mlp_ratio": 4, "use_swiglu_ffn": False}
TIPSV2: dict[str, Any] = {
    "body": "vision_encoder",
    "names": OF_TIPSV2,
    "heads": {},
    "parts": {},
    "unused": ("mask_token",),
    "unused_heads": ("text_encoder.", "temperature"),
    "processor": "Tipsv2",
    "prepare": lambda state: rename(state, PACKED),
    "express_state": lambda config, state: rename(state, invert(PACKED)) if config.mlp == "swiglu" else state,
    "reader": read_tipsv2,
    "sizes": (*BASE[:3], CHANNELS, IMAGE_SIZE._replace(default=448), PATCH_SIZE._replace(default=14)),
    "fields": (*SCALED, Field("registers", "num_register_tokens", 1)),
    "others": RATIO,
}
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
            *OF_ROPE,
            SILENT_GATE,
            PATCH_SIZE,
        ),
        others={**DINOV3_SWITCHES, "rope_theta": 100.0, "hidden_act": "gelu"},
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
    _family(
        "internvl_vision",
        body="internvl_vision",
        names=OF_INTERNVL,
        heads={},
        unused=("embeddings.mask_token",),
        model="InternVLVision",
        processor="Pvt",
        reader=read_internvl,
        sizes=(*_sizes(1024, 24, 16, 4096)[:4], IMAGE_SIZE._replace(default=[448, 448]), CHANNELS),
        fields=(
            DROPOUT,
            Field("dropout", "hidden_dropout_prob", 0.0),
            Field("norm_eps", "layer_norm_eps", 1e-6),
            Field("qkv_bias", "attention_bias", False),
            Field("layer_scale", "layer_scale_init_value", 0.1),
            GELU,
            PATCH_SIZE._replace(default=[14, 14]),
        ),
        others={"use_qk_norm": False, "use_absolute_position_embeddings": True, "norm_type": "layer_norm"}
        | {"projection_dropout": 0.0, "use_mean_pooling": True},
    ),
    _family("tipsv2_vision_model", model="Tipsv2Vision", **TIPSV2),
    _family("tipsv2", model="Tipsv2", is_nested=True, **TIPSV2),
    _family(
        "radio",
        body="model",
        names=OF_RADIO,
        heads={},
        parts={},
        model="Radio",
        processor="CLIP",
        prepare=from_radio,
        express_state=to_radio,
        complete=complete_radio,
        reader=read_radio,
        sizes=(*_sizes(1280, 32, 16, 0)[:3], CHANNELS),
        fields=(*SCALED, PATCH_SIZE),
        others=RATIO
        | {"num_cls_tokens": 3, "num_registers": 7, "video_temporal_patch_size": None}
        | {"norm_mean": list(CLIP_COLOURS[0]), "norm_std": list(CLIP_COLOURS[1])},
    ),
)


def model_type_of(config: ViTConfig) -> str | None:
    """Returns the model type of a config that is one of these, None for others."""
    if config.rope == "dinov3" and config.positions == "none":
        return "dinov3_vit"
    if not config.final_norm and config.prefix == ("cls",) and not config.pre_norm and config.rope == "none":
        return "internvl_vision" if config.prefix_positions else "radio"
    if config.registers and config.position_resize == "bilinear-antialias":
        return "tipsv2_vision_model"
    if config.norm == "rms":
        return "aimv2_vision_model"
    if config.pre_norm:
        return "clip" if config.classes else "clip_vision_model"
    if config.prefix == () and config.positions == "learned" and not config.registers:
        is_tower = config.pool == "map" and not config.classes
        # the mean of the patches after the norm is a classifier of I-JEPA's type, too, which is not said to have read text
        return "siglip_vision_model" if is_tower else None
    return None
