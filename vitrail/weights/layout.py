"""What every foreign layout is read into before it becomes a model: tensors by our names, and what the file leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.models import Config
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.tasks.classification import Classifier
from vitrail.weights.description import described
from vitrail.weights.tensors import filled_backbone

MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Foreign weights in our terms.

    Args:
        layout: whose it is, in a word.
        tensors: by our names, exactly those of a model of ``config``.
        classes: names of the outputs; None where the file carries none.
        multi_label, temperature: as `Classifier` has them.
        assumed: each numeric or step of preprocessing that the file does not state, with the value it was given.
        unused: foreign names of tensors that have no place in the model, such as the decoder of an autoencoder.
        description: what vitrail wrote beside them, which holds instead of all that is assumed.
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

    def classifier(self, path: Path, log: Say, *, named: bool) -> Task:
        """The model, saying what was assumed and left out.

        Args:
            path: where it comes from.
            named: the outputs get their names elsewhere, so that none need be missed here.

        Raises:
            CheckpointError: lists the tensors that do not fit.
        """
        if self.description is not None:
            return described(self.description, self.tensors, path)
        backbone = filled_backbone(self.config, self.tensors, path)
        if self.classes is None and self.config.classes and not named:
            log(
                f"assumed  {path.name} carries no class names: its outputs are numbered from 0 (--classes FILE names them)"
            )
        if self.assumed:
            log(f"assumed  {self.layout}'s layout: {', '.join(self.assumed)}")
        if self.unused:
            more = f" and {len(self.unused) - MOST_NAMED} more" if len(self.unused) > MOST_NAMED else ""
            log(f"unused   {len(self.unused)} tensors: {', '.join(self.unused[:MOST_NAMED])}{more}")
        names = self.classes or [str(number) for number in range(self.config.classes)]
        provenance = {"weights": path.name, "layout": self.layout}
        return Classifier(
            backbone,
            names,
            self.preprocessing,
            multi_label=self.multi_label,
            temperature=self.temperature,
            provenance=provenance,
        )


@dataclass(frozen=True)
class Loaded:
    """A classifier, the layout it came in, and the names of tensors there that it has no use for."""

    classifier: Task
    layout: str
    unused: tuple[str, ...] = ()
