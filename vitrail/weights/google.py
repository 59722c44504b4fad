"""Google's layouts, an .npz of parameters with Flax's names: ViTs and hybrids of the paper, of AugReg and of
big_vision, and BiT's ResNets. Files are untrusted: nothing is unpickled, and sizes are checked before memory is allocated.

Kernels are (inputs, outputs), with a separate axis for the heads in attention. There are three generations of names: the
first numbers layers of all types together (`MlpBlock_3`), later ones each type separately (`MlpBlock_0`), and big_vision
may stack all blocks in one array (`encoderblock`) and has no position for the class token.

D width, H heads, E = D / H, M MLP width, S slots of the position table, P x Q a patch or kernel, C channels in, L blocks,
F features, K classes.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config, ViTConfig
from vitrail.models.config import STANDARDISATIONS
from vitrail.models.resnet import ResNetConfig, width_fields
from vitrail.untrusted.archives import ObjectArrayError, check_expansion, read_array_member
from vitrail.untrusted.limits import EXPANSION as MAX_EXPANSION
from vitrail.weights.description import parse_config
from vitrail.weights.layout import (
    KV,
    QKV,
    Weights,
    check_grid_is_open,
    choose_grid,
    describe_grid,
    join_parts,
    most_likely,
    split_parts,
)
from vitrail.weights.tensors import AGAIN, MOST_TENSORS, OTHER, printable, refusing_values, unreadable

Arrays = dict[str, np.ndarray]
KEEP = "keep it in vitrail's format: --to native"

# vitrail's module -> Google's later name, and the kind of its kernel
BLOCK = {
    "norm1": ("LayerNorm_0", "norm"),
    "attn.q": ("MultiHeadDotProductAttention_0/query", "into heads"),
    "attn.k": ("MultiHeadDotProductAttention_0/key", "into heads"),
    "attn.v": ("MultiHeadDotProductAttention_0/value", "into heads"),
    "attn.proj": ("MultiHeadDotProductAttention_0/out", "out of heads"),
    "norm2": ("LayerNorm_1", "norm"),
    "mlp.fc1": ("MlpBlock_0/Dense_0", "dense"),
    "mlp.fc2": ("MlpBlock_0/Dense_1", "dense"),
}
POOL = {
    "attn_pool.norm": ("MAPHead_0/LayerNorm_0", "norm"),
    **{
        f"attn_pool.{ours.removeprefix('attn.')}": (f"MAPHead_0/{theirs}", kind)
        for ours, (theirs, kind) in BLOCK.items()
        if kind != "norm"
    },
}
AROUND = {
    "patch_embed.proj": ("embedding", "convolution"),
    "norm": ("Transformer/encoder_norm", "norm"),
    "head": ("head", "dense"),
    "head.pre_logits": ("pre_logits", "dense"),
}
FIRST_NAMES = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}
PROBE = "MAPHead_0/probe"
ALL_BLOCKS = "Transformer/encoderblock/"
DEFAULT_SIDE = 224  # pixels, if positions are computed and no shape determines the size
FIRST_POSITIONS = "Transformer/posembed_input/pos_embedding"


def from_google(
    arrays: Mapping[str, np.ndarray],
    where: Path,
    config: Config | None = None,
    *,
    grid: tuple[int, int] | None = None,
    image_size: tuple[int, int] | None = None,
) -> tuple[ViTConfig | ResNetConfig, dict[str, Tensor]]:
    """Infers the config from names and shapes, with the numerics of Google's code, and converts the tensors.

    Args:
        config: the config of a description, which takes precedence.
        grid, image_size: the rows and columns of patches of the table of positions, and the image size that is asked for;
            see `choose_grid`.

    Raises:
        CheckpointError: the file is not a ViT, hybrid or ResNet, has unsupported parts, or does not match ``config``.
    """
    with refusing_values(f"the model of {where} cannot be built", OTHER):
        bit = bit_arrays(arrays)
        left = bit or _later_names(arrays, where)
        if config is None:
            config = bit_config(left) if bit else _config(left, where, {"grid": grid, "image_size": image_size})
        else:
            config = _checked(config, left, is_bit=bool(bit))
        state = dict(_tensors(left, config))
        # q of attention pooling is that of the latent
        pool = {name: tensor for name, tensor in state.items() if name.startswith("attn_pool.")}
        rest = {name: tensor for name, tensor in state.items() if name not in pool}
        state = join_parts(rest, QKV) | join_parts(pool, KV)
    if left:
        shown = printable(", ".join(sorted(left)[:5]), 200)
        what = f"{where} contains {len(left)} arrays that {config.about} does not use: {shown}"
        raise CheckpointError(what, "plain ViTs, hybrids and BiT's ResNets are supported; two-tower models are not")
    return config, state


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
    has_table = isinstance(config, ViTConfig) and config.positions == "learned"
    if grid is not None:
        check_grid_is_open(known, has_table=has_table, path=path)
    size = "x".join(map(str, config.image_size))
    placed = [describe_grid(config)] if has_table and grid is None else []
    assumed = (*_numerics(config), *placed, "mean 0.5", "std 0.5", f"resize squash to {size}")
    with refusing_values(f"the model of {path} cannot be used", OTHER):
        preprocessing = Preprocessing.paper(config.image_size, channels=config.in_channels)
    return Weights(
        layout="Google",
        config=config,
        tensors=tensors,
        preprocessing=preprocessing,
        assumed=assumed,
        description=description,
    )


def _numerics(config: ViTConfig | ResNetConfig) -> Iterator[str]:
    """Returns the numerics that cannot be inferred from the arrays."""
    if isinstance(config, ViTConfig):
        yield from ("tanh GELU", f"LayerNorm eps {config.norm_eps:g}")
    if isinstance(config, ResNetConfig) or config.stem is not None:
        eps, where = STANDARDISATIONS[config.standardise]
        yield f"kernels standardised by the rule {config.standardise!r} ({eps:g} added to the {where})"
        yield f"group norm eps {config.group_norm_eps:g}"


def to_google(config: Config, state: Mapping[str, Tensor]) -> Arrays:
    """The inverse of `from_google`: with the first names, or those of big_vision for models that only it supports.

    The file does not contain the numerics, such as the type of GELU, nor the image size of a ResNet.

    Raises:
        CheckpointError: the model has a part without a counterpart in Google's models.
    """
    if isinstance(config, ResNetConfig):
        if config.stem != "paper":
            raise CheckpointError(f"Google's BiT has no counterpart of the stem {config.stem!r}", KEEP)
        return {f"resnet/{name}": array for name, array in _written(dict(state), bit_names(config)).items()}
    config = _writable(config)
    state = split_parts(split_parts(state, QKV), KV)
    arrays = _written(state, stem_names(config))
    for ours, (theirs, kind) in _modules(config).items():
        arrays[_kernel(theirs, kind)] = _kernel_of(state.pop(f"{ours}.weight"), kind, config.heads)
        bias = _array(state.pop(f"{ours}.bias"))
        arrays[f"{theirs}/bias"] = bias.reshape(config.heads, -1) if kind == "into heads" else bias
    first = config.pool == "cls" and config.positions == "learned" and config.prefix_positions
    names = {"cls_token": "cls", "pos_embed": FIRST_POSITIONS if first else "pos_embedding", "attn_pool.latent": PROBE}
    arrays |= {names[ours]: _array(tensor) for ours, tensor in state.items()}
    if not first:
        return {f"params/{name}": array for name, array in arrays.items()}
    return {_renamed(name, FIRST_NAMES): array for name, array in arrays.items()}


def _later_names(arrays: Mapping[str, np.ndarray], where: Path) -> Arrays:
    """Returns the model's arrays by the names of big_vision, with unstacked blocks and without outer prefixes."""
    inner = [name for name in arrays if name.endswith("embedding/kernel") and "posembed" not in name]
    if not inner:
        names = printable(", ".join(list(arrays)[:4]), 200) or "nothing"
        raise CheckpointError(
            f"{where} is not a ViT or ResNet in Google's layout: it contains {names}",
            "give the .npz of a ViT or ResNet",
        )
    around = min(inner, key=len).removesuffix("embedding/kernel")  # "", "params/", "params/img/", "opt/target/"
    later = {first: name for name, first in FIRST_NAMES.items()}
    renamed: Arrays = {}
    for name, array in arrays.items():
        if not name.startswith(around):
            continue  # the optimiser's, or the other tower's
        name = _renamed(name.removeprefix(around), later)
        if name.startswith(ALL_BLOCKS):
            if array.ndim < 2 or len(array) > MOST_TENSORS:
                raise ValueError(f"{name} of {array.shape} is not a stack of blocks")
            rest = name.removeprefix(ALL_BLOCKS)
            renamed |= {_block(number) + rest: part for number, part in enumerate(array)}
        else:
            renamed["pos_embedding" if name == FIRST_POSITIONS else name] = array
    return renamed


