"""Google's layouts, an .npz of parameters with Flax's names: ViTs and hybrids of the paper, of AugReg and of
big_vision, and BiT's ResNets. Files are untrusted: nothing is unpickled, and sizes are checked before memory is allocated.

Kernels are (inputs, outputs), with a separate axis for the heads in attention. There are three generations of names: the
first numbers layers of all types together (`MlpBlock_3`), later ones each type separately (`MlpBlock_0`), and big_vision
may stack all blocks in one array (`encoderblock`) and has no position for the class token.

D width, H heads, E = D / H, P x Q a patch or kernel, C channels in, F features, K classes.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config, ViTConfig
from vitrail.models.resnet import ResNetConfig
from vitrail.text import printable
from vitrail.untrusted.archives import ObjectArrayError, check_expansion, read_array_member
from vitrail.untrusted.limits import EXPANSION as MAX_EXPANSION
from vitrail.weights.blocks import find_other_parts
from vitrail.weights.description import parse_config
from vitrail.weights.layout import KEEP, Weights, describe_numerics, refuse
from vitrail.weights.names import QKV, Names, State, invert, join_parts, nest, rename, rename_with, split_parts
from vitrail.weights.shapes import STEM, check_grid_allowed, describe_grid, resnet_fields, vit_fields
from vitrail.weights.tensors import AGAIN, MAX_TENSORS, OTHER, refusing_values, unreadable

Arrays = dict[str, np.ndarray]


def _with_parameters(modules: Names, scale: str = "scale", shift: str = "bias") -> dict[str, str]:
    """Returns the table of the parameters of modules. Those of norms are called ``scale`` and ``shift``."""
    return {
        f"{ours}.{parameter}": f"{theirs}/{name}"
        for ours, theirs in modules.items()
        for parameter, name in zip(("weight", "bias"), (scale, shift) if "norm" in ours else ("kernel", "bias"))
    }


ATTENTION = {"q": "query", "k": "key", "v": "value", "proj": "out"}
MLP = {"fc1": "Dense_0", "fc2": "Dense_1"}
BOTTLENECK = {
    **{f"conv{number}": f"conv{number}" for number in (1, 2, 3)},
    **{f"norm{number}": f"gn{number}" for number in (1, 2, 3)},
    "downsample.conv": "conv_proj",
    "downsample.norm": "gn_proj",
}
BIT_BOTTLENECK = {
    **{f"conv{number}": f"{letter}/standardized_conv2d" for number, letter in enumerate("abc", 1)},
    **{f"norm{number}": f"{letter}/group_norm" for number, letter in enumerate("abc", 1)},
    "downsample.conv": "a/proj/standardized_conv2d",
}


def _name_vit(attention: str, norm: str, mlp: str, positions: str) -> dict[str, str]:
    """Returns the table of a ViT, plain or hybrid, by one generation's names of modules in its blocks."""
    branches = {**nest("attn.", f"{attention}/", ATTENTION), **nest("mlp.", f"{mlp}/", MLP)}
    block = {"norm1": "LayerNorm_0", "norm2": norm, **branches}
    modules = {
        f"{STEM}conv": "conv_root",  # without stages
        f"{STEM}norm": "gn_root",
        f"{STEM}stem.conv": "conv_root",
        f"{STEM}stem.norm": "gn_root",
        **nest(f"{STEM}stages.{{}}.blocks.{{}}.", "block{1}/unit{1}/", BOTTLENECK),
        "patch_embed.proj": "embedding",
        **nest("blocks.{}.", "Transformer/encoderblock_{}/", block),
        "norm": "Transformer/encoder_norm",
        **nest("attn_pool.", "MAPHead_0/MultiHeadDotProductAttention_0/", ATTENTION),
        "attn_pool.norm": "MAPHead_0/LayerNorm_0",
        **nest("attn_pool.mlp.", "MAPHead_0/MlpBlock_0/", MLP),
        "head.pre_logits": "pre_logits",
        "head": "head",
    }
    single = {"cls_token": "cls", "pos_embed": positions, "attn_pool.latent": "MAPHead_0/probe"}
    return single | _with_parameters(modules)


# vitrail's tensor -> Google's array
FIRST = _name_vit(
    "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3", "Transformer/posembed_input/pos_embedding"
)
LATER = _name_vit("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0", "pos_embedding")
UNIT = "stages.{}.blocks.{}.", "block{1}/unit{01}/"
BIT = _with_parameters(
    {
        "stem.conv": "root_block/standardized_conv2d",
        **nest(*UNIT, BIT_BOTTLENECK),
        "norm": "group_norm",
        "head": "head/conv2d",
    },
    "gamma",
    "beta",
)
BIT_LATER = _with_parameters(
    {"stem.conv": "root_block/conv_root", **nest(*UNIT, BOTTLENECK), "norm": "norm-pre-head", "head": "head"}
)
# first layers, by which a network is found in a checkpoint -> its table for reading
VIT_NAMES, BIT_NAMES = invert(FIRST) | invert(LATER), invert(BIT) | invert(BIT_LATER)
ROOTS = ("root_block/standardized_conv2d/kernel", "root_block/conv_root/kernel")
FIRST_LAYERS = {"embedding/kernel": VIT_NAMES, **dict.fromkeys(ROOTS, BIT_NAMES)}
NUMBERED = re.compile(r"(standardized_conv2d|group_norm)_\d+(?=/)")  # TensorFlow counts the layers of one kind
ALL_BLOCKS = "Transformer/encoderblock/"
PARTS = QKV | {"attn_pool": "kv"}  # q of attention pooling is that of the latent
IN_HEADS = re.compile(r"attn(_pool)?\.([qkv]\.|proj\.weight)")


