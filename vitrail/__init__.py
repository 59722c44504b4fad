"""vitrail: the Vision Transformer workbench.

The public names are imported when they are first used, so ``import vitrail`` costs nothing and loads no torch. Every verb of
the command line is a function here, with the same name and the same options (`vitrail.verbs`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from vitrail.analysis.visualize import visualize_attention as visualize_attention
    from vitrail.models import MODELS as MODELS
    from vitrail.models.registered import register_model as register_model
    from vitrail.objectives import register_objective as register_objective
    from vitrail.plugins import register_loss as register_loss
    from vitrail.plugins import register_metric as register_metric
    from vitrail.studies.design import write_study as write_study
    from vitrail.studies.report import report_study as report_study
    from vitrail.studies.worker import work_study as work_study
    from vitrail.tasks import register_task as register_task
    from vitrail.tasks.classification.classifier import Classifier as Classifier
    from vitrail.training.callbacks import Callback as Callback
    from vitrail.verbs.check import check_export as check_export
    from vitrail.verbs.check import check_parts as check_parts
    from vitrail.verbs.convert import convert as convert
    from vitrail.verbs.data import check_data as check_data
    from vitrail.verbs.data import index_data as index_data
    from vitrail.verbs.data import shard_data as shard_data
    from vitrail.verbs.doctor import doctor as doctor
    from vitrail.verbs.embed import embed as embed
    from vitrail.verbs.evaluate import evaluate as evaluate
    from vitrail.verbs.explain import explain as explain
    from vitrail.verbs.export import export as export
    from vitrail.verbs.inspect import inspect as inspect
    from vitrail.verbs.models import list_models as list_models
    from vitrail.verbs.predict import predict as predict
    from vitrail.verbs.pretrain import pretrain as pretrain
    from vitrail.verbs.probe import probe as probe
    from vitrail.verbs.push import push as push
    from vitrail.verbs.search import search as search
    from vitrail.verbs.serve import serve as serve
    from vitrail.verbs.settings import list_settings as list_settings
    from vitrail.verbs.study import study as study
    from vitrail.verbs.train import train as train
    from vitrail.verbs.transfer import transfer as transfer
    from vitrail.verbs.weights import get_weights as get_weights
    from vitrail.weights import create_model as create_model
    from vitrail.weights import load as load
    from vitrail.weights.native import save as save

_VERBS = (
    "convert", "doctor", "embed", "evaluate", "explain", "export", "inspect", "predict", "pretrain", "probe", "push", "search",
    "serve", "study", "train", "transfer",
)  # fmt: skip
_HOMES = {name: f"vitrail.verbs.{name}" for name in _VERBS} | {
    "Callback": "vitrail.training.callbacks",
    "Classifier": "vitrail.tasks.classification.classifier",
    "MODELS": "vitrail.models",
    "check_data": "vitrail.verbs.data",
    "check_export": "vitrail.verbs.check",
    "check_parts": "vitrail.verbs.check",
    "create_model": "vitrail.weights",
    "get_weights": "vitrail.verbs.weights",
    "index_data": "vitrail.verbs.data",
    "list_models": "vitrail.verbs.models",
    "list_settings": "vitrail.verbs.settings",
    "load": "vitrail.weights",
    "register_loss": "vitrail.plugins",
    "register_metric": "vitrail.plugins",
    "register_model": "vitrail.models.registered",
    "register_objective": "vitrail.objectives",
    "register_task": "vitrail.tasks",
    "report_study": "vitrail.studies.report",
    "save": "vitrail.weights.native",
    "shard_data": "vitrail.verbs.data",
    "visualize_attention": "vitrail.analysis.visualize",
    "work_study": "vitrail.studies.worker",
    "write_study": "vitrail.studies.design",
}
_ALIASES = {"export_model": "export"}
# constants, classes, functions
__all__ = sorted(_HOMES, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("vitrail")
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    if _HOMES[name].startswith("vitrail.verbs."):
        from vitrail.verbs.verb import document

        document(value)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
