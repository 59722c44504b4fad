"""Rotary positions by the arguments of timm's ``Eva``, or by the structure of a file without them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.rope import ROPES
from vitrail.text import printable
from vitrail.weights.names import State

# arguments of timm's classes that no tensor shows
HIDDEN = frozenset(
    {"use_rot_pos_emb", "rope_type", "rope_grid_offset", "rope_grid_indexing", "rope_temperature", "rope_rotate_half"}
    | {"ref_feat_shape", "use_post_norm", "attn_pool_num_heads", "final_norm", "use_post_transformer_norm"}
    | {"rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"}
)


def find_rope(state: State, arguments: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Returns the fields of RoPE by arguments of ``Eva``, or for a bare file by the structure of the published models;
    ``rope_grid`` is "own" for that of the table of positions.
    """
    if "rope.freqs" in state:
        return {"rope": "mixed"}
    stated = arguments.get("use_rot_pos_emb")
    if stated is None and "rope_type" not in arguments:
        return _guess_rope(state)
    if stated is False:
        return {}
    kind, indexing = arguments.get("rope_type") or "cat", arguments.get("rope_grid_indexing") or "ij"
    theta, offset = float(arguments.get("rope_temperature") or 10_000), arguments.get("rope_grid_offset") or 0
    is_half, reference = bool(arguments.get("rope_rotate_half")), arguments.get("ref_feat_shape")
    if kind == "dinov3" and is_half and not offset:
        drawn = {name: arguments.get(f"{name}_coords") for name in ("rope_shift", "rope_jitter", "rope_rescale")}
        return {"rope": "dinov3", "rope_theta": None if theta == ROPES["dinov3"].theta else theta, **drawn}
    if (
        kind != "cat"
        or is_half
        or offset not in (0, 1)
        or (offset and "cls_token" not in state)
        or (offset and indexing != "xy")
    ):
        named = {name: arguments[name] for name in sorted(HIDDEN) if name in arguments}
        raise CheckpointError(
            f"{where} has rotary positions that are not supported: {printable(named, 300)}",
            "such models are not supported",
        )
    grid = (reference, reference) if isinstance(reference, int) else tuple(reference) if reference else None
    if indexing == "ij":
        row = "eva02"
    else:
        row = "pe" if theta == ROPES["pe"].theta or offset else "axial"
    return {"rope": row, "rope_theta": None if theta == ROPES[row].theta else theta, "rope_grid": grid}


def _guess_rope(state: State) -> dict[str, Any]:
    """Returns RoPE by what the published models with it have in common: DINOv3 and SBB have no bias of k."""
    has_class, has_registers, is_scaled = "cls_token" in state, "reg_token" in state, "blocks.0.ls1.gamma" in state
    has_bias = "blocks.0.attn.qkv.bias" in state
    if "pos_embed" not in state:
        if has_registers and is_scaled and not has_bias:
            return {"rope": "dinov3"} if has_class else {"rope": "eva02", "rope_grid": (16, 16)}
        return {"rope": "axial"} if has_class and is_scaled and has_bias and not has_registers else {}
    if (
        "norm_pre.weight" in state
        and ("attn_pool.latent" in state) == ("norm.weight" in state)
        and "fc_norm.weight" not in state
    ):
        return {"rope": "pe", "rope_grid": "own"}
    is_gated = len(state["blocks.0.mlp.fc1.weight"]) == 2 * state["blocks.0.mlp.fc2.weight"].shape[1]
    return {"rope": "eva02", "rope_grid": (16, 16)} if is_gated and "blocks.0.attn.q_bias" in state else {}