def _renamed(name: str, names: Mapping[str, str]) -> str:
    return "/".join(names.get(part, part) for part in name.split("/"))


def _grid(slots: int, prefix: int, patch: Sequence[int], arguments: Mapping[str, Any], where: Path) -> tuple[int, int]:
    """Returns the grid of patches of a table with or without a slot for the class token."""
    return choose_grid(
        lambda grid: slots in (grid[0] * grid[1] + prefix, grid[0] * grid[1]),
        most_likely((slots - prefix, slots)),
        patch,
        arguments,
        where,
        f"{slots} positions",
    )


def _config(arrays: Arrays, where: Path, arguments: Mapping[str, Any]) -> ViTConfig:
    """Infers the config of a ViT from shapes. Raises `KeyError`, `ValueError` or `ConfigError` if that is not possible."""
    *patch, channels, width = arrays["embedding/kernel"].shape
    fields: dict[str, Any] = {"patch_size": tuple(patch), "in_channels": channels, **stem_fields(arrays, patch)}
    patch = fields["patch_size"]
    query = arrays[f"{_block(0)}MultiHeadDotProductAttention_0/query/kernel"]  # (D, H, E)
    prefix = ("cls",) if "cls" in arrays else ()
    table = arrays.get("pos_embedding")  # (1, S, D)
    if table is None:
        grid = (DEFAULT_SIDE // patch[0], DEFAULT_SIDE // patch[1])
    else:
        grid = _grid(table.shape[1], len(prefix), patch, arguments, where)
    slotted = table is None or not prefix or table.shape[1] > grid[0] * grid[1]
    head = arrays.get("head/kernel")
    depth = 1 + max(int(match[1]) for name in arrays if (match := re.search(r"/encoderblock_(\d+)/", name)))
    if depth > len(arrays):
        raise ValueError(f"there are {len(arrays)} arrays for {depth} blocks")
    return ViTConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        **fields,
        classes=0 if head is None else head.shape[-1],
        width=width,
        depth=depth,
        heads=query.shape[1],
        mlp_width=arrays[f"{_block(0)}MlpBlock_0/Dense_0/kernel"].shape[-1],
        prefix=prefix,
        pool="map" if PROBE in arrays else "cls" if prefix else "gap",
        positions="sincos2d" if table is None else "learned",
        prefix_positions=slotted,
        pre_logits="pre_logits/kernel" in arrays,
    )


