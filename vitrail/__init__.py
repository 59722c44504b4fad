"""vitrail: the Vision Transformer workbench.

The public names are imported when they are first used, so ``import vitrail`` costs nothing and loads no torch. Every verb of
the command line is a function here, with the same name and the same options (`vitrail.workflows.api`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from vitrail.analysis.visualize import visualize_attention as visualize_attention
    from vitrail.exports.sidecar import check_export as check_export
    from vitrail.models import MODELS as MODELS
    from vitrail.tasks.classification.classifier import Classifier as Classifier
    from vitrail.verbs.embed import embed as embed
    from vitrail.verbs.evaluate import evaluate as evaluate
    from vitrail.verbs.predict import predict as predict
    from vitrail.weights import create_model as create_model
    from vitrail.weights import load as load
    from vitrail.workflows.api import check_parts as check_parts
    from vitrail.workflows.api import convert as convert
    from vitrail.workflows.api import doctor as doctor
    from vitrail.workflows.api import export as export
    from vitrail.workflows.api import list_models as list_models
    from vitrail.workflows.api import list_settings as list_settings
    from vitrail.workflows.api import probe as probe
    from vitrail.workflows.api import serve as serve
    from vitrail.workflows.api import transfer as transfer
    from vitrail.workflows.api_data import check_data as check_data
    from vitrail.workflows.api_data import index_data as index_data
    from vitrail.workflows.api_data import shard_data as shard_data
    from vitrail.workflows.api_inspecting import explain as explain
    from vitrail.workflows.api_inspecting import inspect as inspect
    from vitrail.workflows.api_study import add_study as add_study
    from vitrail.workflows.api_study import pack_study as pack_study
    from vitrail.workflows.api_study import report_study as report_study
    from vitrail.workflows.api_study import study as study
    from vitrail.workflows.api_study import work_study as work_study
    from vitrail.workflows.api_study import write_study as write_study
    from vitrail.workflows.train import pretrain as pretrain
    from vitrail.workflows.train import train as train

_HOMES = {
    "Classifier": "vitrail.tasks.classification.classifier",
    "MODELS": "vitrail.models",
    "add_study": "vitrail.workflows.api_study",
    "check_data": "vitrail.workflows.api_data",
    "check_export": "vitrail.exports.sidecar",
    "check_parts": "vitrail.workflows.api",
    "convert": "vitrail.workflows.api",
    "create_model": "vitrail.weights",
    "doctor": "vitrail.workflows.api",
    "embed": "vitrail.verbs.embed",
    "evaluate": "vitrail.verbs.evaluate",
    "explain": "vitrail.workflows.api_inspecting",
    "export": "vitrail.workflows.api",
    "index_data": "vitrail.workflows.api_data",
    "inspect": "vitrail.workflows.api_inspecting",
    "list_models": "vitrail.workflows.api",
    "list_settings": "vitrail.workflows.api",
    "load": "vitrail.weights",
    "pack_study": "vitrail.workflows.api_study",
    "predict": "vitrail.verbs.predict",
    "pretrain": "vitrail.workflows.train",
    "probe": "vitrail.workflows.api",
    "report_study": "vitrail.workflows.api_study",
    "serve": "vitrail.workflows.api",
    "shard_data": "vitrail.workflows.api_data",
    "study": "vitrail.workflows.api_study",
    "train": "vitrail.workflows.train",
    "transfer": "vitrail.workflows.api",
    "visualize_attention": "vitrail.analysis.visualize",
    "work_study": "vitrail.workflows.api_study",
    "write_study": "vitrail.workflows.api_study",
}
_ALIASES = {"export_model": "export"}
__all__ = [
    "MODELS",
    "Classifier",
    "add_study",
    "check_data",
    "check_export",
    "check_parts",
    "convert",
    "create_model",
    "doctor",
    "embed",
    "evaluate",
    "explain",
    "export",
    "index_data",
    "inspect",
    "list_models",
    "list_settings",
    "load",
    "pack_study",
    "predict",
    "pretrain",
    "probe",
    "report_study",
    "serve",
    "shard_data",
    "study",
    "train",
    "transfer",
    "visualize_attention",
    "work_study",
    "write_study",
]


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("vitrail")
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
