"""What readers and writers of foreign layouts share: the form of weights before a model is built, with tensors by vitrail's names
and assumed values, and the refusal of what a layout cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.data.imagenet import find_imagenet
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config, sketch
from vitrail.models.config import STANDARDISATIONS
from vitrail.models.rope import is_rotary
from vitrail.runtime.progress import LogFunction
from vitrail.tasks import Task
from vitrail.tasks.classification.classifier import Classifier
from vitrail.tasks.task import NUMBERED
from vitrail.text import printable
from vitrail.weights.description import build_model
from vitrail.weights.tensors import build_backbone

MAX_NAMED = 5
KEEP = "keep it in vitrail's format: --to native"
# modules that may change the outputs of a network: a tensor of these that is not needed is an error
PARTS = re.compile(
    r"(blocks|stages|layers|patch_|pos_|norm|ln_|fc_norm|cls_|dist_|reg_|rel_pos|rope|stem|attn_pool|pre_logits|embed)"
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
    without = set(unused)
    return {name: tensor for name, tensor in tensors.items() if name not in without}, unused


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
        task, own_classes: of another task than classification, the fields of a description that are its own, and the number of
            its classes.
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
    task: Mapping[str, Any] | None = None
    own_classes: int = 0

    @property
    def outputs(self) -> int:
        return self.config.classes or self.own_classes

    def build_model(
        self, path: Path, log: LogFunction, *, has_names: bool, stated: Collection[str], name: str = ""
    ) -> Task:
        """Builds the model and logs what was assumed and left out.

        Args:
            path: the file or folder, for errors.
            has_names: whether class names are given elsewhere, so that missing ones are not reported.
            stated: the values of preprocessing that are given elsewhere, so that they are not reported either.
            name: of the weights, for the log and the model's provenance; by default that of the file or folder.

        Raises:
            CheckpointError: lists the tensors that do not fit.
        """
        if self.description is not None:
            return build_model(self.description, self.tensors, path)
        backbone, outputs = None if self.task else build_backbone(self.config, self.tensors, path), self.outputs
        names, note, name = self.classes, {}, name or path.name
        if names is None:
            imagenet = find_imagenet(outputs)
            names = imagenet.names if imagenet else tuple(map(str, range(outputs)))
            note = {NUMBERED: True} if outputs and not imagenet else {}
            if outputs and not has_names:
                given = "its outputs are numbered from 0 (--classes FILE names them)"
                if imagenet:
                    given = f"its {outputs:,} outputs get those of {imagenet.name} (--classes FILE gives others)"
                log(f"assumed  {name} carries no class names: {given}")
        replaced = {each for name in stated for each in REPLACED[name]}
        if assumed := [each for each in self.assumed if each.split()[0] not in replaced]:
            log(f"assumed  {self.layout}'s layout: {', '.join(assumed)}")
        if self.unused:
            more = f" and {len(self.unused) - MAX_NAMED} more" if len(self.unused) > MAX_NAMED else ""
            shown = ", ".join(printable(name, 200) for name in sorted(self.unused)[:MAX_NAMED])
            log(f"unused   {len(self.unused)} tensors: {shown}{more}")
        provenance = {"weights": name, "layout": self.layout, **note}
        if backbone is None:
            network = {"architecture": self.config.architecture, "config": self.config.to_dict()}
            shown = {"preprocessing": self.preprocessing.to_dict(), "classes": list(names), "provenance": provenance}
            return build_model({**(self.task or {}), **network, **shown}, self.tensors, path)
        return Classifier(
            backbone,
            names,
            self.preprocessing,
            multi_label=self.multi_label,
            temperature=self.temperature,
            provenance=provenance,
        )


class ReadModel(NamedTuple):
    """A model, the layout that it was read from, and the names of tensors in the file that it does not use."""

    model: Task
    layout: str
    unused: tuple[str, ...] = ()


def describe_numerics(config: Any, *names: str) -> list[str]:
    """Returns numerics that no tensor shows in words: of ``gelu``, ``norm_eps`` and ``heads`` those with ``names``; of a ViT with
    rotary positions or a norm before its blocks ``rope`` and ``pool``; and those of a stem of convolutions.
    """
    words = {"gelu": "{} GELU", "norm_eps": "LayerNorm eps {:g}", "heads": "{} heads"}
    rotary = is_rotary(config)
    words |= {"rope": "rotary positions {!r}"} if rotary else {}
    words |= {"pool": "pooling {!r}"} if rotary or getattr(config, "pre_norm", False) else {}
    lines = [words[name].format(getattr(config, name)) for name in names if name in words and hasattr(config, name)]
    if getattr(config, "stem", None) is not None:
        eps, where = STANDARDISATIONS[config.standardise]
        lines.append(f"kernels standardised by the rule {config.standardise!r} ({eps:g} added to the {where})")
        lines.append(f"group norm eps {config.group_norm_eps:g}")
    return lines


def is_cut(config: Config) -> bool:
    """Whether images are not whole patches."""
    return any(side % patch for side, patch in zip(config.image_size, config.patch_size))


def refuse(whose: str, wrong: Mapping[str, bool]) -> None:
    """Raises `CheckpointError` for the first part of a model that has no counterpart in ``whose`` layout."""
    if part := next((part for part, there in wrong.items() if there), None):
        raise CheckpointError(f"{whose} has no counterpart of {part}", KEEP)
