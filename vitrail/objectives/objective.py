"""What all objectives share: what is trained beside the encoder, and what chance decides for a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import signature
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.errors import ConfigError, nearest
from vitrail.models import ARCHITECTURES, Backbone
from vitrail.models.tokenizer import Tokenizer

Kind = TypeVar("Kind", bound="Objective")


def configured(kind: type[Kind], encoder: Any, changes: Mapping[str, Any], **given: Any) -> Kind:
    """The objective with arguments that a person chose. Raises `ConfigError` for one that it does not have."""
    known = [name for name in list(signature(kind).parameters)[1:] if name not in given]
    for name in changes:
        if name not in known:
            raise ConfigError(f"the objective {kind.__name__} has no argument {name!r}", nearest(name, known))
    return kind(encoder, **given, **changes)


class Objective(nn.Module):
    """A loss that owns what it trains. Its forward is the training step; ``encoder`` is what is saved for use.

    The first ``views`` inputs of `forward` are normalised images (B, C, H, W), that many augmentations of the same ones; then
    come the tensors of `draw`, and whatever else the objective says. Every input has the images along its first axis. It gives
    the mean loss of the batch in fp32, and what was measured on the way: detached scalars by name.

    Args:
        encoder: a backbone, or a tokenizer where ``carried_by`` names it.

    Raises:
        ConfigError: the architecture cannot carry the objective; names those that can.
    """

    views: ClassVar[int] = 1
    forward: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    carried_by: ClassVar[Collection[str] | None] = None  # architectures that can; None is every backbone
    encoder: Any  # what ``carried_by`` says

    def __init__(self, encoder: Backbone | Tokenizer) -> None:
        super().__init__()
        config = encoder.config
        carriers = ARCHITECTURES if self.carried_by is None else self.carried_by
        if config.architecture not in carriers:
            raise ConfigError(
                f"{config.about} cannot carry the objective {type(self).__name__}",
                f"take an architecture that can: {', '.join(carriers)}",
            )
        self.encoder = encoder

    def draw(self, ids: NDArray[np.int64], size: tuple[int, int], seed: int) -> tuple[Tensor, ...]:
        """What chance decides for images of ``size`` (height, width) with these ids (B, 3): masks and noise, on the CPU.

        A function of each image's id and the seed, whatever else is in the batch.
        """
        return ()

    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Pictures (B, C, H, W) of what the objective sees and answers, by name, normalised as its inputs are; for the report."""
        return {}

    def after_step(self, share: float) -> None:
        """What follows an update of the weights; ``share`` of the run is done."""

    def layers(self) -> list[dict[str, nn.Parameter]]:
        """All parameters by depth, as `Backbone.layers` has them; those of the objective itself stand with the last."""
        groups = [{f"encoder.{name}": each for name, each in layer.items()} for layer in self.encoder.layers()]
        groups[-1] |= self._own()
        return groups

    def no_decay(self) -> set[str]:
        """Names of all that is no kernel."""
        own = {name for name, each in self._own().items() if each.ndim == 1 or not name.endswith(".weight")}
        return {f"encoder.{name}" for name in self.encoder.no_decay()} | own

    def _own(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.named_parameters() if not name.startswith("encoder.")}