def read_google(
    arrays: Mapping[str, np.ndarray],
    path: Path,
    description: Mapping[str, Any] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Weights:
    """Parses arrays. Everything but the weights is as in the paper's code, or as in ``description`` from the file beside
    them. Raises as `from_google`, and `ConfigError` for a grid if the description states it or the model has none.
    """
    known = None if description is None else parse_config(description, path)
    config, tensors = from_google(arrays, path, known, grid=grid, image_size=image_size)
    has_table = getattr(config, "positions", None) == "learned"
    if grid is not None:
        check_grid_allowed(known, has_table=has_table, path=path)
    size = "x".join(map(str, config.image_size))
    placed = [describe_grid(config)] if has_table and grid is None else []
    numerics = describe_numerics(config, "gelu", "norm_eps")
    with refusing_values(f"the model of {path} cannot be used", OTHER):
        preprocessing = Preprocessing.paper(config.image_size, channels=config.in_channels)
    return Weights(
        layout="Google",
        config=config,
        tensors=tensors,
        preprocessing=preprocessing,
        assumed=(*numerics, *placed, "mean 0.5", "std 0.5", f"resize squash to {size}"),
        description=description,
    )


def from_google(
    arrays: Mapping[str, np.ndarray],
    where: Path,
    known: Config | None = None,
    *,
    grid: tuple[int, int] | None = None,
    image_size: tuple[int, int] | None = None,
) -> tuple[ViTConfig | ResNetConfig, State]:
    """Infers the config from names and shapes, with the numerics of Google's code, and converts the tensors.

    ``known`` is the config of a description, and ``grid`` and ``image_size`` are those of `choose_grid`.

    Raises:
        CheckpointError: the file is not a ViT, hybrid or ResNet, or has unsupported parts.
    """
    with refusing_values(f"the model of {where} cannot be built", OTHER):
        inner, names = _find_network(arrays, where)
        renamed = rename(inner, names)
        if not any(name.startswith(f"{STEM}stages.") for name in renamed):
            renamed = rename(renamed, {f"{STEM}stem.": STEM})
        strange = sorted(renamed.keys() & inner.keys())
        split = {name: _to_tensor(name, array) for name, array in renamed.items() if name not in inner}
        state = join_parts(split, PARTS)
        heads: Any = None if names is BIT_NAMES else renamed["blocks.0.attn.q.weight"].shape[1]  # (D, H, E)
        config: Any = known
        if known is not None:
            if isinstance(known, ResNetConfig) != (names is BIT_NAMES):
                raise ValueError(f"its description is of {known.about}")
            if heads != getattr(known, "heads", None):
                raise ValueError(f"its heads is {heads}, but {config.heads} in the description")
        elif names is BIT_NAMES:
            config = ResNetConfig(**resnet_fields(state))
        else:
            fields = vit_fields(state, where, {"grid": grid, "image_size": image_size})
            pool = "map" if "attn_pool.latent" in state else "cls" if fields["prefix"] else "gap"
            config = ViTConfig(**fields, heads=heads, pool=pool)
    if strange:
        shown = printable(", ".join(strange[:5]), 200)
        what = f"{where} contains {len(strange)} arrays that {config.about} does not use: {shown}"
        raise CheckpointError(what, "plain ViTs, hybrids and BiT's ResNets are supported; two-tower models are not")
    return config, state


def _find_network(arrays: Mapping[str, np.ndarray], where: Path) -> tuple[Arrays, Names]:
    """Returns the arrays of the network with unstacked blocks and without outer prefixes, and the table of their names."""
    plain = rename_with(arrays, lambda name: NUMBERED.sub(r"\1", name))
    found = [
        (name.removesuffix(first), names)
        for name in plain
        for first, names in FIRST_LAYERS.items()
        if name.endswith(first) and "posembed" not in name
    ]
    if not found:
        shown = printable(", ".join(list(arrays)[:4]), 200) or "nothing"
        what = f"{where} is not a ViT or ResNet in Google's layout: it contains {shown}"
        raise CheckpointError(what, "give the .npz of a ViT or ResNet")
    around, names = min(found, key=lambda each: len(each[0]))  # "", "params/", "params/img/", "opt/target/", "resnet/"
    # other arrays are the optimiser's, or the other tower's
    inner = {name.removeprefix(around): array for name, array in plain.items() if name.startswith(around)}
    for name in [name for name in inner if name.startswith(ALL_BLOCKS)]:
        stacked, rest = inner.pop(name), name.removeprefix(ALL_BLOCKS)
        if stacked.ndim < 2 or len(stacked) > MAX_TENSORS:
            raise ValueError(f"{name} of {stacked.shape} is not a stack of blocks")
        inner |= {f"Transformer/encoderblock_{number}/{rest}": part for number, part in enumerate(stacked)}
    return inner, names


def _to_tensor(name: str, array: np.ndarray) -> Tensor:
    """Converts an array to the tensor with vitrail's ``name``."""
    if array.dtype.kind != "f":
        raise ValueError(f"an array of weights has the type {array.dtype}")
    tensor = torch.from_numpy(array.astype(np.float32))
    if name.endswith(".bias"):
        return tensor.flatten()
    if not name.endswith(".weight"):
        return tensor
    if "norm" in name:
        return tensor.reshape(tensor.shape[-1:])  # (D) or (1, 1, 1, D)
    if tensor.ndim == 4:
        kernel = tensor.permute(3, 2, 0, 1).contiguous()  # (P, Q, C, D) to (D, C, P, Q)
        return kernel.flatten(1) if name == "head.weight" else kernel
    matrix = tensor.flatten(0, -2) if ".proj." in name else tensor.flatten(1)  # (H, E, D) to (D, D), or (D, H, E)
    return matrix.T.contiguous()


def to_google(config: Config, state: Mapping[str, Tensor]) -> Arrays:
    """The inverse of `from_google`: with the first names, or those of big_vision for models that only it supports.

    The file does not contain the numerics, such as the type of GELU, nor the image size of a ResNet.

    Raises:
        CheckpointError: the model has a part without a counterpart in Google's models.
    """
    if isinstance(config, ResNetConfig):
        refuse("Google's BiT", {f"the stem {config.stem!r}": config.stem != "paper"})
        names, around = BIT, "resnet/"
    elif isinstance(config, ViTConfig):
        _check_writable(config)
        is_first = config.pool == "cls" and config.positions == "learned" and config.prefix_positions
        names, around = (FIRST, "") if is_first else (LATER, "params/")
    else:
        raise CheckpointError(f"Google's layout has no counterpart of {config.about}", KEEP)
    arrays = {name: _to_array(name, tensor, config) for name, tensor in split_parts(state, PARTS).items()}
    return {f"{around}{name}": array for name, array in rename(arrays, names).items()}


def _check_writable(config: ViTConfig) -> None:
    wrong = {
        f"the prefix {config.prefix}": config.prefix not in ((), ("cls",)),
        "a class token that is not read": config.pool != "cls" and config.prefix != (),
        "registers": config.registers > 0,
        "a norm after pooling": config.pool_norm,
        f"windows of {config.window} patches": config.window > 0,
        "layers without skips": not config.skips,
        "LayerScale": config.layer_scale is not None,
        **find_other_parts(config),
        f"{config.positions} positions, {config.positions_at}": (config.positions, config.positions_at)
        not in (("learned", "stem"), ("sincos2d", "stem")),
    }
    refuse("Google's ViT", wrong)


def _to_array(name: str, tensor: Tensor, config: Any) -> np.ndarray:
    """The inverse of `_to_tensor`."""
    array = tensor.detach().float().cpu().numpy()
    if array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    elif name.startswith(STEM):
        array = array[None, None, None]  # norms of maps
    elif name == "head.weight" and isinstance(config, ResNetConfig):
        array = array.T[None, None]
    elif match := IN_HEADS.search(name):
        *inputs, outputs = array.T.shape
        heads = (config.heads, -1)
        array = array.T.reshape((*heads, outputs) if match[2] == "proj.weight" else (*inputs, *heads))
    elif array.ndim == 2:
        array = array.T
    return array.copy()


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an .npz file by name. bf16, which NumPy does not support, is converted to fp32.

    Raises:
        CheckpointError: the file is missing or damaged, holds objects, or declares more data than it has.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise CheckpointError(f"{path} contains two arrays of the same name", AGAIN)
            if len(members) > MAX_TENSORS:
                raise CheckpointError(f"{path} holds {len(members):,} arrays", f"up to {MAX_TENSORS:,} are read")
            check_expansion(archive, path.stat().st_size, MAX_EXPANSION)
            return {name: _read(archive, member, path) for name, member in members.items()}
    except CheckpointError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # zipfile and NumPy's header parser raise many types
        raise CheckpointError(f"{path} is not a valid .npz file: {printable(error, 200)}", AGAIN) from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    try:
        array = read_array_member(archive, member)
    except ObjectArrayError as error:
        what = f"{path}: {printable(member.filename)} holds objects, not numbers"
        raise CheckpointError(what, "objects are never unpickled; give an .npz of weights") from error
    if array.dtype != np.dtype("V2"):
        return array
    # JAX saves bf16 as two raw bytes
    return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def to_npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of an .npz file. They depend on the arrays only, not on the time."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                npy.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    return whole.getvalue()