def _checked(config: Config, arrays: Arrays, *, is_bit: bool) -> ViTConfig | ResNetConfig:
    """Checks a description's config against names and shapes, which determine all but the numerics and an oblong grid.

    Raises `CheckpointError`, `KeyError` or `ValueError` for differences that the shapes of tensors do not reveal.
    """
    if is_bit != isinstance(config, ResNetConfig):
        raise ValueError(f"its description is of {config.about}")
    if isinstance(config, ResNetConfig):
        return config
    config = _writable(config)
    shown = {
        "heads": arrays[f"{_block(0)}MultiHeadDotProductAttention_0/query/kernel"].shape[1],
        "stem": stem_fields(arrays, (1, 1)).get("stem"),
    }
    for name, value in shown.items():
        if getattr(config, name) != value:
            raise ValueError(f"its {name} is {value}, but {getattr(config, name)} in the description")
    return config


def _modules(config: ViTConfig) -> dict[str, tuple[str, str]]:
    """Maps each of vitrail's modules to Google's module and the kind of its kernel."""
    modules = {
        f"blocks.{block}.{ours}": (_block(block) + theirs, kind)
        for block in range(config.depth)
        for ours, (theirs, kind) in BLOCK.items()
    }
    absent = set() if config.classes else {"head"}
    absent |= set() if config.pre_logits else {"head.pre_logits"}
    around = {ours: module for ours, module in AROUND.items() if ours not in absent}
    return {**modules, **around, **(POOL if config.pool == "map" else {})}


