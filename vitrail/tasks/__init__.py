"""Tasks: what an answer is; its head, loss, decoding and figures."""

from vitrail.tasks.classification import Classifier as Classifier
from vitrail.tasks.classification import Prediction as Prediction
from vitrail.tasks.classification import create_model as create_model
from vitrail.tasks.task import Metric as Metric
from vitrail.tasks.task import Task as Task

TASKS: dict[str, type[Task]] = {"classification": Classifier}
