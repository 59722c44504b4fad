"""timm's layout of ViTs with RoPE, or with biases of q and v only: its class ``Eva``, written; both classes are read by `VIT`."""

from __future__ import annotations

from dataclasses import replace

from vitrail.models import ViTConfig
from vitrail.models.rope import ROPES, is_rotary
from vitrail.weights.names import rename
from vitrail.weights.timm.family import BLOCKS, IMAGES, get_ratio
from vitrail.weights.timm.vit import POOLING, SCALES, VIT, find_wrong, round_eps, to_timms

# an entry by the eps of its norms, and whether it has LayerScale and a grid to which indices are scaled: no argument removes them
ENTRIES = {
    (1e-6, False, False): "eva_giant_patch14_224",
    (1e-6, False, True): "eva02_tiny_patch14_224",
    (1e-6, True, False): "vit_base_patch16_rope_224",
    (1e-6, True, True): "vit_medium_patch16_rope_reg1_gap_256",
    (1e-5, False, True): "vit_pe_spatial_base_patch16_512",
    (1e-5, True, False): "vit_small_patch16_dinov3",
    (1e-5, True, True): "vit_pe_lang_large_patch14_448",
}


def is_eva(config: ViTConfig) -> bool:
    """Whether the config is one of timm's ``Eva``, not of its ``VisionTransformer``."""
    return is_rotary(config) or config.qkv_bias == "qv"


def _find_entry(config: ViTConfig) -> str:
    """Returns the name of a timm entry that arguments change to this config, "" if there is none."""
    has_scale, has_grid = config.layer_scale is not None, config.rope_grid is not None
    is_other = config.norm == "rms" or config.patch_norm or config.gelu != "exact"
    if is_other or not config.bias or "dist" in config.prefix:
        return ""
    if config.norm_at == "post":
        is_like = round_eps(config) == 1e-6 and not (has_scale or has_grid)
        return "eva02_enormous_patch14_clip_224" if is_like else ""
    return ENTRIES.get((round_eps(config), has_scale, has_grid), "")


def _find_wrong(config: ViTConfig) -> dict[str, bool]:
    place = "stem" if config.positions == "none" else config.positions_at
    return find_wrong(replace(config, positions="learned", positions_at=place, norm_at="pre", norm_eps=1e-6)) | {
        f"{config.positions} positions": config.positions not in ("learned", "none"),
        f"blocks with {config.gelu} GELU, {config.norm} norms or a second token": not _find_entry(config),
    }


def _ratio_of_pool(config: ViTConfig) -> float | None:
    return None if config.pool_mlp_width is None else get_ratio(replace(config, mlp_width=config.pool_mlp_width))


# the same network by the arguments of timm's other class
EVA = replace(
    VIT,
    written={
        **IMAGES,
        **BLOCKS,
        **POOLING,
        "qkv_bias": lambda config: bool(config.qkv_bias),
        "qkv_fused": lambda config: True,
        "attn_type": lambda config: "rope" if config.qkv_bias is True else "eva",
        "scale_attn_inner": "attention_norm",
        "swiglu_mlp": lambda config: config.mlp == "swiglu",
        "swiglu_align_to": lambda config: 0,
        "scale_mlp": "mlp_norm",
        "num_reg_tokens": "registers",
        "use_abs_pos_emb": lambda config: config.positions == "learned",
        "use_rot_pos_emb": is_rotary,
        "rope_type": lambda config: config.rope if config.rope in ("dinov3", "mixed") else "cat",
        "rope_rotate_half": lambda config: config.rope == "dinov3",
        "rope_temperature": lambda config: config.rope_theta or getattr(ROPES.get(config.rope), "theta", 10_000.0),
        "rope_grid_indexing": lambda config: "xy" if config.rope in ("pe", "axial", "mixed") else "ij",
        "rope_grid_offset": lambda config: 1.0 if config.rope == "pe" and config.prefix else 0.0,
        "rope_shift_coords": "rope_shift",
        "rope_jitter_coords": "rope_jitter",
        "rope_rescale_coords": "rope_rescale",
        "ref_feat_shape": lambda config: config.rope_grid,
        "use_post_norm": lambda config: config.norm_at == "post",
        "use_pre_transformer_norm": "pre_norm",
        "use_post_transformer_norm": lambda config: config.final_norm and not config.pool_norm,
        "use_fc_norm": "pool_norm",
        "attn_pool_num_heads": "pool_heads",
        "attn_pool_mlp_ratio": _ratio_of_pool,
    },
    find_wrong=_find_wrong,
    architecture=_find_entry,
    to_timms=lambda config, state: rename(to_timms(config, state), SCALES),
)
