"""The names that timm and Hugging Face transformers give to the models and fields that are known here by others."""

from __future__ import annotations

import re
from collections.abc import Collection

SIZES = {
    "tiny": "ti", "small": "s", "medium": "m", "base": "b", "large": "l", "huge": "h", "giant": "giant", "gigantic": "gigantic",
    "so400m": "so400m",
}  # fmt: skip
FIELDS = {
    "num_classes": "classes", "num_labels": "classes", "in_chans": "in_channels", "num_channels": "in_channels",
    "img_size": "image_size", "embed_dim": "width", "hidden_size": "width", "hidden_dim": "width", "num_layers": "depth",
    "num_hidden_layers": "depth", "num_heads": "heads", "num_attention_heads": "heads", "intermediate_size": "mlp_width",
    "mlp_dim": "mlp_width", "drop_path_rate": "drop_path", "drop_rate": "dropout", "attn_drop_rate": "attention_dropout",
    "global_pool": "pool", "reg_tokens": "registers", "init_values": "layer_scale",
}  # fmt: skip
# a pattern of names with "-" replaced by "_", and the name here, from the groups of the pattern
MODELS = {
    r"vit_(?P<size>[a-z0-9]+)_patch(?P<patch>\d+)": "vit-{size}{patch}",
    r"deit_(?P<size>\w+?)_distilled_patch(?P<patch>\d+)": "deit-{size}{patch}-distilled",
    r"deit_(?P<size>\w+?)_patch(?P<patch>\d+)": "deit-{size}{patch}",
    r"deit3_(?P<size>\w+?)_patch(?P<patch>\d+)": "deit3-{size}{patch}",
    r"vit_(?P<size>\w+?)_r(?P<blocks>\d+)_s(?P<patch>\d+)": "r{blocks}-vit-{size}{patch}",
    r"vit_(?P<size>\w+?)_r_s(?P<patch>\d+)": "r-vit-{size}{patch}",
    r"beit(v2)?_(?P<size>[a-z]+)_patch(?P<patch>\d+)": "beit-{size}{patch}",
    r"swin_(?P<letter>[bl])\w+_patch4_window12_384": "swin-{letter}-384",
    r"swin_(?P<letter>[tsbl])\w+_patch4": "swin-{letter}",
    r"cait_(?P<kind>[xsm]+\d+)": "cait-{kind}",
    r"pvt_v2_(?P<kind>b\d)_li": "pvt-v2-{kind}-li",
    r"pvt_v2_(?P<kind>b\d)": "pvt-v2-{kind}",
    r"pvt_(?P<kind>tiny|small|medium|large)": "pvt-{kind}",
    r"(resnetv2_|bit_r?)(?P<kind>\d+x\d)": "bit-r{kind}",
}


def translate_model(name: str) -> str | None:
    """Returns the name that timm's or Hugging Face's ``name`` would have here, whether or not there is such a model."""
    plain = name.rpartition("/")[2].lower().replace("-", "_")
    for pattern, ours in MODELS.items():
        if match := re.match(pattern, plain):
            groups = match.groupdict()
            if "size" in groups:
                groups["size"] = SIZES.get(groups["size"], groups["size"])
            return ours.format(**groups)
    return None


def explain_field(name: str, known: Collection[str]) -> str | None:
    """Returns what to write for a field as timm or Hugging Face call it; None if it has no counterpart among ``known``."""
    return f"it is called {FIELDS[name]!r} here" if FIELDS.get(name) in known else None
