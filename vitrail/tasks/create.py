"""Fresh models of any task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vitrail.data.preprocessing import Preprocessing
from vitrail.models import Config, create_backbone
from vitrail.tasks.task import Task

Kind = TypeVar("Kind", bound=Task)


def create_task(
    kind: type[Kind],
    name: str | Config,
    arguments: Mapping[str, Any],
    *,
    preprocessing: Preprocessing | None = None,
    **changes: Any,
) -> Kind:
    """A freshly initialised model.

    Args:
        kind: its task.
        name: a name of `vitrail.models.MODELS`, or a config.
        arguments: ``classes`` and further arguments of the task.
        preprocessing: by default the paper's, at the model's image size.
        changes: fields of the model's config, such as ``image_size=384`` or ``in_channels=5``.

    Raises:
        ConfigError: an unknown model or field, with the nearest names; a value that cannot be meant.
    """
    backbone = create_backbone(name, classes=kind.head_outputs(arguments["classes"]), **changes)
    if preprocessing is None:
        preprocessing = Preprocessing.paper(backbone.config.image_size, channels=backbone.config.in_channels)
    return kind(backbone, preprocessing=preprocessing, **arguments)