def _block(number: int) -> str:
    return f"Transformer/encoderblock_{number}/"


def _kernel(theirs: str, kind: str) -> str:
    return f"{theirs}/{'scale' if kind == 'norm' else 'kernel'}"


def _tensors(arrays: Arrays, config: ViTConfig | ResNetConfig) -> Iterator[tuple[str, Tensor]]:
    """Removes the arrays of the model and returns them as tensors by vitrail's names."""
    names = bit_names(config) if isinstance(config, ResNetConfig) else stem_names(config)
    for ours, (theirs, kind) in names.items():
        yield ours, _weight_of(arrays.pop(theirs), kind)
    if isinstance(config, ResNetConfig):
        return
    for ours, (theirs, kind) in _modules(config).items():
        kernel, bias = arrays.pop(_kernel(theirs, kind)), arrays.pop(f"{theirs}/bias")
        yield f"{ours}.weight", _weight_of(kernel, kind)
        yield f"{ours}.bias", _tensor(bias.reshape(-1))
    if config.prefix:
        yield "cls_token", _tensor(arrays.pop("cls"))
    if config.pool == "map":
        yield "attn_pool.latent", _tensor(arrays.pop(PROBE))
    if config.positions == "learned":
        yield "pos_embed", _tensor(arrays.pop("pos_embedding"))


def _weight_of(kernel: np.ndarray, kind: str) -> Tensor:
    if kind == "convolution":
        return _tensor(kernel.transpose(3, 2, 0, 1))  # (P, Q, C, D) to (D, C, P, Q)
    if kind in ("norm", "norm of maps"):
        return _tensor(kernel.reshape(kernel.shape[-1:]))  # (D) or (1, 1, 1, D) to (D)
    if kind == "1 x 1":
        return _tensor(kernel.reshape(kernel.shape[-2:]).T)  # (F, K) or (1, 1, F, K) to (K, F)
    inputs = kernel.shape[0] * (kernel.shape[1] if kind == "out of heads" else 1)
    return _tensor(kernel.reshape(inputs, -1).T)


def _written(state: dict[str, Tensor], names: Names) -> Arrays:
    """Removes the tensors in ``names`` and returns them as arrays by Google's names."""
    return {theirs: _kernel_of(state.pop(ours), kind) for ours, (theirs, kind) in names.items()}


