"""How many of timm's published plain ViTs are read, by family: ``python -m tests.peers.count_timm``.

A model counts as read if its name alone, without its weights, leads to a config with exactly the tensors of timm's model and with
the heads, eps, GELU, pooling, norms and rotary positions that timm builds.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import timm
import torch

from vitrail.errors import CheckpointError
from vitrail.models import sketch
from vitrail.weights.timm import read_arguments, read_timm
from vitrail.weights.timm.vit import VIT

MODULES = ("vision_transformer", "deit", "eva", "naflexvit")
# architectures that are refused, and a word of the reason
REFUSED = {
    "vit_(base|small)_patch16_18x2_": "parallel",
    "vit_(pwee|dpwee)_": "parallel",
    "vit_base_patch16_xp_|vit_huge_patch14_xp_|vit_large_patch14_xp_": "parallel",
    "vit_(dwee|dlittle)_": "difference of two",
    "vit_.*_sapiens2": "share a key",
    "naflexvit_": "aspect ratio",
    "vit_so150m_patch16_reg4_map_256": "without the tokens",  # whose weights are not published
}


def read_name(name: str, theirs: torch.nn.Module) -> tuple:
    """Reads what a file of this architecture holds and states, by the name alone."""
    described = {"architecture": name, "global_pool": theirs.global_pool}
    tensors = {key: torch.zeros(()).expand(tensor.shape) for key, tensor in theirs.state_dict().items()}
    weights = read_timm(tensors, described, Path(name))
    return weights.config, weights.tensors


def describe_theirs(theirs: torch.nn.Module) -> dict:
    """Returns what no tensor shows, as timm built it."""
    block, rope = theirs.blocks[0], getattr(theirs, "rope", None)
    act, kind = getattr(block.mlp, "act", None), type(rope).__name__
    names = {"GELU": "exact", "GELUTanh": "tanh", "GeluTanh": "tanh", "QuickGELU": "quick", "SiLU": "exact"}
    rows = {"RotaryEmbeddingDinoV3": "dinov3", "RotaryEmbeddingMixed": "mixed", "NoneType": "none"}
    indexed = "eva02" if getattr(rope, "grid_indexing", "") == "ij" else "axial"
    indexed = "pe" if indexed == "axial" and getattr(rope, "temperature", 0) == 10_000 else indexed
    pool = theirs.attn_pool.num_heads if theirs.attn_pool is not None else None
    return {
        "heads": block.attn.num_heads,
        "eps": block.norm1.eps,
        "gelu": names[type(act).__name__],
        "pool": {"token": "cls", "avg": "gap", "map": "map"}[theirs.global_pool],
        "pool_heads": pool,
        "norm_at": "post" if "Post" in type(block).__name__ else "pre",
        "rope": rows.get(kind, indexed),
        "rope_grid": tuple(rope.ref_feat_shape) if getattr(rope, "ref_feat_shape", None) else None,
        "offset": getattr(rope, "grid_offset", 0),
    }


def describe_ours(config) -> dict:
    offset = 1 if config.rope == "pe" and config.prefix else 0
    return {
        "heads": config.heads,
        "eps": config.norm_eps,
        "gelu": config.gelu if config.mlp == "gelu" else "exact",
        "pool": config.pool,
        "pool_heads": (config.pool_heads or config.heads) if config.pool == "map" else None,
        "norm_at": config.norm_at,
        "rope": config.rope,
        "rope_grid": config.rope_grid,
        "offset": offset,
    }


class Count(NamedTuple):
    """A name of timm, its published weights, and the reason if it is refused."""

    name: str
    tags: int
    refused: str = ""


def list_architectures() -> list[str]:
    return [name for module in MODULES for name in timm.list_models(module=module)]


def check(name: str) -> Count:
    """Raises `AssertionError` for a model that is read as another one, or refused for another reason than in `REFUSED`."""
    tags = len(timm.list_pretrained(f"{name}.*"))
    reason = next((word for pattern, word in REFUSED.items() if re.match(pattern, name)), "")
    try:
        read_arguments({"architecture": name}, VIT, Path(name))
        with torch.device("meta"):
            theirs = timm.create_model(name, depth=2)
        config, tensors = read_name(name, theirs)
    except CheckpointError as error:
        if not reason or reason not in error.what:
            raise
        return Count(name, tags, reason)
    assert not reason, name
    needed = {key: tensor.shape for key, tensor in sketch(config).state_dict().items()}
    assert needed == {key: tensor.shape for key, tensor in tensors.items()}, name
    assert describe_ours(config) == describe_theirs(theirs), name
    return Count(name, tags)


FAMILIES = {
    "NaFlex": "naflex",
    "DINOv3, EUPE, LingBot": "_dinov3|_lingbot",
    "DINOv2, TIPSv2": "dinov2|tipsv2",
    "SigLIP, SigLIP 2": "siglip",
    "EVA, EVA-02": "^eva",
    "CLIP, OpenCLIP, MetaCLIP, DFN": "_clip_",
    "Perception Encoder": "vit_pe_",
    "AIMv2": "aimv2",
    "RADIO, InternViT": "radio|intern300m",
    "BEiT-3": "beit3",
    "rope-vit, SBB": "_rope_|_reg\\d_(gap|map)_",
    "Sapiens 2": "sapiens2",
    "DeiT, DeiT III": "^deit",
    "AugReg, MAE, DINO, I-JEPA and others": "",
}


def main() -> None:
    read, refused = Counter[str](), Counter[str]()
    reasons: dict[str, set[str]] = {}
    for count in map(check, list_architectures()):
        family = next(title for title, pattern in FAMILIES.items() if re.search(pattern, count.name))
        (refused if count.refused else read)[family] += count.tags
        if count.refused and count.tags:
            reasons.setdefault(family, set()).add(count.refused)
    print("| family | read | refused | why |\n|---|---|---|---|")
    for family in FAMILIES:
        print(f"| {family} | {read[family]} | {refused[family]} | {'; '.join(sorted(reasons.get(family, ())))} |")
    print(f"| all | {read.total()} | {refused.total()} | |")


if __name__ == "__main__":
    main()
