"""What readers of foreign layouts share: the form of weights before a model is built, with tensors by vitrail's names and assumed
values; the grid of a table of positions; and projections that are one tensor in vitrail and several in a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.imagenet import find_imagenet
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Config, sketch
from vitrail.models.config import grid_of
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.tasks.classification.classifier import Classifier
from vitrail.tasks.task import NUMBERED
from vitrail.weights.description import build_model
from vitrail.weights.tensors import build_backbone, printable

MOST_NAMED = 5
# modules that may change the outputs of a network: a tensor of these that is not needed is an error
PARTS = re.compile(
    r"(blocks|stages|layers|patch_|pos_|norm|fc_norm|cls_|dist_|reg_|rel_pos|rope|stem|attn_pool|pre_logits|embed)"
    r"|head(_dist|\.cls|\.dist|\.fc)?\.(weight|bias)$"
)
# the first words of assumptions that a value of `Preprocessing.override` replaces
REPLACED = {"mean": ("mean",), "std": ("std",), "resize": ("resize", "crop_pct", "crop_mode")}


def leave_out(
    config: Config, tensors: Mapping[str, Tensor], *, inside: tuple[str, ...] = ()
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Returns the tensors without those beside the network of ``config``, such as a decoder, and the names of these.

    A tensor that is not needed remains, and is an error later, if it belongs to a module of the network, if its module may
    change the outputs, or if its name begins with one of ``inside``.
    """
    if config.blocks > len(tensors):
        return dict(tensors), ()
    try:
        needed = sketch(config).state_dict().keys()
    except (RuntimeError, TypeError, OverflowError):  # `build_backbone` reports a network that is too large
        return dict(tensors), ()
    modules = {name.partition(".")[0] for name in needed}
    beside = (name for name in tensors if name not in needed and name.partition(".")[0] not in modules)
    unused = tuple(name for name in beside if not PARTS.match(name) and not name.startswith(inside))
    return {name: tensor for name, tensor in tensors.items() if name not in set(unused)}, unused


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a foreign layout.

    Args:
        layout: the name of the layout.
        tensors: by vitrail's names, exactly those of a model of ``config``.
        classes: names of the outputs; None if the file has none: ImageNet's if it has as many outputs, else numbers.
        multi_label, temperature: as in `Classifier`.
        assumed: numerics and preprocessing that the file does not state, each its name and the assumed value.
        unused: foreign names of tensors that the model does not use, such as the decoder of an autoencoder.
        description: vitrail's description beside the tensors; it replaces all assumed values.
    """

    layout: str
    config: Config
    tensors: dict[str, Tensor]
    preprocessing: Preprocessing
    classes: tuple[str, ...] | None = None
    multi_label: bool = False
    temperature: float = 1.0
    assumed: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    description: Mapping[str, Any] | None = None

    def build_model(self, path: Path, log: Say, *, has_names: bool, stated: Collection[str]) -> Task:
        """Builds the model and logs what was assumed and left out.

        Args:
            path: the file or folder, for messages.
            has_names: whether class names are given elsewhere, so that missing ones are not reported.
            stated: the values of preprocessing that are given elsewhere, so that they are not reported either.

        Raises:
            CheckpointError: lists the tensors that do not fit.
        """
        if self.description is not None:
            return build_model(self.description, self.tensors, path)
        backbone, outputs = build_backbone(self.config, self.tensors, path), self.config.classes
        names, note = self.classes, {}
        if names is None:
            imagenet = find_imagenet(outputs)
            names = imagenet.names if imagenet else tuple(map(str, range(outputs)))
            note = {NUMBERED: True} if outputs and not imagenet else {}
            if outputs and not has_names:
                given = "its outputs are numbered from 0 (--classes FILE names them)"
                if imagenet:
                    given = f"its {outputs:,} outputs get those of {imagenet.name} (--classes FILE gives others)"
                log(f"assumed  {path.name} carries no class names: {given}")
        replaced = {each for name in stated for each in REPLACED[name]}
        if assumed := [each for each in self.assumed if each.split()[0] not in replaced]:
            log(f"assumed  {self.layout}'s layout: {', '.join(assumed)}")
        if self.unused:
            more = f" and {len(self.unused) - MOST_NAMED} more" if len(self.unused) > MOST_NAMED else ""
            shown = ", ".join(printable(name, 200) for name in sorted(self.unused)[:MOST_NAMED])
            log(f"unused   {len(self.unused)} tensors: {shown}{more}")
        return Classifier(
            backbone,
            names,
            self.preprocessing,
            multi_label=self.multi_label,
            temperature=self.temperature,
            provenance={"weights": path.name, "layout": self.layout, **note},
        )


@dataclass(frozen=True)
class ReadModel:
    """A model, the layout that it was read from, and the names of tensors in the file that it does not use."""

    model: Task
    layout: str
    unused: tuple[str, ...] = ()


Grid = tuple[int, int]  # rows, columns


def choose_grid(
    fits: Callable[[Grid], bool],
    near: Grid,
    patch: Sequence[int],
    arguments: Mapping[str, Any],
    where: Path,
    about: str,
) -> Grid:
    """Returns the rows and columns of patches that a table of positions is for: as stated by ``grid`` or ``img_size``, or
    else those of the preprocessing's ``input_size`` or of the requested ``image_size`` if these fit, or else a square.

    Args:
        fits: whether a grid can have this table.
        near: the most square of these grids.
        patch: height and width of a patch in pixels.
        about: the table in words, for messages.

    Raises:
        CheckpointError: the stated grid does not fit; or none is stated, and a square does not fit.
    """
    sides, remedy = (patch[0], patch[1]), f"give its rows and columns of patches, such as --grid {near[0]}x{near[1]}"
    remedy += f", or {near[1]}x{near[0]}" if near[0] != near[1] else ""
    remedy += " (for a training, to `vitrail convert` first)"
    stated, size = arguments.get("grid"), arguments.get("img_size")
    if stated is None and size is not None:
        stated = (max(size[0] // sides[0], 1), max(size[1] // sides[1], 1))
    if stated is not None:
        if fits(stated):
            return stated
        has = "the grid has" if size is None or arguments.get("grid") else f"images of {size[0]}x{size[1]} have"
        what = f"{where} has {about}, but {has} {stated[0]}x{stated[1]} patches"
        raise CheckpointError(what, remedy)
    for size in (arguments.get("input_size"), arguments.get("image_size")):
        if size is not None and fits(grid := grid_of(size, sides)):
            return grid
    if near[0] == near[1] and fits(near):
        return near
    raise CheckpointError(f"{where} has {about}, which is not a square grid", remedy)


def factorise(number: int) -> Grid:
    """Returns the most nearly equal factors of a number, the smaller one first."""
    first = next((first for first in range(math.isqrt(max(number, 1)), 1, -1) if number % first == 0), 1)
    return first, max(number, 1) // first


def most_likely(counts: Sequence[int]) -> Grid:
    """Returns the most square grid of one of several numbers of patches: of the first that is a square, or else of the first
    that has a grid of at most 1 to 4, or else of the first.
    """
    grids = [factorise(count) for count in counts]
    return min(grids, key=lambda grid: (grid[0] != grid[1], grid[1] > 4 * grid[0]))


def check_grid_is_open(stated: object, *, has_table: bool, path: Path) -> None:
    """Raises `ConfigError` if ``path`` states its image size, or if its network has no table of positions."""
    if not has_table:
        raise ConfigError(f"{path} has no table of positions, and a grid was given", "leave --grid out")
    if stated:
        what = f"{path} states its image size, and a grid was given"
        raise ConfigError(what, "leave --grid out; --crop gives another input size")


def describe_grid(config: Config) -> str:
    """Returns the assumption of a grid of patches in words."""
    (height, width), (rows, columns) = config.image_size, config.grid
    return f"image size {height}x{width}, a grid of {rows}x{columns} patches (--grid states another)"


QKV = ("q", "k", "v")
KV = ("k", "v")


def join_parts(state: Mapping[str, Tensor], parts: Sequence[str]) -> dict[str, Tensor]:
    """Joins the ``parts`` of each module into one tensor, named after all of them. Incompatible parts are kept."""
    joined: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, own, kind = _last_two(name)
        group = [state.get(f"{owner}.{part}.{kind}") for part in parts]
        if own not in parts or not _fit(group):
            joined[name] = tensor
        elif own == parts[0]:
            joined[f"{owner}.{''.join(parts)}.{kind}"] = torch.cat([piece for piece in group if piece is not None])
    return joined


def split_parts(state: Mapping[str, Tensor], parts: Sequence[str]) -> dict[str, Tensor]:
    """The inverse of `join_parts`."""
    split: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, own, kind = _last_two(name)
        if own == "".join(parts):
            split |= {f"{owner}.{part}.{kind}": piece for part, piece in zip(parts, tensor.chunk(len(parts)))}
        else:
            split[name] = tensor
    return split


def _last_two(name: str) -> tuple[str, str, str]:
    """Splits a name into module, part and parameter: ("blocks.0.attn", "q", "weight")."""
    owner, _, kind = name.rpartition(".")
    owner, _, own = owner.rpartition(".")
    return owner, own, kind


def _fit(group: Sequence[Tensor | None]) -> bool:
    kinds = {(tensor.shape[1:], tensor.dtype) for tensor in group if tensor is not None and tensor.ndim}
    return len(kinds) == 1 and all(tensor is not None and tensor.ndim for tensor in group)