def _kernel_of(weight: Tensor, kind: str, heads: int = 1) -> np.ndarray:
    array = _array(weight)
    if kind == "convolution":
        return array.transpose(2, 3, 1, 0).copy()
    if kind in ("norm", "norm of maps"):
        return array if kind == "norm" else array[None, None, None]
    if kind == "1 x 1":
        return array.T.copy()[None, None]
    split = {"into heads": (-1, heads, len(array) // heads), "out of heads": (heads, -1, len(array))}
    return array.T.copy().reshape(split.get(kind, array.T.shape))


def _writable(config: Config) -> ViTConfig:
    """Returns the config of a model that Google's ViT or hybrid supports. Raises `CheckpointError`."""
    if not isinstance(config, ViTConfig):
        raise CheckpointError(f"Google's layout has no counterpart of {config.about}", KEEP)
    wrong = {
        f"the prefix {config.prefix}": config.prefix not in ((), ("cls",)),
        "a class token that is not read": config.pool != "cls" and config.prefix != (),
        "registers": config.registers > 0,
        "a norm after pooling": config.pool_norm,
        f"windows of {config.window} patches": config.window > 0,
        "layers without skips": not config.skips,
        "LayerScale": config.layer_scale is not None,
        "no bias of q, k and v": not config.qkv_bias,
        f"{config.positions} positions, {config.positions_at}": (config.positions, config.positions_at)
        not in (("learned", "stem"), ("sincos2d", "stem")),
    }
    for part, there in wrong.items():
        if there:
            raise CheckpointError(f"Google's ViT has no counterpart of {part}", KEEP)
    return config


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.kind != "f":
        raise ValueError(f"an array of weights has the type {array.dtype}")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32).copy())


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy().copy()


Names = dict[str, tuple[str, str]]  # vitrail's tensor -> Google's array, and its kind

# vitrail's module of a bottleneck -> Google's, in hybrids and in BiT
HYBRID = {
    **{f"conv{number}": f"conv{number}" for number in (1, 2, 3)},
    **{f"norm{number}": f"gn{number}" for number in (1, 2, 3)},
    "downsample.conv": "conv_proj",
    "downsample.norm": "gn_proj",
}
BIT = {
    **{f"conv{number}": f"{letter}/standardized_conv2d" for number, letter in enumerate("abc", 1)},
    **{f"norm{number}": f"{letter}/group_norm" for number, letter in enumerate("abc", 1)},
    "downsample.conv": "a/proj/standardized_conv2d",
}
# big_vision's array -> the paper's, inside and outside of bottlenecks
PAPERS = {
    **{f"{HYBRID[ours]}/kernel": f"{theirs}/kernel" for ours, theirs in BIT.items() if "conv" in ours},
    **{f"{HYBRID[ours]}/scale": f"{theirs}/gamma" for ours, theirs in BIT.items() if "norm" in ours},
    **{f"{HYBRID[ours]}/bias": f"{theirs}/beta" for ours, theirs in BIT.items() if "norm" in ours},
    "root_block/conv_root/kernel": "root_block/standardized_conv2d/kernel",
    "norm-pre-head/scale": "group_norm/gamma",
    "norm-pre-head/bias": "group_norm/beta",
    "head/kernel": "head/conv2d/kernel",
    "head/bias": "head/conv2d/bias",
}
STEM = "conv_root/kernel"
ROOT = "root_block/standardized_conv2d/kernel"
ROOTS = (ROOT, "root_block/conv_root/kernel")
HEAD = "head/conv2d/kernel"
NUMBERED = re.compile(r"(standardized_conv2d|group_norm)_\d+(?=/)")  # TensorFlow counts the layers of one kind
UNIT = re.compile(r"(block\d+)/(unit\d+)/")


