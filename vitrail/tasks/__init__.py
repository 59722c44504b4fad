"""Tasks: what an answer is; its head, loss, decoding and figures."""

from collections.abc import Mapping
from typing import Any

from vitrail.errors import ConfigError, nearest
from vitrail.plugins import is_registered
from vitrail.tasks.answer import Answer as Answer
from vitrail.tasks.answer import Answers as Answers
from vitrail.tasks.classification.classifier import Classifier as Classifier
from vitrail.tasks.classification.classifier import Prediction as Prediction
from vitrail.tasks.classification.classifier import create_classifier as create_classifier
from vitrail.tasks.detection.detector import Detector as Detector
from vitrail.tasks.instances.queries import QueryInstances as QueryInstances
from vitrail.tasks.instances.segmenter import InstanceSegmenter as InstanceSegmenter
from vitrail.tasks.metric import Metric as Metric
from vitrail.tasks.panoptic.segmenter import PanopticSegmenter as PanopticSegmenter
from vitrail.tasks.regression.task import Regressor as Regressor
from vitrail.tasks.segmentation.queries import QuerySegmenter as QuerySegmenter
from vitrail.tasks.segmentation.segmenter import Segmenter as Segmenter
from vitrail.tasks.targets import TargetKind as TargetKind
from vitrail.tasks.task import Task as Task
from vitrail.tasks.task import create_task as create_task

KINDS: tuple[type[Task], ...] = (Classifier, Regressor, Segmenter, Detector, InstanceSegmenter, PanopticSegmenter)
TASKS = {kind.name: kind for kind in KINDS}
# by task and ``head``, of those that differ in more than a module
HEADS: dict[tuple[str, str], type[Task]] = {(kind.name, "queries"): kind for kind in (QueryInstances, QuerySegmenter)}


def register_task(kind: type[Task]) -> None:
    """Adds a task of your own to those that can be trained, loaded and used, by its ``name``."""
    TASKS[kind.name] = kind


def find_task(name: str, options: Mapping[str, Any] = {}) -> type[Task]:
    """Returns the task of that name, for the ``head`` of the options. Raises `ConfigError` with the nearest ones."""
    if name not in TASKS and not is_registered(name, TASKS):
        raise ConfigError(f"there is no task {name!r}", nearest(name, TASKS))
    kind, head = TASKS[name], options.get("head")
    if (name, str(head)) in HEADS:
        return HEADS[name, str(head)]
    if head is not None and "head" not in kind.options:
        raise ConfigError(
            f"the task {name} has no head {head!r}", "leave it out; instances and segment have --head queries"
        )
    return kind
