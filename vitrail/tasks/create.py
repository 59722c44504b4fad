"""Arguments of tasks, and fresh models of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, nearest
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
    """Creates a freshly initialised model.

    Args:
        kind: its task.
        name: a name of `vitrail.models.MODELS`, or a config.
        arguments: ``classes`` and further arguments of the task.
        preprocessing: by default the paper's, at the model's image size.
        changes: fields of the model's config, such as ``image_size=384`` or ``in_channels=5``.

    Raises:
        ConfigError: an unknown model or field, with the nearest names; a value that cannot be meant.
    """
    backbone = create_backbone(name, classes=count_head_outputs(kind, arguments["classes"]), **changes)
    if preprocessing is None:
        preprocessing = Preprocessing.paper(backbone.config.image_size, channels=backbone.config.in_channels)
    return kind(backbone, preprocessing=preprocessing, **arguments)


def count_head_outputs(kind: type[Task], classes: Sequence[str]) -> int:
    """Returns how many outputs the backbone's own head has; 0 where the task has a head of its own."""
    return 0 if kind.has_own_head else len(classes)


def read_arguments(kind: type[Task], train: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `Task.read_source` gives, with ``options`` of the user.

    Raises `ConfigError` for unknown options, and `DataError`.
    """
    for name in options:
        if name not in kind.options:
            remedy = nearest(name, kind.options) if kind.options else f"the head of the task {kind.name} has no options"
            raise ConfigError(f"model.head sets {name!r}", remedy)
    kind.targets.check(train, kind.name)
    return {**kind.read_source(train), **options}