def stem_fields(arrays: Mapping[str, np.ndarray], cells: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of a hybrid's config that its stem determines; none for a plain ViT.

    Args:
        cells: rows and columns of the stem's map per patch.
    """
    if STEM not in arrays:
        return {}
    *_, channels, width = arrays[STEM].shape
    stem = _depths(arrays)
    stride = 4 * 2 ** max(len(stem) - 1, 0)
    return {
        "patch_size": tuple(stride * length for length in cells),
        "in_channels": channels,
        "stem": stem,
        "stem_width": width,
    }


def stem_names(config: ViTConfig) -> Names:
    """Returns the names of all tensors of a hybrid's stem; none for a plain ViT."""
    if config.stem is None:
        return {}
    root = "stem." if config.stem else ""
    modules = {f"{root}conv": "conv_root", f"{root}norm": "gn_root"}
    modules |= _bottlenecks(config.stem, HYBRID, "block{}/unit{}/")
    names = _names(modules, scale="scale", shift="bias", kind="norm of maps")
    return {f"patch_embed.backbone.{ours}": array for ours, array in names.items()}


def bit_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of a BiT ResNet by the names of the paper's files; empty for other models."""
    plain = {name: NUMBERED.sub(r"\1", name) for name in arrays}
    roots = [name for name in plain.values() if name.endswith(ROOTS)]
    if not roots:
        return {}
    around = min(roots, key=len).rpartition("root_block/")[0]  # "resnet/", "", "params/"
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not plain[name].startswith(around):
            continue  # the optimiser's
        inner = plain[name].removeprefix(around)
        unit = match[0] if (match := UNIT.match(inner)) else ""
        rest = inner.removeprefix(unit)
        inner = unit + PAPERS.get(rest, rest)
        if inner in renamed:
            raise ValueError(f"{inner} appears twice")
        renamed[inner] = array
    return renamed


def bit_config(arrays: Mapping[str, np.ndarray]) -> ResNetConfig:
    """Infers the config from names and shapes. Raises `KeyError`, `ValueError` or `ConfigError` if that is not possible."""
    *_, channels, width = arrays[ROOT].shape
    return ResNetConfig(
        in_channels=channels,
        classes=arrays[HEAD].shape[-1] if HEAD in arrays else 0,
        depths=_depths(arrays),
        **width_fields(width),
    )


def bit_names(config: ResNetConfig) -> Names:
    """Returns the names of all tensors of a BiT ResNet."""
    modules = {"stem.conv": "root_block/standardized_conv2d", "norm": "group_norm"}
    modules |= _bottlenecks(config.depths, BIT, "block{}/unit{:02d}/")
    names = _names(modules, scale="gamma", shift="beta", kind="norm")
    if config.classes:
        names |= {"head.weight": (HEAD, "1 x 1"), "head.bias": ("head/conv2d/bias", "norm")}
    return names


def _depths(arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Returns the number of units of each block. They are counted, so that large numbers in names have no effect."""
    units: dict[str, set[str]] = defaultdict(set)
    for name in arrays:
        if match := UNIT.match(name):
            units[match[1]].add(match[2])
    blocks = [f"block{number}" for number in range(1, len(units) + 1)]
    if units.keys() != set(blocks):
        raise ValueError(f"its blocks are {', '.join(sorted(units))}")
    return tuple(len(units[block]) for block in blocks)


def _bottlenecks(depths: Sequence[int], modules: Mapping[str, str], owner: str) -> dict[str, str]:
    """Maps vitrail's modules of all bottlenecks to Google's. The first of a stage has a projection shortcut."""
    return {
        f"stages.{stage}.blocks.{block}.{ours}": owner.format(stage + 1, block + 1) + theirs
        for stage, depth in enumerate(depths)
        for block in range(depth)
        for ours, theirs in modules.items()
        if block == 0 or "downsample" not in ours
    }


def _names(modules: Mapping[str, str], *, scale: str, shift: str, kind: str) -> Names:
    """Returns the tensors of convolutions without bias, and of norms, whose arrays have this ``kind``."""
    names: Names = {}
    for ours, theirs in modules.items():
        if "norm" in ours:
            names |= {f"{ours}.weight": (f"{theirs}/{scale}", kind), f"{ours}.bias": (f"{theirs}/{shift}", kind)}
        else:
            names[f"{ours}.weight"] = (f"{theirs}/kernel", "convolution")
    return names


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
            if len(members) > MOST_TENSORS:
                raise CheckpointError(f"{path} holds {len(members):,} arrays", f"up to {MOST_TENSORS:,} are read")
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
