"""What tasks that answer for places of an image have in common: targets that lie in it, and a head on feature maps."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.data.augment.placement import Frames, Placement
from vitrail.data.sources.annotations import Annotations, Objects
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.models import Config
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.targets import TargetKind
from vitrail.tasks.task import Task

WIDTHS = {192: 128, 768: 256}  # of heads, by the largest width of the backbone that they are for
WIDEST = 512
MAPS = ("last", "four")  # of a network without stages, that a head reads


@dataclass(frozen=True)
class PlacedTargets(TargetKind):
    """Targets that lie in the picture."""

    annotations: type[Annotations]  # how data hold them
    needs: str  # what they are, for messages

    def check(self, source: Source, task: str) -> None:
        targets = source.targets
        of_objects = isinstance(targets, Objects) and issubclass(self.annotations, Objects)
        if of_objects and type(targets) is not self.annotations:
            what = f"the data were opened for the task {targets.task}, and {task} needs {self.needs}"
            raise DataError(what, f'give their path, or open them with open_data(..., task="{task}")')
        if not isinstance(targets, self.annotations):
            has = f"classes of {source.counted}" if source.labelled else "no labels"
            verb = {"objects": "detect", "pixels": "segment"}.get(source.counted, "classify")
            what = f"the data have {has}, and {task} needs {self.needs}"
            raise DataError(what, f"give annotated data, or train with --task {verb}")


def check_placed(placement: Placement) -> None:
    """Raises `ConfigError` for images that a transform of the user's own made, which targets cannot follow."""
    if not math.isfinite(placement.matrices.sum()):
        what = "boxes and masks cannot follow a transform of your own, which does not say where its pixels come from"
        raise ConfigError(what, "leave the transform out; the settings augment.* change images and targets alike")


class DenseTask(Task):
    """A task with ``neck`` and ``head`` of its own on `Backbone.dense_maps`; the backbone has no head.

    Args:
        maps: those that the head reads of a network without stages: of the ``last`` block or of ``four``, `Config.even_layers`.
            Of a pyramid it reads all stages. Their indices are ``dense_layers``.

    Raises:
        ConfigError: as `Task` has it; a backbone that drops patches, whose maps would have holes; four maps of a pyramid.
    """

    has_own_head = True
    draws_answers = True
    resize = "fit"

    def __init__(self, *arguments: Any, maps: str = "last", **named: Any) -> None:
        super().__init__(*arguments, **named)
        if dropped := getattr(self.config, "patch_dropout", 0.0):
            what = f"patch_dropout is {dropped:g}, and the task {self.name} needs every patch of an image"
            raise ConfigError(what, "set patch_dropout=0: --set 'model.changes={patch_dropout: 0}'")
        if maps not in MAPS:
            raise ConfigError(f"maps is {maps!r}", nearest(str(maps), MAPS))
        if maps == "four" and (stages := len(self.config.dense_layers)) > 1:
            what = f"maps is 'four', and the head reads the maps of all {stages} stages of {self.about}"
            raise ConfigError(what, "leave maps out, or choose a network without stages, such as vit-s16")
        self.maps, self.dense_layers = maps, self.config.even_layers if maps == "four" else self.config.dense_layers

    def describe(self) -> dict[str, Any]:
        # without the default, as files of versions that had no choice
        return {name: value for name, value in super().describe().items() if (name, value) != ("maps", "last")}

    def choose_levels(self, levels: Sequence[int] | None, defaults: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
        """Returns ``levels``, by default those for ``maps``. Raises `ConfigError` where they are fewer than the four maps."""
        chosen = tuple(defaults[self.maps] if levels is None else levels)
        if self.maps == "four" and len(chosen) < len(self.dense_layers):
            what = f"levels is {list(chosen)}, fewer than the {len(self.dense_layers)} maps that the head reads"
            raise ConfigError(what, f"levels = one for each map, such as {list(defaults['four'])}, or set maps=last")
        return chosen

    @abstractmethod
    def answer_maps(self, maps: list[Tensor], images: Tensor) -> Tensor:
        """Returns the outputs from `Backbone.dense_maps` of images (B, C, h, w)."""

    def forward(self, images: Tensor) -> Tensor:
        return self.answer_maps(self.backbone.dense_maps(images, self.dense_layers), images)

    @abstractmethod
    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        """Returns the outputs for one picture, as `decode` and `metric` take them with the first of ``views``, from those for its
        `Windows`, some of them after others. ``views`` are what these show; the first one shows the whole.
        """

    def find_subject(
        self, outputs: Tensor, frames: Frames, *, target: str | None = None, box: int | None = None
    ) -> Subject:
        """Returns what is explained of one image, by default its most certain object or largest class.

        Args:
            outputs: those of the image, with B = 1.
            frames: what the image shows of its picture.
            target: the class of the object or of the pixels.
            box: the number of an object among those that the model answers with, from 0.

        Raises:
            ConfigError: there is no such object, or no pixel of such a class; the task has nothing to explain.
        """
        raise ConfigError(f"answers of the task {self.name} cannot be explained", "explain a model of another task")


def choose_width(config: Config, *, most: int = WIDEST) -> int:
    """The width of a head for a network: 128 for tiny ones, 256, and for the largest plain ones 512; at most ``most``."""
    if len(config.dense_layers) > 1:
        return 256
    return min(next((width for largest, width in WIDTHS.items() if config.widths[-1] <= largest), WIDEST), most)


def read_levels(value: Any) -> tuple[int, ...]:
    """Strides in pixels, from fine to coarse. Raises `ValueError` for anything else."""
    levels = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    whole = all(type(level) is int and 1 <= level <= 1024 for level in levels)
    if not levels or not whole or list(levels) != sorted(set(levels)):
        raise ValueError(f"levels is {value!r:.40}, and not strides in pixels from fine to coarse, such as [8, 16, 32]")
    return levels


def read_number(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> Any:
    """A number in [low, high]. Raises `ValueError` for anything else."""
    kind = int if whole else (int, float)
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        number = "whole number" if whole else "number"
        raise ValueError(f"{name} is {value!r:.40}, and not a {number} from {low:g} to {high:g}")
    return value
