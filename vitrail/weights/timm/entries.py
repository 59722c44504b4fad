"""What the names of timm's plain ViTs say that no tensor shows: arguments of its classes, by patterns of names."""

from __future__ import annotations

import re
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.text import printable

DINOV3 = {"rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True, "use_rot_pos_emb": True}
SCALED = {"use_rot_pos_emb": True, "ref_feat_shape": 16}  # EVA-02's RoPE, on the grid of 224 pixels in patches of 14
PE = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "norm_eps": 1e-5}
AXIAL = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_temperature": 100.0}
# every pattern that fits the beginning of a name adds its arguments; later ones replace those of earlier ones
ARGUMENTS: dict[str, dict[str, Any]] = {
    r"vit_base_patch16_gap_": {"num_heads": 16},
    r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_": {"act_layer": "gelu_tanh"},
    r"vit_large_patch16_siglip_(gap_)?512": {"act_layer": "gelu_tanh"},
    r"beit3_|vit_.*_clip_": {"norm_eps": 1e-5},
    r"vit_.*_clip_quickgelu_": {"act_layer": "quick_gelu"},
    r"vit_\w+_(dinov3|lingbot)": {**DINOV3, "norm_eps": 1e-5},
    r"vit_7b_": {"num_heads": 32},
    r"vit_huge_plus_": {"num_heads": 20},
    r"vit_giant_\w+_(dinov2|tipsv2|lingbot|radio)": {"num_heads": 24},
    r"eva02_\w+_patch1": SCALED,
    r"eva02_enormous_": {"use_rot_pos_emb": False, "ref_feat_shape": None, "use_post_norm": True},
    r"vit_pe_": PE,
    r"vit_pe_(spatial|lang)_": {"use_post_transformer_norm": False},
    r"vit_.*_radio_|vit_intern300m_": {"final_norm": False},
    r"vit_pe_core_base_": {"ref_feat_shape": 14},
    r"vit_pe_core_(tiny|small|large)_": {"ref_feat_shape": 24},
    r"vit_pe_(core_gigantic|spatial|lang)_": {"ref_feat_shape": 32},
    r"vit_pe_core_": {"attn_pool_num_heads": 8},
    r"vit_\w+_rope_reg\d_gap_": SCALED,
    r"vit_\w+_rope_(ape_)?\d": AXIAL,
    r"vit_\w+_rope_mixed_": {**AXIAL, "rope_type": "mixed"},
    r"aimv2_": {"norm_eps": 1e-5},
    r"aimv2_large_": {"num_heads": 8},
    r"aimv2_huge_": {"num_heads": 12},
    r"aimv2_1b_": {"num_heads": 16},
    r"aimv2_3b_": {"num_heads": 24},
    r"vit_.*_rpn_": {"use_post_norm": True},
    r"test_vit": {"num_heads": 2},
    r"test_vit[34]": {"num_heads": 3},
    r"test_vit3": {"pool_include_prefix": True},
}
# architectures whose blocks have the tensors of others, or further ones
OTHERS: dict[str, str] = {
    r"vit_d(wee|little)_": "attention is a difference of two",
    r"vit_(dp|p)wee_": "attention and MLP are computed in parallel",
    r"vit_\w+_18x2_": "each block has two attentions and two MLPs in parallel",
    r"vit_\w+_xp_": "attention and MLP are computed in parallel",
    r"naflexvit_": "images keep their aspect ratio in batches of patches",
    r"vit_\w+_sapiens2": "q and k are normalised, and several queries share a key",
}
SIZES = (
    r"(pico|xsmall|tiny|little|wee|small|medium|mediumd|betwixt|base|large|huge|giant|giantopt|gigantic|so150m2?|so400m|7b"
    r"|intern300m)"
)
# what the names of all architectures begin with that are read as a ViT
KNOWN = (
    rf"vit_{SIZES}(_plus)?_(patch\d+|r\d*_s\d+)(_plus)?_(\d|gap|reg|clip|dinov[23]|lingbot|siglip|rope|rpn|radio|tipsv2|36x1|miil|p8)",
    r"vit_(pe_(core|spatial|lang)_\w+_patch\d+|intern300m_patch14)_\d",
    r"vit_(wee|little|medium|mediumd|betwixt|so150m2?)_patch16_(rope_)?reg\d_",
    r"((vit_)?deit|deit3|beit3|flexivit|ijepa|eva|eva02|aimv2|test)_",
)


def find_arguments(name: str) -> dict[str, Any]:
    """Returns the arguments that timm's entry ``name`` gives, where no tensor shows them."""
    found: dict[str, Any] = {}
    for pattern, arguments in ARGUMENTS.items():
        found |= arguments if re.match(pattern, name) else {}
    return found


def check_name(name: str, where: object) -> None:
    """Raises `CheckpointError` for an architecture whose blocks are not those of a ViT, or are not known: what its name implies,
    such as rotary positions or an activation, is in no tensor.
    """
    for pattern, why in OTHERS.items():
        if re.match(pattern, name):
            what = f"{where} is {printable(name)}, whose blocks differ from those of a ViT: {why}"
            raise CheckpointError(what, "such models are not supported")
    if name and not any(re.match(pattern, name) for pattern in KNOWN):
        what = f"{where} names the architecture {printable(name)!r}, which is not known"
        remedy = "if its blocks are those of a ViT, remove 'architecture' from config.json: tensors and model_args decide then"
        raise CheckpointError(what, remedy)
