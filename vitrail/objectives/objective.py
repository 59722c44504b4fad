"""The base class of all objectives: parameters next to the encoder, and the random tensors of a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import signature
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.augment.policy import LocalViews
from vitrail.errors import ConfigError, nearest
from vitrail.models import ARCHITECTURES, Backbone
from vitrail.models.tokenizer import Tokenizer

Kind = TypeVar("Kind", bound="Objective")


def configure_objective(kind: type[Kind], encoder: Any, changes: Mapping[str, Any], **given: Any) -> Kind:
    """Creates the objective with the user's arguments. Raises `ConfigError` for an unknown one."""
    own, known = kind, list(signature(kind).parameters)[1:]
    while known[-1:] == ["options"]:  # which are arguments of the base
        own = own.__mro__[1]
        known = [*known[:-1], *list(signature(own).parameters)[1:]]
    known = [name for name in known if name not in given]
    for name in changes:
        if name not in known:
            raise ConfigError(f"the objective {kind.__name__} has no argument {name!r}", nearest(name, known))
    return kind(encoder, **given, **changes)


class Objective(nn.Module):
    """A loss that owns everything it trains. Its forward is the training step; ``encoder`` is the model that is saved.

    The first ``views`` inputs of `forward` are normalised images (B, C, H, W), different augmentations of the same images;
    then the tensors of `draw`, then further inputs of the objective. The first axis of every input is the batch. It returns
    the mean loss of the batch in fp32, and measurements: detached scalars by name, or vectors, of which `summarise` takes the
    means over the images of an update.

    Args:
        encoder: a backbone, or a tokenizer if ``carried_by`` contains it.

    Raises:
        ConfigError: the objective does not support the architecture; the message lists those that it does.
    """

    about: ClassVar[str] = ""  # what it learns from images without labels, for the report
    views: int = 1
    local: LocalViews | None = None  # those of the views that are smaller
    evaluated: ClassVar[str] = (
        "encoder"  # the module whose weights are evaluated and saved in place of those of ``encoder``
    )
    can_collapse: ClassVar[bool] = False  # whether `explain_collapse` is asked during the run
    forward: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    carried_by: ClassVar[Collection[str] | None] = None  # supported architectures; None means every backbone
    encoder: Any  # a model of an architecture in ``carried_by``

    def __init__(self, encoder: Backbone | Tokenizer) -> None:
        super().__init__()
        config = encoder.config
        carriers = ARCHITECTURES if self.carried_by is None else self.carried_by
        if config.architecture not in carriers:
            raise ConfigError(
                f"the objective {type(self).__name__} does not support {config.about}",
                f"choose one of these architectures: {', '.join(carriers)}",
            )
        self.encoder = encoder

    def draw(self, ids: NDArray[np.int64], size: tuple[int, int], seed: int) -> tuple[Tensor, ...]:
        """Draws the random tensors for images of ``size`` (height, width) with these ids (B, 3): masks and noise, on the CPU.

        Those of an image are a function of its id and the seed, independent of the rest of the batch.
        """
        return ()

    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Returns images (B, C, H, W) of the inputs and predictions by name, normalised like the inputs; for the report."""
        return {}

    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Called once in an update of an objective that measures vectors, before the weights move.

        Takes the means of the loss and of all measurements over the images of the update, of all micro-steps and ranks; returns
        the scalars to record.
        """
        return means

    def explain_collapse(self, means: Mapping[str, float], share: float) -> str | None:
        """Returns a sentence on the collapse that recorded ``means`` show after ``share`` of the run; None if there is none."""
        return None

    @classmethod
    def count_views(cls, changes: Mapping[str, Any]) -> float:
        """Returns the pixels that are encoded with a gradient, relative to an image, with ``changes`` of the arguments."""
        return cls.views

    def after_step(self, share: float) -> None:
        """Called after each update of the weights; ``share`` is the completed fraction of the run."""

    def layers(self) -> list[dict[str, nn.Parameter]]:
        """Returns all parameters by depth, as in `Backbone.layers`; those of the objective itself are in the last group."""
        groups = [
            {f"encoder.{name}": parameter for name, parameter in layer.items()} for layer in self.encoder.layers()
        ]
        groups[-1] |= self._own_parameters()
        return groups

    def no_decay(self) -> set[str]:
        """Names of all parameters that are not kernels."""
        own = {name for name, p in self._own_parameters().items() if p.ndim == 1 or not name.endswith(".weight")}
        return {f"encoder.{name}" for name in self.encoder.no_decay()} | own

    def _own_parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if not name.startswith("encoder.")}
