"""timm's layout of PVT v2. The names are those of `vitrail.models.pvt_v2`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.weights.timm.family import COMMON, Family, State, count_modules, count_outputs, refuse

HEADS = (1, 2, 5, 8)  # of the published sizes; they cannot be inferred from tensors
SIZES: dict[tuple[int, ...], str] = {
    (32, 2, 2, 2, 2): "b0",
    (64, 2, 2, 2, 2): "b1",
    (64, 3, 4, 6, 3): "b2",
    (64, 3, 4, 18, 3): "b3",
    (64, 3, 8, 27, 3): "b4",
    (64, 3, 6, 40, 3): "b5",
}


def read(state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any]) -> tuple[PVTv2Config, State]:
    """Infers the config, with images of 224 pixels unless the arguments state otherwise."""
    stages = range(count_modules(state, "stages."))
    first = [f"stages.{stage}.blocks.0." for stage in stages]
    widths = tuple(len(state[f"{block}attn.q.weight"]) for block in first)
    reduced = [state.get(f"{block}attn.sr.weight") for block in first]  # (D, D, R, R)
    linear = all(kernel is not None and kernel.shape[2] == 1 for kernel in reduced)
    config = PVTv2Config(
        image_size=arguments.get("input_size") or (224, 224),
        in_channels=state["patch_embed.proj.weight"].shape[1],
        classes=count_outputs(state, "head.weight"),
        widths=widths,
        depths=tuple(count_modules(state, f"stages.{stage}.blocks.") for stage in stages),
        heads=tuple(arguments.get("num_heads") or HEADS),
        mlp_ratios=tuple(len(state[f"{block}mlp.fc1.weight"]) // width for block, width in zip(first, widths)),
        reductions=tuple(
            arguments.get("sr_ratios") or (1 if kernel is None else kernel.shape[2] for kernel in reduced)
        ),
        qkv_bias="stages.0.blocks.0.attn.q.bias" in state,
        linear=linear,
    )
    return config, dict(state)


def check(config: PVTv2Config) -> None:
    refuse("PVT v2", {f"patches of {config.patch_size}": config.patch_size != (4, 4)})


def arguments(config: PVTv2Config) -> dict[str, Any]:
    return {
        "in_chans": config.in_channels,
        "embed_dims": list(config.widths),
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "mlp_ratios": list(config.mlp_ratios),
        "sr_ratios": list(config.reductions),
        "qkv_bias": config.qkv_bias,
        "linear": config.linear,
    }


def architecture(config: PVTv2Config) -> str:
    size = SIZES.get((config.widths[0], *config.depths), "b0")
    return f"pvt_v2_{size}_li" if config.linear and size == "b2" else f"pvt_v2_{size}"


PVT_V2 = Family(
    config=PVTv2Config,
    mark="stages.0.blocks.0.attn.kv.weight",
    needed=frozenset(["num_heads", "sr_ratios"]),
    derived=COMMON | {"embed_dims", "depths", "mlp_ratios", "linear"},
    pool="avg",
    read=read,
    check=check,
    write=lambda config, state: dict(state),
    arguments=arguments,
    architecture=architecture,
)
